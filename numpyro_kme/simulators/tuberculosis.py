r"""Tuberculosis in San Francisco: 473 isolates in clusters of one genotype each.

Each case gives rise to another at rate $\alpha$ a year, ends at rate $\delta$ and mutates into a new genotype at rate
$\mu$. The epidemic begins with one case and is looked at when it has 10,000; 473 of them are typed; epidemics
that die out begin again. A simulator in plain Python, a few milliseconds to a tenth of a second a call.

References: data: Small et al. (1994), New England Journal of Medicine 330; model, priors and the clusters as used here:
Tanaka, Francis, Luciani and Sisson (2006), Genetics 173.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("log_net", "death_share", "mutation")
CASES, TYPED = 10_000, 473
"""Cases when the epidemic is looked at, and those whose genotype is found."""
CLUSTERS = np.repeat([30, 23, 15, 10, 8, 5, 4, 3, 2, 1], [1, 1, 1, 1, 1, 2, 4, 13, 20, 282])
"""Sizes of the clusters, largest first."""
MOST_EVENTS, EPIDEMICS = 400_000, 500
"""Events of an epidemic, and epidemics that die out, after which it is given up."""


def genotypes(rng, birth, death, mutation, cases=CASES):
    """Genotypes, whole numbers, of the cases of one epidemic, a list of length `cases`.

    Raises:
        RuntimeError: If 500 epidemics in a row die out, or one has not grown up after 400,000 events.
    """
    total = birth + death + mutation
    for _ in range(EPIDEMICS):
        alive, kinds = [0], 1
        for _ in range(MOST_EVENTS // 10_000):
            events = (rng.random(10_000) * total).tolist()
            for event, who in zip(events, rng.random(10_000).tolist()):
                case = int(who * len(alive))
                if event < birth:
                    alive.append(alive[case])
                    if len(alive) == cases:
                        return alive
                elif event < birth + death:
                    alive[case] = alive[-1]
                    alive.pop()
                    if not alive:
                        break
                else:
                    alive[case] = kinds
                    kinds += 1
            if not alive:
                break
        else:
            raise RuntimeError(f"the epidemic has {len(alive)} cases after {MOST_EVENTS} events")
    raise RuntimeError(f"{EPIDEMICS} epidemics in a row died out")


def statistics(clusters):
    """The share of clusters in the sample, the gene diversity's complement, the largest cluster and the share of
    singletons, `(4,)`: logs of `g / n`, `sum (n_i / n)^2`, `max n_i` and `singletons / n`."""
    clusters = np.asarray(clusters, float)
    n = clusters.sum()
    alone = max(np.sum(clusters == 1), 0.5)
    return np.log([len(clusters) / n, np.sum((clusters / n) ** 2), clusters.max(), alone / n])


def tuberculosis(rng, log_net, death_share, mutation):
    """`statistics` of the typed cases of one epidemic, `(4,)`.

    Args:
        rng: A NumPy generator.
        log_net: Log of the net transmission rate a year, of births less deaths.
        death_share: Deaths as a share of births, between 0 and 1.
        mutation: Mutations of one case a year.
    """
    net = np.exp(log_net)
    birth = net / (1.0 - death_share)
    alive = genotypes(rng, float(birth), float(birth * death_share), float(mutation))
    typed = rng.choice(alive, TYPED, replace=False)
    return statistics(np.unique(typed, return_counts=True)[1])


def model(x=None):
    """`log_net` and `death_share` of the epidemic, `mutation` with the published prior, statistics `x` `(4,)`."""
    log_net = numpyro.sample("log_net", dist.Normal(-0.5, 0.7))
    death_share = numpyro.sample("death_share", dist.Uniform(0.0, 0.9))
    mutation = numpyro.sample("mutation", dist.TruncatedNormal(0.198, 0.06735, low=0.0))
    numpyro.sample("x", Simulator(tuberculosis, log_net, death_share, mutation, shape=(4,), dtype=float), obs=x)


OBSERVED = statistics(CLUSTERS)
