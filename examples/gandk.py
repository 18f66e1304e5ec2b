"""g-and-k with outliers: the posterior bootstrap with a fixed and with a learnt mixing proportion. One minute.

python examples/gandk.py                             # prints a table and writes gandk.png
python examples/gandk.py --to docs/_static/gandk.png
"""

import argparse

import jax
import matplotlib

import numpyro_kme as kme
from numpyro_kme.simulators.g_and_k import LENGTH_SCALE, PARAMETERS, TRUTH, contaminated, model

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BLUE, ORANGE = "#0072b2", "#d55e00"


def draw(shares, found):
    """Marginals of the four parameters, a row for each share of outliers."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(len(shares), 4, figsize=(10, 2.0 * len(shares)), layout="constrained", sharex="col")
    for row, share in zip(axes, shares):
        for axis, name, truth in zip(row, PARAMETERS, TRUTH):
            for free, colour in ((False, ORANGE), (True, BLUE)):
                label = f"{'learnt' if free else 'fixed'} proportion"
                axis.hist(found[share, free][name], bins=25, density=True, color=colour, alpha=0.6, label=label)
            axis.axvline(truth, color="black", lw=1)
            axis.set_yticks([])
        row[0].set_ylabel(f"{share:.0%} outliers")
    for axis, name in zip(axes[-1], PARAMETERS):
        axis.set_xlabel(name)
    axes[0, -1].legend(frameon=False)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", default="gandk.png")
    parser.add_argument("--draws", type=int, default=100)
    arguments = parser.parse_args()
    shares, found = (0.0, 0.05, 0.1), {}
    for free in (False, True):
        loss = kme.MMD(kme.kernels.Gaussian(LENGTH_SCALE), fit_proportion=free)
        engine = kme.PosteriorBootstrap(model, loss, num_samples=arguments.draws)
        for share in shares:
            engine.run(jax.random.key(0), contaminated(jax.random.key(0), share))
            found[share, free] = engine.get_samples()
            means = "  ".join(
                f"{name} {value.mean():.2f} +- {value.std():.2f}" for name, value in found[share, free].items()
            )
            print(f"{'learnt' if free else 'fixed'} proportion, {share:4.0%} outliers:  {means}", flush=True)
    draw(shares, found).savefig(arguments.to, dpi=110)


if __name__ == "__main__":
    main()
