"""Neural posterior estimation by `sbi` on stored simulations; run by `residual_time.py` and `learnt_statistics.py` in a
virtual environment that has torch.

With a number of rounds, stored simulations are those of the first, and each further one has as many, truncated to where
the posterior is (TSNPE); it asks for them by a line with the file of their parameters, waits for one with the file of
outputs, and leaves the wait out of its seconds.

Outputs `(m, channels, *sides)` go through a convolutional embedding network, rows of numbers as they are. Prints one
line of JSON: wall and CPU seconds of training and of posterior draws, and the means of these; importing apart.
"""

import json
import sys
import time

import numpy as np
import torch
from sbi.inference import NPE
from sbi.neural_nets import posterior_nn
from sbi.neural_nets.embedding_nets import CNNEmbedding
from sbi.utils import RestrictedPrior, get_density_thresholder


def main(path, rounds=1):
    stored = np.load(path)
    theta, x, y = (torch.as_tensor(np.asarray(stored[name], np.float32)) for name in ("theta", "x", "y"))
    if x.ndim > 2:  # as sbi's "structured" does, which has no standard deviation of a single channel
        centre, scale = x.mean(), x.std()
        x, y = (x - centre) / scale, (y - centre) / scale
    torch.manual_seed(0)
    prior = torch.distributions.MultivariateNormal(torch.zeros(theta.shape[1]), torch.eye(theta.shape[1]))
    wall, cpu = time.perf_counter(), time.process_time()
    inference = NPE(prior=prior, density_estimator=estimator(x.shape), show_progress_bars=False)
    inference.append_simulations(theta, x).train()
    posterior, waited = inference.build_posterior(), np.zeros(2)
    for number in range(1, rounds):
        kept = get_density_thresholder(posterior.set_default_x(y))
        further = RestrictedPrior(prior, kept, sample_with="rejection").sample((len(theta),))
        asked = np.array([time.perf_counter(), time.process_time()])
        x = simulated(further, f"{path}.{number}.npy")
        waited += np.array([time.perf_counter(), time.process_time()]) - asked
        inference.append_simulations(further, x).train(force_first_round_loss=True)
        posterior = inference.build_posterior()
    if y.ndim == x.ndim:
        draws = posterior.sample_batched((500,), x=y, show_progress_bars=False)
    else:
        draws = posterior.sample((1000,), x=y, show_progress_bars=False)
    seconds = {"wall": time.perf_counter() - wall - waited[0], "cpu": time.process_time() - cpu - waited[1]}
    print("\n" + json.dumps(seconds | {"mean": draws.mean(0).tolist()}))


def simulated(theta, path):
    """Outputs at further parameters, of whoever runs this process."""
    np.save(path, theta.numpy())
    print(f"\nSIMULATE {path}", flush=True)
    return torch.as_tensor(np.load(sys.stdin.readline().strip()).astype(np.float32))


def estimator(shape):
    """The default flow, behind an embedding network where there is more than a row of numbers."""
    if len(shape) == 2:
        return "maf"
    network = CNNEmbedding(input_shape=tuple(shape[2:]), in_channels=shape[1])
    return posterior_nn(model="maf", embedding_net=network, z_score_x="none")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
