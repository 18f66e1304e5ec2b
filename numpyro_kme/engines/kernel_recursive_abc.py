"""Kernel recursive ABC: points that close in on the maximum of a likelihood."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from numpyro_kme._core import checks, progress, saveable, shown, split
from numpyro_kme.abc.weighting import recursive_abc_step
from numpyro_kme.engines.base import KernelEngine
from numpyro_kme.engines.posterior import Posterior, missing_entries, sites_at
from numpyro_kme.engines.reference_table import ReferenceTable
from numpyro_kme.engines.weighting import vector_maps
from numpyro_kme.kernels.length_scales import MedianHeuristic
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRecursiveABC(KernelEngine["PointPosterior"]):
    r"""Kernel recursive ABC: the maximum-likelihood point of a simulator, by Bayes' rule applied again and again.

    Each iteration simulates at `m` points, finds the embedding of their posterior by kernel ABC,
    $v = (G_Y + m \varepsilon I)^{-1} k_Y(y)$, and herds `m` new points from it, which are the prior of the next. The
    `t`-th posterior is proportional to $p(\theta) \ell(\theta)^t$ and closes in on the maximum of the likelihood, as
    far as the kernel on data resolves it. The prior says where to begin. What comes out is no posterior: the
    standard deviations of the points say how far the iterations have come. Without a model an iteration is
    `abc.recursive_abc_step`.

    Args:
        model: A NumPyro model with one observed `Simulator` site. Where its arguments do not determine all latents, as
            under a Dirichlet or a hierarchical prior, the points move in the space of all latents, mapped to vectors
            without constraints.
        num_simulations: Number `m` of simulations in an iteration.
        num_samples: Number of points that come out.
        num_iterations: Number of iterations.
        kernel: On outputs of the simulator; by median heuristics, anew in each iteration, when left out.
        length_scale: Rule for that kernel instead of the median, as in `KernelABC`.
        regularisation: `eps`; `0.01 / sqrt(m)` when left out.
        tolerance: Of the low-rank factor of `G_Y`.
        simulations: The first iteration, made elsewhere, from the prior or from where the points should begin.
        store: A folder for a store of each iteration, `iteration 1` and so on. A run that ended early goes on from
            there; `condition` writes nothing there.
        on_failure, executor, version, timeout, progress_bar: How it simulates, as in `simulate`; with
            `on_failure="skip"` the other points of an iteration serve.
    Raises:
        RuntimeError: If the weights of an iteration vanish or cancel, or its points come together in one place,
            because the observation lies far from all that was simulated.
    Cost: `m` simulations and `m r^2` for a factor of rank `r` an iteration.
    References: Kajihara, Kanagawa, Yamazaki & Fukumizu (2018), ICML.
    """

    paper = "kajihara2018kernel"

    num_simulations: int = field(default=200, kw_only=False)
    num_samples: int = 200
    num_iterations: int = 10

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.whole("num_simulations", self.num_simulations, 20)
        checks.whole("num_iterations", self.num_iterations, 1)

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key = split(rng_key)
        problem = self._checked(Problem.read(self.model, *args, **kwargs))
        problem.require_continuous("KernelRecursiveABC, which herds points,")
        if self.simulations is not None:
            return None, self._fit(fit_key, problem, self.plan.simulate(simulate_key, problem))
        draw_key, first_key = split(simulate_key)
        first = self._iteration(first_key, problem, problem.draw(draw_key, self.num_simulations).latents, 1)
        return None, self._fit(fit_key, problem, first)

    def _condition(self, rng_key, args, kwargs, method):
        return replace(self, store=None)._infer(rng_key, args, kwargs)[1]

    def _fit(self, rng_key, problem, simulations):
        """Iterate from the simulations of the first iteration; the points that come out, as a posterior."""
        coordinates_key, *keys = split(rng_key, self.num_iterations + 1)
        coordinates = Coordinates.from_prior(coordinates_key, problem)
        to_vectors, latents_at = vector_maps(problem, coordinates)
        centre = scale = None
        points, made = [], [simulations]
        for number, key in enumerate(progress.progress(keys, "iterations", self.progress_bar), 1):
            simulate_key, herd_key = split(key)
            table = ReferenceTable.read(coordinates, problem, made[-1])
            z = to_vectors(table.z, table.simulations.latents)
            if centre is None:
                centre, scale = z.mean(axis=0), np.maximum(z.std(axis=0), 1e-8)
            rule = self.length_scale
            if rule is None and self.kernel is None:  # points that have come close may agree in a count
                rule = MedianHeuristic(per_dimension=not table.data_sets, ties=False)
            last = number == self.num_iterations
            kernel, observed = table.kernels(self.kernel, rule)[0], table.point(problem.observations[problem.site()])
            size = self.num_samples if last else self.num_simulations
            how = {"regularisation": self.regularisation, "tolerance": self.tolerance}
            z = (z - centre) / scale
            z = centre + scale * recursive_abc_step(herd_key, kernel, z, table.x, observed, size, **how)
            latents = latents_at(z)
            points.append(z)
            if not last:
                made.append(self._iteration(simulate_key, problem, latents, number + 1))
        failed = [one.describe_failures() for one in made if one.failures or one.repeated]
        info = {
            "simulations": sum(one.attempted or len(one) for one in made),
            **({"simulations that failed": "; ".join(failed)} if failed else {}),
            "standard deviations of the points, first and last": np.ravel([points[0].std(0), points[-1].std(0)]),
            "last move of the estimate": np.abs(points[-1][0] - points[-2:][0][0]),
            **missing_entries(problem.simulators[problem.site()]),
            "what these are": "points that close in on the maximum of the likelihood, not draws from a posterior",
        }
        samples, groups = sites_at(problem, latents), {"observed_data": problem.observations}
        return PointPosterior(engine=type(self).__name__, samples=samples, groups=groups, info=info, problem=problem)

    def _iteration(self, rng_key, problem: Problem, latents: Mapping, number: int) -> Simulations:
        """Simulations at the points of an iteration, counted from 1."""
        store = None if self.store is None else Path(self.store) / f"iteration {number}"
        return replace(self.plan, progress_bar=False).simulate_at(rng_key, problem, latents, store)


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class PointPosterior(Posterior):
    """Points that close in on a point estimate, in the order in which herding chose them."""

    def mode(self) -> dict[str, np.ndarray]:
        """The point estimate `{site: (*shape)}`: the first point that the last herding chose."""
        return {name: np.asarray(self.samples[name][0]) for name in self.latents}
