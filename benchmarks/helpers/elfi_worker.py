"""BOLFI by ELFI on a simulator of statistics that lives in another process; run by `all_engines.py` in a virtual
environment with elfi.

Reads one line of JSON from standard input: names and priors of the parameters (a SciPy distribution and its arguments),
the observation, a scale for each statistic, simulations to start from, and the number of simulations. Then it prints
one line for each point at which it wants a simulation, and reads its statistics. The last line has draws of the
posterior, and its CPU seconds.
"""

import json
import os
import sys
import time

import elfi
import numpy as np
import scipy.stats

ASK = os.fdopen(os.dup(1), "w", buffering=1)
sys.stdout = sys.stderr


def answer(kind, **value):
    """Print a line for the other process."""
    ASK.write(json.dumps({"kind": kind, **value}) + "\n")


def main():
    task = json.loads(sys.stdin.readline())
    observed, scale = np.array(task["observed"]), np.array(task["scale"])
    begun = time.process_time()

    def simulate(*theta, batch_size=1, random_state=None):
        answer("simulate", theta=[float(np.squeeze(value)) for value in theta])
        return np.array(json.loads(sys.stdin.readline()))[None]

    def distance(x):
        return np.sqrt(np.sum(((np.atleast_2d(x) - observed) / scale) ** 2, axis=1))

    model = elfi.new_model()
    priors = [elfi.Prior(*spec, model=model, name=name) for name, spec in task["priors"].items()]
    simulated = elfi.Simulator(simulate, *priors, observed=observed[None], name="x")
    log_distance = elfi.Operation(lambda x: np.log(distance(x)), simulated, name="d")
    theta = np.array(task["theta"])
    start = {name: theta[:, i] for i, name in enumerate(task["priors"])} | {"d": np.log(distance(task["x"]))}
    bounds = {
        name: tuple(getattr(scipy.stats, family)(*given).ppf([0.001, 0.999]))
        for name, (family, *given) in task["priors"].items()
    }
    bolfi = elfi.BOLFI(log_distance, bounds=bounds, initial_evidence=start, seed=task["seed"])
    bolfi.fit(n_evidence=task["budget"], bar=False)
    draws = bolfi.sample(500).samples
    answer("done", samples=[draws[name].tolist() for name in task["priors"]], seconds=time.process_time() - begun)


if __name__ == "__main__":
    main()
