"""Neural posterior estimation by `sbi` on stored simulations; run in a virtual environment that has torch.

Prints one line of JSON: wall and CPU seconds of training and of 1,000 posterior draws, and the means of these;
importing apart.
"""

import json
import sys
import time

import numpy as np
import torch
from sbi.inference import NPE


def main(path):
    stored = np.load(path)
    theta, x, y = (torch.as_tensor(np.asarray(stored[name], np.float32)) for name in ("theta", "x", "y"))
    torch.manual_seed(0)
    prior = torch.distributions.MultivariateNormal(torch.zeros(theta.shape[1]), torch.eye(theta.shape[1]))
    wall, cpu = time.perf_counter(), time.process_time()
    inference = NPE(prior=prior, show_progress_bars=False)
    inference.append_simulations(theta, x).train()
    draws = inference.build_posterior().sample((1000,), x=y, show_progress_bars=False)
    seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print("\n" + json.dumps(seconds | {"mean": draws.mean(0).tolist()}))


if __name__ == "__main__":
    main(sys.argv[1])
