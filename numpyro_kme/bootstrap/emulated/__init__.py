"""The posterior bootstrap on an emulator of the simulator's mean embedding, `method="emulated"`: what it is trained on,
networks, the emulator that they make, and replicates that are minimised on it."""
