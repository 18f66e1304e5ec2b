"""Maps of priors to normals; mixtures of normals stay exact, in coordinates of mean 0 and covariance I."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
import numpyro.distributions as dist

from numpyro_kme._core import checks, compat
from numpyro_kme._core.host import in_present_precision, to_host
from numpyro_kme._core.saving import Saved, saveable
from numpyro_kme.kernels.base import register
from numpyro_kme.models import normalise
from numpyro_kme.models.problem import Latent, Problem


class NotExact(Exception):
    """Why the prior gives no exact coordinates: half a sentence, to follow 'because'."""


@register
class Independent:
    """Sites whose priors do not depend on each other."""

    fns: tuple[dist.Distribution, ...]

    def to_normal(self, values):
        """Standard normals, site by site."""
        return tuple(normalise.to_normal(fn, value) for fn, value in zip(in_present_precision(self.fns), values))

    def from_normal(self, z):
        """Values, site by site."""
        return tuple(normalise.from_normal(fn, part) for fn, part in zip(in_present_precision(self.fns), z))


@register
class Sequential(Saved):
    """Sites whose priors depend on sites before them: the model is run to find each prior; None once it was saved."""

    problem: Problem | None = field(metadata={"static": True})
    names: tuple[str, ...] = field(metadata={"static": True})

    def _to_save(self):
        return replace(self, problem=None)

    @property
    def model(self) -> Problem:
        """The model; raises where it was not saved."""
        if self.problem is None:
            raise checks.explained(
                "These coordinates are found by running the model, as its priors depend on one another, and a file "
                "holds no model: give it again, `likelihood.with_model(Problem.read(model, x=...))`, or "
                "`load(path, problem=...)` of a posterior."
            )
        return self.problem

    def to_normal(self, values):
        """Standard normals, site by site."""
        z = self.model.to_normal(dict(zip(self.names, values)))
        return tuple(z[name] for name in self.names)

    def from_normal(self, z):
        """Values, site by site."""
        values = self.model.from_normal(dict(zip(self.names, z)))
        return tuple(values[name] for name in self.names)


@saveable
class Mixture(NamedTuple):
    """A mixture of normals: weights `(K,)`, means `(K, dim)`, covariances `(K, dim, dim)`."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


def standard(dim: int) -> Mixture:
    """One standard normal."""
    return Mixture(np.ones(1), np.zeros((1, dim)), np.eye(dim)[None])


def product(parts: Sequence[Mixture]) -> Mixture:
    """The mixture of independent mixtures, joined in their order."""
    weights, means, covariances = np.ones(1), np.zeros((1, 0)), np.zeros((1, 0, 0))
    for part in parts:
        i, j = (axis.ravel() for axis in np.indices((len(weights), len(part.weights))))
        d, e = means.shape[1], part.means.shape[1]
        joined = np.zeros((len(i), d + e, d + e))
        joined[:, :d, :d], joined[:, d:, d:] = covariances[i], part.covariances[j]
        weights, covariances = weights[i] * part.weights[j], joined
        means = np.concatenate([means[i], part.means[j]], axis=1)
    return Mixture(weights, means, covariances)


def read(fn: dist.Distribution, shape: tuple[int, ...] | None = None):
    """Split a prior that is a mixture of normals into an affine map and a mixture.

    Args:
        fn: The prior of one site, wrapped or transformed in any way.
        shape: Shape of a value; that of `fn` if left out.
    Returns:
        None if `fn` is not such a prior. Else a distribution of the same mean and covariance without the
        mixture, whose map to normals is therefore affine (inside the transforms of `fn`), and for each
        independent event of the site the mixture that the prior is in the mapped coordinates.
    """
    shape = fn.shape() if shape is None else shape
    fn = compat.innermost(fn)
    if isinstance(fn, dist.TransformedDistribution):
        inner = None if normalise.is_folded(fn) or fn.base_dist.shape() != fn.shape() else read(fn.base_dist, shape)
        return inner and (dist.TransformedDistribution(inner[0], fn.transforms), inner[1])
    components = _components(fn)
    if components is None:
        return None
    lead = shape[: len(shape) - fn.event_dim]
    weights, means, covariances = (
        np.broadcast_to(array, lead + array.shape[array.ndim - keep :]) for array, keep in zip(components, (1, 2, 3))
    )
    mean = np.einsum("...k,...kd->...d", weights, means)
    offset = means - mean[..., None, :]
    around_mean = covariances + offset[..., :, None] * offset[..., None, :]
    factor = np.linalg.cholesky(np.einsum("...k,...kde->...de", weights, around_mean))
    inverse = np.linalg.inv(factor)[..., None, :, :]
    means, covariances = (inverse @ offset[..., None])[..., 0], inverse @ covariances @ np.swapaxes(inverse, -1, -2)
    if fn.event_dim:
        affine: dist.Distribution = dist.MultivariateNormal(mean, scale_tril=factor)
    else:
        affine = dist.Normal(mean[..., 0], factor[..., 0, 0])
    return affine, [Mixture(weights[i], means[i], covariances[i]) for i in np.ndindex(lead)]


def _components(fn: dist.Distribution) -> Mixture | None:
    """Weights `(*batch, K)`, means `(*batch, K, dim)` and covariances of a mixture of normals."""
    if isinstance(fn, dist.MixtureSameFamily):
        moments = _moments(fn.component_distribution)
    elif isinstance(fn, dist.MixtureGeneral):
        moments = _stacked([_moments(part) for part in fn.component_distributions], fn.batch_shape)
    else:
        return None
    weights = np.asarray(fn.mixing_distribution.probs, np.float64)
    return moments and Mixture(weights / weights.sum(axis=-1, keepdims=True), *moments)


def _stacked(parts, batch_shape: tuple[int, ...]):
    """Moments of separate components, with the axis of the components behind the batch."""
    if any(part is None for part in parts):
        return None
    means = [np.broadcast_to(mean, batch_shape + mean.shape[-1:]) for mean, _ in parts]
    covariances = [np.broadcast_to(c, batch_shape + c.shape[-2:]) for _, c in parts]
    return np.stack(means, axis=-2), np.stack(covariances, axis=-3)


def _moments(fn: dist.Distribution) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean `(*batch, dim)` and covariance `(*batch, dim, dim)` of a normal; dim is 1 for a univariate one."""
    base = compat.innermost(fn)
    if isinstance(base, dist.Normal) and fn.event_dim <= 1:
        keep = (..., None)[: 2 - fn.event_dim]
        mean, variance = (np.asarray(moment, np.float64)[keep] for moment in (fn.mean, fn.variance))
        return mean, variance[..., None] * np.eye(mean.shape[-1])
    if isinstance(base, (dist.MultivariateNormal, dist.LowRankMultivariateNormal)) and fn.event_dim == 1:
        mean, covariance = np.asarray(fn.mean, np.float64), np.asarray(base.covariance_matrix, np.float64)
        return mean, np.broadcast_to(covariance, mean.shape + mean.shape[-1:])
    return None


def maps(used: Mapping[str, Latent], shown: Mapping[str, list[int]], *, mixtures: bool):
    """For each site a distribution with a map to normals, and the mixtures that mapped entries follow."""
    split = {name: read(latent.fn) if mixtures else None for name, latent in used.items()}
    count = math.prod(len(part.weights) for found in split.values() if found for part in found[1])
    fns: list[dist.Distribution] = []
    parts: list[Mixture] = []
    for name, latent in used.items():
        found = split[name]
        if found and count <= 64:
            fn, events = found
            fns.append(to_host(fn))
            elementwise = len(events) == latent.value.size
            parts.extend([events[i] for i in shown[name]] if elementwise else events)
        else:
            try:
                normalise.check(latent.fn)
            except normalise.NoNormalMap as reason:
                raise NotExact(f"of {name}: {reason}") from reason
            fns.append(to_host(latent.fn))
            parts.append(standard(len(shown[name])))
    return tuple(fns), parts
