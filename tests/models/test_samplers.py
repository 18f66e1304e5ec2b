"""Every sampler of JAX and NumPyro, lifted: distribution, moments, tails and derivatives against SciPy's;
or refused with its sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro_array_rows import ARRAYS
from numpyro_count_rows import COUNTS
from numpyro_rows import NO_SAMPLER, NUMBERS, OTHERS
from sampler_rows import JAX, JAX_OTHERS, Gated, Row, exact
from scipy import stats

from numpyro_kme.models import lift_noise
from numpyro_kme.models.lifting import NoiseNotLifted

NUMBER = 65_536
EDGES = np.array([-8.0, -6.0, -4.0, -1.0, 0.5, 4.0, 6.0, 8.0])
SMALLEST = 1e-8
"""Of p-values; there are about a thousand."""

ROWS = [*NUMBERS, *COUNTS, *ARRAYS]
JAX_ROWS = [(name, row) for name, rows in JAX.items() for row in ([rows] if isinstance(rows, Row) else rows)]
TABLE = [(f"jax {name}", row) for name, row in JAX_ROWS] + [(f"NumPyro {name}", row) for name, row in ROWS]
LIFTED = [pytest.param(row, id=name) for name, row in TABLE if not row.refused]
REFUSED = [pytest.param(row, id=name) for name, row in TABLE if row.refused]
QUICK = ("normal", "uniform", "truncated_normal", "gamma", "poisson", "randint", "bits")
FAMILIES = {quick: next(row for name, row in JAX_ROWS if name == quick) for quick in QUICK}
BY_QUANTILE = [row for name, row in FAMILIES.items() if row.tails and name != "gamma"]
"""Those of the gamma distribution are in test_lifting."""


@pytest.fixture(autouse=True)
def ranks():
    """NumPyro's own programs promote them."""
    with jax.numpy_rank_promotion("allow"):
        yield


def test_every_sampler_has_a_row():
    public = {name for name in vars(random) if not name.startswith("_")} - JAX_OTHERS
    assert public == set(JAX)
    assert set(dist.__all__) - OTHERS == {name for name, _ in ROWS} | set(NO_SAMPLER)
    assert all(issubclass(getattr(dist, name), dist.Distribution) or name == "Distribution" for name in NO_SAMPLER)


@pytest.mark.parametrize("make, error", NO_SAMPLER.values(), ids=NO_SAMPLER)
def test_what_cannot_draw_says_so_itself(make, error):
    with pytest.raises(error):
        make().sample(random.key(0))
    with pytest.raises(ValueError, match=rf"Simulator `<lambda>` fails, .*{error.__name__}"):
        lift_noise(lambda k: make().sample(k))


@pytest.mark.parametrize("row", REFUSED)
def test_what_draws_an_unknown_number_is_refused_with_its_line(row):
    with pytest.raises(NoiseNotLifted, match=row.drawn):
        lift_noise(row.draw, *row.at)


class Together:
    """Several rows as one simulator, so that one program serves them."""

    def __init__(self, rows):
        self.rows = rows
        self.at = np.array([value for row in rows for value in row.at])
        self.ends = np.cumsum([0, *(len(row.at) for row in rows)])
        self.lifted = lift_noise(self.draw, self.at, most_loops=rows[0].most_loops)
        self.call = jax.jit(jax.vmap(self.lifted, (0, None)))
        z = np.asarray(random.normal(random.key(1), (NUMBER, self.lifted.dim)))
        edges = np.broadcast_to(EDGES.astype(z.dtype)[:, None], (len(EDGES), self.lifted.dim))
        self.z, self.few = np.concatenate([z, edges]), np.concatenate([z[:64], edges])
        sizes = [jax.eval_shape(row.draw, random.key(0), *row.at).size for row in rows]
        self.starts = np.cumsum([0, *sizes])

    def draw(self, key, at):
        values = []
        for row, k, start, end in zip(self.rows, random.split(key, len(self.rows)), self.ends, self.ends[1:]):
            values.append(jnp.ravel(jnp.asarray(row.draw(k, *at[start:end]), float)))
        return jnp.concatenate(values)

    def values(self, at, z):
        return np.asarray(self.call(z, at), np.float64)

    def own(self):
        """Its draws from keys."""
        keys = random.split(random.key(2), NUMBER)
        return np.asarray(jax.jit(jax.vmap(self.draw, (0, None)))(keys, self.at), np.float64)

    def parts(self):
        """Of each row, itself, where its numbers are, and where its parameters are."""
        for i, row in enumerate(self.rows):
            yield row, slice(self.starts[i], self.starts[i + 1]), range(self.ends[i], self.ends[i + 1])


def agrees(x, law):
    """The p-value of a Kolmogorov-Smirnov test, or of a chi-square test of counts."""
    assert np.isfinite(x).all()
    if isinstance(law, Gated):
        rest = x[x != 0]
        return min(stats.binomtest(NUMBER - len(rest), NUMBER, law.gate).pvalue, stats.kstest(rest, law.law.cdf).pvalue)
    if not hasattr(law, "pmf"):
        return stats.kstest(x, law.cdf).pvalue
    low, high = (int(q) for q in law.ppf([1e-3, 1 - 1e-3]))
    observed = np.bincount(np.clip(x.astype(int), low, high) - low, minlength=high - low + 1)
    expected = law.pmf(np.arange(low, high + 1))
    expected[0], expected[-1] = law.cdf(low), law.sf(high - 1)
    assert (x == np.floor(x)).all()
    return stats.chisquare(observed, NUMBER * expected).pvalue if high > low else 1.0


def moments_agree(x, mean, sd, kurtosis, again=1):
    """To six of their standard errors, `again` as many for a mean and an sd that are estimates too."""
    if np.isfinite(sd):
        assert abs(x.mean() - mean) <= 6 * sd * np.sqrt(again / NUMBER) + 1e-6 * abs(mean)
    if np.isfinite(sd) and np.isfinite(kurtosis):
        assert abs(x.std() - sd) <= 6 * sd * np.sqrt(again * (kurtosis - 1) / (4 * NUMBER)) + 1e-6 * sd


def check_distributions(group):
    x = group.values(group.at, group.z)
    assert np.isfinite(x[NUMBER:]).all() or group.lifted.dim > 1
    x = x[:NUMBER]
    alone = all(row.law and end == start + 1 for row, start, end in zip(group.rows, group.starts, group.starts[1:]))
    own = None if alone else group.own()
    for row, place, _ in group.parts():
        columns = x[:, place].T
        laws = row.law(*row.at) if row.law else []
        for column, law in zip(columns, laws if isinstance(laws, list) else [laws], strict=bool(row.law)):
            assert agrees(column, law) > SMALLEST
            beyond = (
                float(law.stats(moments="k")) + 3 if hasattr(law, "stats") else stats.kurtosis(column, fisher=False)
            )
            moments_agree(column, law.mean(), law.std(), beyond)
        if own is None or not len(columns):
            continue
        weights = np.cos(np.arange(len(columns)))
        for column, other in [*zip(columns, own[:, place].T), (weights @ columns, own[:, place] @ weights)]:
            assert np.isfinite(column).all() and stats.ks_2samp(column, other).pvalue > SMALLEST
            if row.law is None:
                beyond = stats.kurtosis(np.append(column, other), fisher=False) if column.std() else np.inf
                moments_agree(column, other.mean(), other.std(), beyond, 2)


def check_tails(group, z):
    """How many quantiles were compared."""
    compared = 0
    x = group.values(group.at, z)[-len(EDGES) :]
    for row, place, _ in group.parts():
        near = np.abs(EDGES) <= row.tails
        if near.any():
            rtol, atol = (1e-6, 1e-12) if x64() else (rounding(row), 1e-6)
            np.testing.assert_allclose(x[near, place.start], exact(row.law(*row.at), EDGES[near]), rtol=rtol, atol=atol)
            compared += near.sum()
    return compared


def x64():
    return jnp.result_type(float) == jnp.float64


def check_derivatives(group):
    """Against finite differences of the lifted draw, and of SciPy's quantile function: how many parameters have one."""
    compared = 0
    jacobian = np.asarray(jax.jit(jax.vmap(jax.jacfwd(group.lifted, argnums=1), (0, None)))(group.few, group.at))
    for row, place, params in group.parts():
        for j, param in enumerate(params):
            found = jacobian[:, place, param]

            def moved(step, param=param):
                at = group.at.copy()
                at[param] += step
                return at

            h = 1e-6 * max(1.0, abs(group.at[param]))
            up, down = (group.values(moved(step), group.few)[:64, place] for step in (h, -h))
            atol = 1e-6 * max(1.0, np.abs(up).max(initial=0.0))
            np.testing.assert_allclose(found[:64], (up - down) / (2 * h), rtol=1e-4, atol=atol)
            compared += 1
            law = row.law(*row.at) if row.law else None
            counts = hasattr(law[0] if isinstance(law, list) else law, "pmf")
            assert (found == 0.0).all() if counts else found.any() or not found.size
            if counts:
                continue
            if row.tails == 8:
                h = 1e-5 * abs(row.at[j])
                up, down = (exact(row.law(*row.at[:j], row.at[j] + step, *row.at[j + 1 :]), EDGES) for step in (h, -h))
                slope, digits = (up - down) / (2 * h), 1e-12 * np.abs(up) / h
                assert (np.abs(found[64:, 0] - slope) <= 1e-3 * np.abs(slope) + digits + 1e-10).all()
    return compared


def known_tails(rows):
    """How many quantiles rows say to compare."""
    return sum((np.abs(EDGES) <= row.tails).sum() for row in rows)


def rounding(row):
    """Of float32: a quantile function's own, `x = u^(1 / a)` by `1 / a` more; of `1 - u` where one is made of it."""
    return 2e-3 if row.at == (0.2,) else 2e-4 if row.tails == 8 else 3e-2


def test_samplers_of_each_kind_have_their_distributions():
    rows = list(FAMILIES.values())
    group = Together(rows)
    assert group.lifted.dim == sum(int(part.split()[0]) for row in rows for part in row.drawn.split(", "))
    check_distributions(group)
    check_tails(group, group.z)


@pytest.mark.x64
def test_samplers_of_each_kind_have_their_tails_and_derivatives():
    group = Together(BY_QUANTILE)
    assert check_tails(group, group.few) == known_tails(BY_QUANTILE) > 0
    assert check_derivatives(group) == len(group.at) > 0


@pytest.mark.slow
@pytest.mark.parametrize("row", LIFTED)
def test_every_sampler_has_its_distribution_and_its_tails(row):
    group = Together([row])
    assert sorted(str(group.lifted).removesuffix(" a draw, lifted").split(", ")) == sorted(row.drawn.split(", "))
    check_distributions(group)
    check_tails(group, group.z)


@pytest.mark.slow
@pytest.mark.x64
@pytest.mark.parametrize("row", LIFTED)
def test_every_sampler_has_its_distribution_tails_and_derivatives_in_64_bits(row):
    group = Together([row])
    check_distributions(group)
    assert check_tails(group, group.z) == known_tails([row])
    assert check_derivatives(group) == len(row.at)
