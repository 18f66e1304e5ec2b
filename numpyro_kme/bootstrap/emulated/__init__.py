"""The posterior bootstrap on an emulator of the simulator's mean embedding (`method="emulated"`).

A simulator whose output jumps, is noisy or is slow cannot be minimised over directly. Here small neural networks learn
`u -> mu_u`, the mean embedding as a function of the parameters, from simulations in rounds that move to where
replicates have their minima; then every replicate of the bootstrap is minimised on the networks. `bootstrap.py` is the
way in.
"""
