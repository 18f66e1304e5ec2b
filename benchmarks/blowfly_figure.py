"""The paper's figures for the blowflies, from `results/blowfly.json`: NMSE against the number of simulations, and
learnt bandwidths.

    python benchmarks/blowfly_figure.py

Writes `docs/_static/blowfly_nmse.png`.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[1]
COLOURS = {
    "residual form": "#0b6e4f",
    "published form, leave-one-out": "#2a6fbb",
    "marginal likelihood, as published: tied": "#b8860b",
    "marginal likelihood, everything free": "#b5493a",
}


def main():
    runs = json.loads((ROOT / "benchmarks" / "results" / "blowfly.json").read_text())["runs"]
    figure, (errors, bandwidths) = plt.subplots(1, 2, figsize=(9.5, 3.6), constrained_layout=True)
    sizes = sorted({run["simulations"] for run in runs})
    for name, colour in COLOURS.items():
        scores = [
            [100 * r["nmse"]["draws"] for r in runs if (r["learnt by"], r["simulations"]) == (name, m)] for m in sizes
        ]
        errors.plot(sizes, [np.mean(each) for each in scores], "o-", color=colour, label=name)
        errors.fill_between(
            sizes, [min(each) for each in scores], [max(each) for each in scores], color=colour, alpha=0.12
        )
        eps = [r["info"]["eps"] for r in runs if (r["learnt by"], r["simulations"]) == (name, max(sizes))]
        bandwidths.plot(np.arange(1, 11), np.mean(eps, axis=0), "o", color=colour)
    errors.axhline(0.72, color="0.5", linewidth=0.8, linestyle="--")
    errors.text(sizes[0], 0.6, "published best", fontsize=8, color="0.4")
    errors.set(xscale="log", yscale="log", xlabel="simulations", ylabel="NMSE of the posterior mean, %")
    errors.set_xticks(sizes, [str(m) for m in sizes])
    errors.minorticks_off()
    errors.legend(frameon=False, fontsize=8)
    bandwidths.set(
        yscale="log", xlabel="statistic", ylabel=f"learnt bandwidth at {max(sizes)}", xticks=np.arange(1, 11)
    )
    figure.savefig(ROOT / "docs" / "_static" / "blowfly_nmse.png", dpi=130)


if __name__ == "__main__":
    main()
