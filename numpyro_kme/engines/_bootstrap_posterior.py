"""The posterior of the bootstrap: minimisers of a loss on reweighted data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.bootstrap import newton
from numpyro_kme.bootstrap.fit import full_data
from numpyro_kme.bootstrap.results import WRONG, Replicates
from numpyro_kme.engines._iid import IidModel
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.losses.base import WeightedObjective

NOISY = 0.2
"""Simulation noise above this many posterior standard deviations is warned of."""


@dataclass(frozen=True, kw_only=True)
class BootstrapPosterior(Posterior):
    """Minimisers of a loss on reweighted data.

    Attributes:
        replicates: The minimisations.
        iid: The model, with its data.
        objective: What was minimised.
    """

    replicates: Replicates = field(repr=False)
    iid: IidModel = field(repr=False)
    objective: WeightedObjective = field(repr=False)

    def mode(self) -> dict[str, np.ndarray]:
        """Minimum-loss estimate on the data as they are, `{site: value}`."""
        return {name: value[0] for name, value in self.iid.latents(self.replicates.fit.u[None]).items()}

    def landscape(self, site: str, values: Sequence[float], index: tuple = ()) -> np.ndarray:
        """Loss on the full data along one parameter, the others at the point estimate.

        Args:
            site: Name of a latent.
            values: Values of that latent, or of its entry `index`.
            index: Entry of a latent that is an array.
        Returns:
            Losses, one for each value; the part that no parameter changes is included.
        """
        checks.require(site in self.iid.shapes, f"`site` must be one of {list(self.iid.shapes)}; got {site!r}.")
        estimate = self.mode()
        latents = {name: np.repeat(estimate[name][None], len(values), axis=0) for name in self.iid.shapes}
        entry: Any = (slice(None), *index)
        latents[site][entry] = np.asarray(values)
        reweightings, nodes = full_data(self.objective, 0), self.replicates.nodes
        rows = reweightings.rows(np.zeros(len(values), int))
        losses = newton.Problems(self.objective, nodes, rows).values(self.iid.unconstrain(latents))
        return losses + newton.offsets(self.objective, reweightings)


def warn_of(replicates: Replicates) -> None:
    """Warn of minimisations that fell short."""
    failed = np.flatnonzero(~replicates.converged)
    if len(failed):
        checks.warn(
            f"{len(failed)} of {len(replicates.converged)} replicates did not converge: "
            f"{failed[:10].tolist()}"
            f"{' ...' if len(failed) > 10 else ''}. They are marked in the extra field `converged`; see "
            f"`remaining_step`.",
        )
    known = replicates.emulator
    if known is not None and known.is_wrong:
        checks.warn(
            f"the emulated loss is wrong by {known.error:.2g} units of log-likelihood at the draws (root mean square; "
            f"up to {WRONG} is harmless). Raise `num_simulations`.",
        )
    if known is None and replicates.quadrature.noise > NOISY:
        checks.warn(
            f"doubling the noise nodes moves the draws by {replicates.quadrature.noise:.2g} posterior "
            f"standard deviations. Raise "
            "`num_nodes`, or declare the simulator's noise with FromNoise.",
        )
    if not replicates.fit.converged:
        checks.warn("the full-data minimum did not converge to working precision; see `replicates.fit`.")


def described(replicates: Replicates) -> dict[str, Any]:
    """What a person reads of the minimisations."""
    full = replicates.fit
    info: dict[str, Any] = {
        "converged": f"{int(replicates.converged.sum())} of {len(replicates.converged)} replicates",
        "full-data loss": f"{full.value:.3g}"
        + (f" +- {full.numbers['loss_error']:.1g}" if "loss_error" in full.numbers else ""),
        "starts at the best minimum": f"{full.reached} of {full.followed}",
        "other minima": len(full.others),
        "restarted elsewhere": f"{replicates.compared} replicates; {int(replicates.moved.sum())} draws moved",
        "simulation noise (sd)": replicates.quadrature.noise,
        "derivatives": str(replicates.derivatives),
    }
    if (known := replicates.emulator) is not None:
        info["simulations"] = f"{known.simulations:,} in {known.rounds} rounds"
        info["emulated loss, error (log-likelihood)"] = f"{known.error:.2g} (resolved: {known.resolution:.2g})"
        info["loss scale (one unit of log-likelihood)"] = known.loss_scale
        info["derivatives"] = "automatic, of the emulator"
        info["between networks (sd)"] = info.pop("simulation noise (sd)")
    if "mixing_proportion" in replicates.numbers:
        found = replicates.numbers["mixing_proportion"]
        info["mixing proportion"] = f"{found.mean():.3f} (sd {found.std():.3f})"
    return info
