"""Read a likelihood and a posterior in another process: print log densities, as numbers in JSON."""

import json
import sys

import numpy as np

import numpyro_kme as kme
from numpyro_kme.engines import Posterior
from numpyro_kme.likelihoods import FittedLikelihood

likelihood, posterior = FittedLikelihood.load(sys.argv[1]), Posterior.load(sys.argv[2])
points = np.load(sys.argv[3])
log_prob = kme.KernelMeansLikelihood(likelihood, *points["arguments"].T).log_prob(points["value"])
groups = posterior.to_inference_data()
found = {"log_prob": np.asarray(log_prob).tolist(), "mean": posterior.get_samples()["theta"].mean().item()}
print(json.dumps(found | {"arviz": np.asarray(groups["posterior"]["theta"]).mean().item()}))
