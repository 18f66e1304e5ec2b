"""Bad inputs as a table of kinds and places, and what the package says to each."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from numpyro_kme import diagnostics, kernels, models
from numpyro_kme.abc.discrepancies import out_of_distribution_check
from numpyro_kme.embeddings import measures
from numpyro_kme.losses.base import Family
from numpyro_kme.mcmc import handlers
from numpyro_kme.simulations import Penalise, Retry, Simulations, simulate

KEY = jax.random.key(0)
ROWS: list["Row"] = []
NAN, INF = np.nan, np.inf
BAD = "bad hyperparameter"


@dataclass(frozen=True)
class Row:
    """A bad input.

    Attributes:
        place, kind: Where, and what is bad.
        call: Gives everything that was answered, as a pytree of numbers.
        raises: What the exception says; empty where there is an answer.
        warns: What a warning says; empty where the answer needs none, as for points that come twice.
        slow: Whether it takes seconds.
    """

    place: str
    kind: str
    call: Callable[[], Any]
    raises: str = ""
    warns: str = ""
    slow: bool = False


def add(place: str, kind: str, call: Callable[[], Any], raises: str = "", **rest) -> None:
    ROWS.append(Row(place, kind, call, raises, **rest))


# --- simulators and models


def shifted(rng_key, theta):
    return theta + 0.5 * jax.random.normal(rng_key, (1,), jnp.result_type(float, theta))


def untraceable(rng_key, theta):
    return shifted(rng_key, theta) if theta > 0 else theta


def scalar(rng_key, theta):
    return theta + jax.random.normal(rng_key, (), jnp.result_type(float, theta))


def scalar_broken(rng_key, theta):
    return scalar(rng_key, theta) * jnp.nan


def gives(value):
    return partial(_give, value=value)


def _give(rng, theta, value):
    return theta + value + 0.5 * rng.normal(size=np.shape(value))


def failing(rng, theta):
    raise OSError("disk full")


def hanging(rng, theta):
    time.sleep(300)


def given(draw, prior=None, **declared):
    """A model with one latent, one simulator, and the observation `x`."""
    prior = prior or dist.Normal(0.0, 1.0)

    def model(x=None):
        theta = numpyro.sample("theta", prior)
        numpyro.sample("x", kme.Simulator(draw, theta, **declared), obs=x)

    return model


def plated(draw, prior=None, **declared):
    """The same with independent draws in a data plate."""
    prior = prior or dist.Normal(0.0, 1.0)

    def model(x):
        theta = numpyro.sample("theta", prior)
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", kme.Simulator(draw, theta, **declared), obs=x)

    return model


BOX = dict(shape=(2,), dtype=float)
CONJUGATE, IID = given(shifted), plated(scalar)
IMPROPER = dist.ImproperUniform(dist.constraints.real, (), ())
RNG = np.random.default_rng(0)
THETA = RNG.normal(size=(40, 1))
X = THETA + 0.5 * RNG.normal(size=(40, 1))
SETS = RNG.normal(size=(40, 20)) + THETA
DATA = RNG.normal(size=20)


def spoilt(table, value, row=3):
    table = np.array(table)
    table[row] = value
    return table


def bank_of(x, theta=THETA):
    return Simulations.from_table(theta, x)


# --- simulate


def drawn(draw, number=3, prior=None, declared=BOX, **settings):
    problem = kme.Problem.read(given(draw, prior, **declared))
    bank = simulate(KEY, problem, number, progress_bar=False, **settings)
    return bank.x, bank.latents


OK = gives(np.zeros(2))
add("simulate", "NaN", lambda: drawn(gives(np.full(2, NAN))), r"failed at .* values are not finite\. R")
add("simulate", "infinite", lambda: drawn(gives(np.array([0, INF])), on_failure="skip"), "All 3 .*x: not finite': 3")
add("simulate", "constant", lambda: drawn(OK, block_size=0), "`block_size` must be at least 1; got 0")
add("simulate", "duplicates", lambda: drawn(OK, executor="two"), "`executor` must be .* got 'two'")
add("simulate", "outliers", lambda: drawn(gives(np.full(2, 1e30))))
add("simulate", "wrong shape", lambda: bank_of(X[:30]), r"got \(40, 1\) and \(30, 1\)")
add("simulate", "wrong type", lambda: drawn(OK, on_failure="retry"), r"'skip', Retry\(...\) or Penalise")
add("simulate", "wrong type", lambda: drawn(shifted, declared={}, executor="two"), "for black-box simulators")
add("simulate", "wrong dtype", lambda: drawn(OK, declared=dict(shape=(2,), dtype="U3")), "at least one real number")
add("door", "a kernel", lambda: kme.squared_mmd(1.0, X, X), "`kernel` must be a kernel, such as .*; got 1")
add("door", "a class", lambda: kernels.register(1.0), "`cls` must be a class of annotated fields.*; got 1")
add("door", "a length", lambda: kernels.Gaussian(None), "`length_scale` must be an array of real numbers; got None")
add("door", "a table", lambda: Simulations(arguments={"x": X}, x=X), "`x` must be of the kind Mapping; got .* array")
add("door", "a number", lambda: kme.Simulator(shifted, 0.3, event_dims=2.0), "`event_dims` must be a whole")
add("door", "a parameter", lambda: kme.Simulator(shifted, "a"), r"`params\[0\]` must be an array of real numbers")
add("door", "a model", lambda: handlers.surrogate("a", {"x": print}), "`model` must be a function or None; got 'a'")
add("door", "a path", lambda: kme.simulations.Store(object()), "`path` must be text or of the kind PathLike; got <obj")
add("door", "rows", lambda: kernels.cut(1.0, 2), "`rows` must have a first axis; got 1")
add("door", "a table", lambda: kernels.lengths(2), r"`x` must have shape \(n, longest, ...\); got 2")


@cache
def problem():
    return kme.Problem.read(CONJUGATE, x=np.zeros(1))


def coordinates():
    return kme.models.Coordinates.from_prior(KEY, problem())


def vector():
    return kme.models.Unconstrained.of(problem())


BARE = handlers.surrogate(CONJUGATE, {"x": lambda theta: dist.Normal(theta[None], 1.0).to_event(1)})
RANKS = diagnostics.Calibration({"a": np.linspace(0.1, 0.9, 9)}, np.linspace(0.1, 0.9, 9), {"a": np.zeros(9)})


def limited(x):
    numpyro.sample("x", kme.Simulator(shifted, numpyro.sample("theta", dist.Normal())).within(high=X), obs=x)


for call, raises in [
    (lambda: kme.PseudoMarginal(CONJUGATE, target_accept_prob=X), "`target_accept_prob` must be one number"),
    (lambda: kme.PseudoMarginal(3), "`model` must be a model of NumPyro; got 3"),
    (lambda: kme.PseudoMarginal(CONJUGATE, target_accept_prob=1.5), "`target_accept_prob` must be between 0 and 1"),
    (lambda: kme.PseudoMarginal(CONJUGATE, blocks=0), "`blocks` must be at least 1"),
    (lambda: kme.FromNoise(3, dist.Normal()), "`fn` must be a function .noise, .params. -> one event; got 3"),
    (lambda: handlers.soft_abc(CONJUGATE, 0.3), "`kernel` must be a kernel on outputs, such as Gaussian"),
    (lambda: kme.mcmc.log_estimate_sd(KEY, BARE, {}, x=X[0]), "`samples` must hold at least one draw"),
    (lambda: handlers.generalized_bayes(IID, weight=1, noise=kme.CommonNoise(4), covariates=X), "`covariates` must be"),
    (lambda: problem().draw(KEY, 2.5), "`num_draws` must be a whole number; got 2.5"),
    (lambda: problem().log_prior({"theta": ["a"]}), r"`latents\['theta'\]` must hold real numbers; got dtype <U1"),
    (
        lambda: kme.Problem.read(limited, x=X[0]),
        r"ends of `within` at 'x' have the shapes \(\) and \(40, 1\), .*\(1,\)",
    ),
    (lambda: kme.Simulator(shifted, 0.3, names={"a": 1.0}), r"`names\['a'\]` must be a length or a shape; got 1"),
    (lambda: kme.models.node_keys(3, KEY, 4, 0.3), "`fn` must be a simulator; got 3"),
    (
        lambda: kme.models.Coordinates.from_prior(KEY, CONJUGATE),
        r"`problem` must be a model as `Problem.read\(model\)`",
    ),
    (lambda: coordinates().forward("a"), "`a` must be an array of real numbers; got 'a'"),
    (lambda: coordinates().table(np.zeros(2)), r"`arguments` must have 1 columns; got shape \(1, 2\)"),
    (lambda: coordinates().latents([0.3, 0.4]), r"`z` must have shape \(..., 1\); got \(2,\)"),
    (lambda: kme.models.Unconstrained.of(CONJUGATE), "`problem` must be a model as"),
    (lambda: vector().constrain([0.3, 0.4]), r"`u` must have shape \(1,\); got \(2,\)"),
    (lambda: vector().flatten({"mu": 0.3}), r"`latents` must have the sites \['theta'\]; got \['mu'\]"),
    (lambda: kme.Command(("ls",), timeout=-1.0), "`timeout` must be positive and finite; got -1"),
    (lambda: kme.Command(("./model",))(RNG, X), "./model cannot be run: No such file .* give whole paths"),
    (lambda: Simulations({}, {}), "`x` must have a row for each simulation, .*; got {}"),
    (lambda: Simulations.from_latents(CONJUGATE, {"theta": X}, X), "`problem` must be a model as"),
    (lambda: Simulations.from_arviz(problem(), {"prior": X}), "`source` must be an ArviZ object.*got {'prior': "),
    (lambda: Simulations({}, {"x": X}).joined(X), "`further` must be of the kind Simulations; got"),
    (lambda: diagnostics.compare_posteriors({"a": {"t": 1.0}, "b": {"t": X}}), r"\['a'\]` must hold .*got {'t': \(\)}"),
    (lambda: diagnostics.compare_posteriors({"a": {"t": "b"}, "b": 3}), r"`posteriors\['a'\]\['t'\]` must hold real"),
    (lambda: RANKS.coverage(90), "`level` must be between 0 and 1; got 90"),
    (lambda: kme.plots.coverage(RANKS, prob=95), "`prob` must be between 0 and 1; got 95"),
    (lambda: kme.plots.marginals({}), "`posteriors` must hold at least one draw, .*; got none"),
    (lambda: kme.plots.marginals({"a": {"t": X}, "b": {"t": spoilt(X, NAN)}}), r"`t\[0\]` has 1 entries"),
    (lambda: kme.plots.marginals({"t": X}, truth=3.0), "`truth` must be values to mark, {site: value}; got 3"),
    (lambda: kme.plots.marginals({"t": X}, truth={"s": 3.0}), r"`truth` must have values of \['t'\]; got \['s'\] too"),
    (lambda: kme.plots.marginals({"t": X}, "t"), r"`names` must be a list, such as \['t'\]; got 't'"),
    (lambda: kme.plots.witness(X, NAN * X[0]), "`y` has 1 entries that are not finite"),
    (lambda: kme.plots.witness(X, X, length_scale=[1.0, 2.0]), r"must be one number, or 1; got shape \(2,\)"),
    (
        lambda: kme.mcmc.check_surrogate(BARE, {"theta": np.full(9, "a")}, x=X[0]),
        r"`samples\['theta'\]` must hold real",
    ),
    (lambda: kme.mcmc.noise_sensitivity(KEY, BARE, {}, x=X[0]), "`samples` must hold at least one draw"),
]:
    add("door", "wrong type or shape", call, raises)


def on_the_host(**declared):
    return kme.Simulator(black_box, 0.3, **declared).sample(KEY)


def black_box(rng, theta):
    return rng.normal(size=2) + float(theta)


def estimates_at(samples):
    return kme.mcmc.log_estimate_sd(KEY, BARE, samples, x=X[0], num_keys=2)


def twenty(x):
    theta = numpyro.sample("theta", dist.Normal())
    with numpyro.plate("data", 20):
        numpyro.sample("x", kme.Simulator(scalar, theta), obs=x)


def soft_abc(x):
    smodel = handlers.soft_abc(given(kme.FromNoise(lambda z, theta: theta + z, dist.Normal().expand([1]))), WIDE)
    return numpyro.infer.util.log_density(smodel, (), {"x": x}, {"theta": 0.1, "x_noise": jnp.zeros(1)})[0]


for kind, call, raises in [
    ("no rows", lambda: vector().constrain_rows(np.zeros((0, 1))), "There must be at least one row, one point or draw"),
    ("empty", lambda: kme.simulations.Store({}), "`path` must be text or of the kind PathLike; got {}"),
    ("a folder", lambda: bank_of(X).save(""), "`path` must be that of a file; got the folder /"),
    ("no mapping", lambda: problem().log_prior(None), "`latents` must be values of the latents, .*; got None"),
    ("no mapping", lambda: vector().flatten(True), "`latents` must be values of the latents, .*; got True"),
    ("no mapping", lambda: vector().flatten_rows(3), "`latents` must be of the kind Mapping; got 3"),
    (
        "ignored",
        lambda: models.Unconstrained.of(problem(), ["mu"]),
        r"`discrete` must be among .* got \['mu'\]",
    ),
    ("a model", lambda: kme.Problem.read(KEY), "`model` must be a NumPyro model, a function; got"),
    ("a model", lambda: handlers.adjustable(0), "`fn` must be a function or None; got 0"),
    ("a model", lambda: handlers.uncondition_simulators("a"), "`fn` must be a function or None; got 'a'"),
    ("a model", lambda: handlers.soft_abc("a", WIDE), "`model` must be a function or None; got 'a'"),
    ("text", lambda: kme.Simulator(shifted, 0.3).with_arguments(["a"]), "`arguments` must be an array of real numbers"),
    (
        "a list",
        lambda: kme.Simulator(shifted, 0.3).sample(KEY, [2]),
        "`sample_shape` must be of the kind tuple",
    ),
    ("text", lambda: kme.Simulator(shifted, 0.3).expand(["a"]), r"of shape \(\), does not expand to \('a',\)"),
    ("declared", lambda: on_the_host(shape=(), dtype=float), r"declares shape \(\) .* returned shape \(2,\)"),
    ("rows", lambda: Simulations({}, {"x": X}, index=np.arange(80)), r"`index` must have 40 rows, .*; got \(80,\)"),
    ("rows", lambda: Simulations({"x": X[:3]}, {"x": X}), r"`arguments\['x'\]` must have 40 rows, .*; got \(3, 1\)"),
    ("a list", lambda: Penalise([-3.0]), r"`value` must be one number; got shape \(1,\)"),
    (
        "keys",
        lambda: estimates_at({0: THETA[:, 0]}),
        r"`samples` must be draws by the names.* keys \[0\]",
    ),
    (
        "a mapping",
        lambda: kme.PseudoMarginal(CONJUGATE, target_accept_prob={}),
        "must be an array of real numbers; got {}",
    ),
    ("lacking", lambda: estimates_at({"mu": THETA[:, 0]}), "`samples` must hold every latent .* it has nothing"),
    ("rows", lambda: density(CONJUGATE, {"x": good}, X[:3]), r"'x' has shape \(3, 1\); the simulator `shifted` gives"),
    ("rows", lambda: robust(twenty, DATA[:0]), r"'x' has shape \(0,\); the simulator `scalar` gives shape \(20,\)"),
    ("rows", lambda: soft_abc(X[:3]), r"'x' has shape \(3, 1\); the simulator `.*` gives shape \(1,\)"),
    ("axes", lambda: kme.plots.ranks(RANKS, ["a"], ax=NAN), "`ax` must be axes of matplotlib, .*; got nan"),
    ("names", lambda: kme.plots.ranks(RANKS, [["a"]]), r"`names` must be a list of text; got \(\(.a.\)\)"),
    ("names", lambda: kme.plots.witness(X, X, np.array(["a", "b"])), "`labels` must be of the kind Sequence or None"),
    ("text", lambda: kme.plots.marginals({"t": X}, prior="no"), "`prior` must be True or False or of the kind Mapping"),
    ("a kernel", lambda: kernels.Scaled("a", 2.0), r"`kernel` must be a kernel, such as Gaussian\(1.0\); got 'a'"),
    ("a kernel", lambda: kernels.EmpiricalMeasure(3, 1.0), "`inner` must be a kernel on rows, .*; got 3"),
    ("masked", lambda: kernels.pad(np.ma.masked_less(X, 0.0), 50), "`rows` has masked entries: leave these rows out"),
    (
        "a table",
        lambda: kernels.Signature(scales=np.ones((2, 2)), length_scale=1.0),
        r"`scales` must be one number.*shape \(2, 2\)",
    ),
    ("none", lambda: measures.standard_normal(0), "`dim` must be at least 1; got 0"),
    ("beyond", lambda: RANKS.can_see(level=2.0), "`level` must be between 0 and 1; got 2.0"),
    ("a number", lambda: out_of_distribution_check(X[:, 0], 2.0), r"`between` must .*; got .*\(\)"),
    ("a number", lambda: kme.likelihoods.KernelMeans(learner=3), "`learner` must be Learner.*; got 3"),
    (
        "a mapping",
        lambda: kme.PosteriorBootstrap(twenty, centering={}),
        "`centering` must be a distribution, .*; got {}",
    ),
    ("a number", lambda: Family(3, 2), "`simulate` must be a function .*; got 3"),
]:
    add("argument", kind, call, raises)
add("simulate", "m = 0", lambda: drawn(OK, 0), "`num_simulations` must be .* got 0")
add("simulate", "m = 1", lambda: drawn(OK, 1))
add("simulate", "m = 2.5", lambda: drawn(OK, 2.5), "`num_simulations` must be a whole number; got 2.5")
add("simulate", BAD, lambda: drawn(OK, timeout=-1.0), "`timeout` must be positive and finite; got -1.0")
add("simulate", "raising", lambda: drawn(failing), r"failed at \{'theta': .*disk full \(OSError\)")
add("simulate", "in JAX", lambda: drawn(shifted), r"`shape` it is called as fn\(rng, .*leave it out for JAX")
add("simulate", "hanging", lambda: drawn(hanging, 1, timeout=0.2), "it took longer than 0.2 s")
add("simulate", "wrongly shaped", lambda: drawn(gives(np.zeros(3))), r"declares shape \(2,\) .* returned shape \(3,\)")
add("simulate", "bad prior", lambda: drawn(OK, prior=IMPROPER), "The prior of 'theta' is improper")
add("simulate", "bad policy", lambda: Penalise(NAN), "`value` must be finite; got nan")
add("simulate", "bad policy", lambda: Retry(0), "`times` must be at least 1; got 0")
add("simulate", "bad policy", lambda: Retry(1.5), "`times` must be a whole number; got 1.5")


# --- KELFI


def kelfi(model=CONJUGATE, x=X[0], **settings):
    engine = kme.KELFI(model, num_samples=50, progress_bar=False, **settings)
    engine.run(KEY, x=x)
    return engine.get_samples(), engine.posterior.log_marginal_likelihood()


def bad_scale(x=None):
    return given(shifted, dist.Normal(0.0, NAN))(x)


KEPT = bank_of(X)
add("KELFI", "NaN", lambda: kelfi(x=np.array([NAN])), "Nothing was observed at 'x': all 1 entries")
add("KELFI", "infinite", lambda: kelfi(x=np.array([-INF])), "`observation at 'x'` has 1 entries that are not finite")
add("KELFI", "constant", lambda: kelfi(simulations=bank_of(0 * X)), "statistics are constant over the 40 simulations")
add("KELFI", "duplicates", lambda: kelfi(simulations=bank_of(np.repeat(X[:4], 10, 0))), slow=True)
add("KELFI", "outliers", lambda: kelfi(x=np.array([1e30]), simulations=KEPT), warns="far outside all", slow=True)
add("KELFI", "wrong shape", lambda: kelfi(x=np.zeros(2)), r"The observation at 'x' has shape \(2,\)")
add("KELFI", "wrong dtype", lambda: kelfi(x=np.array(["a"])), "observation at 'x' has dtype <U1")
add("KELFI", "m = 0", lambda: kelfi(num_simulations=0), "`num_simulations` must be .* got 0")
add("KELFI", "m = 1", lambda: kelfi(num_simulations=1), "`num_simulations` must be at least 2; got 1")
add("KELFI", "m = 2", lambda: kelfi(simulations=bank_of(X[:0], THETA[:0])), "at least 1 rows")
add("KELFI", BAD, lambda: kme.KELFI(CONJUGATE, num_samples=0), "`num_samples` must be .* got 0")
add("KELFI", "wrongly shaped", lambda: kelfi(given(untraceable)), "JAX could not trace simulator `untraceable`")
add("KELFI", "bad prior", lambda: kelfi(given(shifted, dist.Poisson(2.0))), "The prior of 'theta' is discrete")
add("KELFI", "bad prior", lambda: kelfi(bad_scale), "failed while its sites were read: Normal .* invalid scale")
add("KELFI", "wrong type", lambda: kelfi(form="published"), "`form` must be KernelMeans")
add("KELFI", "wrong type", lambda: kelfi(simulations=X), "`simulations` must be a set of simulations")


# --- fit_likelihood


PUBLISHED, RESIDUAL = kme.KernelMeans(), kme.ResidualKernelMeans()


def learnt(theta=THETA, x=X, y=X[0], **settings):
    fitted = kme.fit_likelihood(theta, x, **settings)
    return fitted(np.zeros(1)).log_prob(y), fitted(np.full(1, 30.0)).log_prob(y)


def published(**settings):
    from numpyro_kme.likelihoods.published.learning import Hyperparameters

    hyper = Hyperparameters(kernels.Gaussian(np.ones(1)), kernels.Gaussian(np.ones(1)), settings.pop("lam", 0.01))
    return kme.KernelMeans(hyperparameters=hyper, **settings)


def fitted():
    return kme.fit_likelihood(THETA, X, form=published())


def by_form(theta=THETA, x=X, form=PUBLISHED, y=None):
    surrogate = form.fit(theta, x)
    return surrogate if y is None else surrogate.at(y).log_density(np.zeros(theta.shape[1]))


def raising_kernel(a, b):
    raise OSError("no kernel")


RAISING = kernels.FromCallable(raising_kernel)
FOURS = np.repeat(np.arange(4), 10)
TWO = np.hstack([X, 0 * X + 1])
add("fit_likelihood", "NaN", lambda: learnt(x=spoilt(X, NAN)), "`x` has 1 entries that are not finite")
add("fit_likelihood", "infinite", lambda: learnt(theta=spoilt(THETA, INF)), "`theta` has 1 entries")
add("fit_likelihood", "constant", lambda: learnt(x=TWO, y=TWO[0], form=published()), warns=r"\[1\] are constant")
add("fit_likelihood", "duplicates", lambda: learnt(THETA[FOURS], X[FOURS], form=published()))
add("fit_likelihood", "outliers", lambda: learnt(x=spoilt(X, 1e30), form=published()))
add("fit_likelihood", "wrong shape", lambda: learnt(theta=THETA[:, 0]), r"`theta` must have shape \(points, dim\)")
add("fit_likelihood", BAD, lambda: learnt(theta={"a": THETA[:, 0]}), "got a dict. Stack its arrays in the order")
add("fit_likelihood", "wrong dtype", lambda: learnt(x=X.astype("U9")), "`x` must hold real numbers; got dtype <U9")
add("fit_likelihood", "m = 0", lambda: learnt(THETA[:0], X[:0]), "`theta` must have at least 2 rows")
add("fit_likelihood", "m = 1", lambda: learnt(THETA[:1], X[:1]), "`theta` must have at least 2 rows")
add("fit_likelihood", "m = 2", lambda: learnt(THETA[:2], X[:2], form=kme.ResidualKernelMeans()), "at least 10 simul")
add("fit_likelihood", BAD, lambda: learnt(form=published(lam=-1.0)), "`regularisation` must be pos")
add("fit_likelihood", "raising", lambda: learnt(form=kme.KernelMeans(data_kernel=RAISING)), "`raising_kernel` failed")
add("fit_likelihood", "hanging", lambda: fitted()(np.zeros(1), np.zeros(1)), "learnt from 1 arg")
add("fit_likelihood", "wrongly shaped", lambda: learnt(x=X[:, :0]), "`x` must hold at least one number")
add("fit_likelihood", "bad prior", lambda: learnt(form=kme.KernelMeans(kme.likelihoods.MarginalLikelihood())), "`y=`")
add("fit_likelihood", "bad prior", lambda: learnt(theta=0 * THETA), "All rows of arguments are the same")
add("fit_likelihood", "bad observation", lambda: learnt(y=np.array([NAN]), form=published()), "All 1 entries of")
add("fit_likelihood", "bad observation", lambda: learnt(y=np.zeros(3), form=published()), r"shape .*\(3,\)")
add("fit_likelihood", "wrong type", lambda: learnt(form="residual"), "`form` must be KernelMeans")
add("published", "m = 1", lambda: by_form(THETA[:1], X[:1]), "at least 2 rows")
add("published", "wrong shape", lambda: by_form(np.zeros((20_001, 1))), r"one row .* shapes \(20001, 1\) and")
add("published", "wrong shape", lambda: by_form(x=X[:, 0]), "one row for each simulation")
add("published", "wrong shape", lambda: by_form(x=np.ones((40, 2, 2))), "without a `data_kernel`; got")
add("published", "NaN", lambda: by_form(x=spoilt(X, NAN)), r"nan at index \(3, 0\)")
add("published", "infinite", lambda: by_form(spoilt(THETA, INF, 2)), r"inf at index \(2, 0\)")
add("published", "constant", lambda: by_form(x=np.ones((40, 2))), "All 2 statistics are constant")
add("published", "duplicates", lambda: by_form(THETA[FOURS], form=published(lam=1e-30)), "lam = 1e-30")
add("published", "bad observation", lambda: by_form(form=published(), y=np.zeros(2)), r"`y` must have shape \(1,\)")
add("published", "bad observation", lambda: by_form(form=published(), y=np.array([INF])), "not finite")
add("published", BAD, lambda: kme.likelihoods.Tied(0.0), "`ratio` must be positive")
add("published", BAD, lambda: kme.likelihoods.Tied(power=-1.0), "`power` must be finite and not negative; got -1.0")
add("published", BAD, lambda: kme.likelihoods.Learner(tied=1e-3), r"`tied` must be Tied\(\) or None; got 0.001")
add("residual", "wrong shape", lambda: by_form(x=X[:30], form=RESIDUAL), "one row for each simulation")
add("residual", "m = 2", lambda: by_form(THETA[:5], X[:5], RESIDUAL), "at least 10 simulations")
add("residual", "constant", lambda: by_form(x=np.ones((40, 2)), form=RESIDUAL), "constant over the 40 simulations")
add("residual", "NaN", lambda: by_form(x=NAN * X, form=RESIDUAL), "not finite")
add("residual", "bad observation", lambda: by_form(form=RESIDUAL, y=np.zeros(3)), r"must have shape \(1,\)")
add("residual", "outliers", lambda: by_form(form=RESIDUAL, y=np.array([50.0])), warns="far outside all simulations")
add("residual", BAD, lambda: kme.ResidualKernelMeans(num_inducing_points=0), "`num_inducing_points` must be at least 1")
add("residual", BAD, lambda: kme.ResidualKernelMeans(num_inducing_points=2.5), "`num_inducing_points` must be a whole")
add("fit_likelihood", BAD, lambda: kme.likelihoods.LeaveOneOut(floor=2.0), "`floor` must be between 0 and 1")
add("fit_likelihood", BAD, lambda: kme.likelihoods.Learner(regularisation_bounds=(1.0, 0.1)), "must increase")


# --- engines that weight simulations


def abc(engine=kme.KernelABC, model=CONJUGATE, x=X[0], **settings):
    run = engine(model, num_samples=20, progress_bar=False, **settings)
    run.run(KEY, x=x)
    return run.get_samples(), run.posterior.get_weights()


def k2abc(x=DATA, sets=SETS, model=IID, **settings):
    return abc(kme.K2ABC, model, x, simulations=bank_of(sets), **settings)


def compared(discrepancy):
    return abc(kme.RejectionABC, discrepancy=discrepancy, simulations=KEPT)


WIDE = kernels.Gaussian(1.0)
add("weighted", "NaN", lambda: abc(x=np.array([NAN])), "Nothing was observed at 'x': all 1 entries")
add("weighted", "infinite", lambda: k2abc(x=spoilt(DATA, INF)), "`observation at 'x'` has 1 entries")
add("weighted", "constant", lambda: k2abc(x=np.ones(20)), "All points of `x` coincide")
add(
    "weighted",
    "outliers",
    lambda: abc(x=np.array([1e30]), simulations=KEPT),
    "weights of 40 simulations sum to 0, their sizes to 0",
)
add("weighted", "wrong shape", lambda: abc(x=np.zeros((2, 2))), r"The observation at 'x' has shape \(2, 2\)")
add("weighted", "wrong dtype", lambda: abc(x="text"), "at 'x' has dtype <U4; it must hold numbers")
add("weighted", "m = 0", lambda: abc(num_simulations=0), "`num_simulations` must be at least 20; got 0")
add("weighted", "m = 1", lambda: abc(simulations=bank_of(X[:1], THETA[:1]), kernel=WIDE), "is 1.0 of 1 simulations")
add("weighted", "m = 2", lambda: abc(kme.RejectionABC, simulations=bank_of(X[:2], THETA[:2])), "is 1.0 of 2 simul")
add("weighted", BAD, lambda: abc(regularisation=-1.0), "`regularisation` must be positive")
add("weighted", "hanging", lambda: abc(kme.RejectionABC, quantile=0.5, threshold=1.0), "not both")
add("weighted", "wrongly shaped", lambda: abc(model=given(gives(np.zeros(3)), **BOX), x=np.zeros(2)), "declares shape")
add("weighted", "bad prior", lambda: abc(model=given(shifted, dist.Delta(1.0))), "The prior of 'theta' is one value")
add("weighted", BAD, lambda: kme.KernelBayes(CONJUGATE, delta=0.0), "`delta` must be positive")
add("weighted", BAD, lambda: kme.KernelBayes(CONJUGATE, tolerance=-1.0), "`tolerance` must be positive")
add("weighted", "wrongly shaped", lambda: compared(lambda a, b: a - b), "The discrepancy must give one number")
add("weighted", "NaN", lambda: compared(lambda a, b: NAN * a[0]), "`discrepancies` has 40 entries")
add("weighted", "wrong type", lambda: kme.K2ABC(IID, regression_adjustment="loclinear"), "must be True or False")
add("weighted", "wrong type", lambda: abc(simulations=X), "`simulations` must be a set of simulations")


# --- what those engines call, as plain functions

QUADRATIC, ON_SETS = kme.embeddings.Quadratic(WIDE), kernels.EmpiricalMeasure(WIDE, 1.0)
ROWS_OF_SETS, WASSERSTEIN = SETS[..., None], kme.Wasserstein(1.0)


def apart(y=DATA[:, None], sets=ROWS_OF_SETS, discrepancy=QUADRATIC):
    return kme.abc.discrepancies_to(y, sets, discrepancy)


def learnt_summary(x=ROWS_OF_SETS, targets=THETA, kernel=ON_SETS, y=ROWS_OF_SETS[:2], **settings):
    return kme.abc.DistributionRegression.fit(kernel, x, targets, **settings).predict(y)


def ridge_weights(inputs=X, kernel=WIDE, regularisation=0.1, t=X[:2], **settings):
    return kme.embeddings.ConditionalMeanEmbedding.fit(kernel, inputs, regularisation, **settings).weights(t)


def recursive_step(theta=THETA, x=X, y=X[0], kernel=WIDE, number=20, **settings):
    return kme.abc.recursive_abc_step(KEY, kernel, theta, x, y, number, **settings)


def constant_beside(rng_key, theta):
    return jnp.stack([theta + jax.random.normal(rng_key), theta])


def twice(rng_key, theta):
    return shifted(rng_key, theta) * jnp.array([1.0, 3.0])


def synthetic(fn=shifted, value=X[0]):
    return kme.SyntheticLikelihood(fn, 0.3).log_prob(value)


for kind, call, raises in [
    ("NaN", lambda: apart(spoilt(DATA[:, None], NAN)), "`observed` has 1 entries"),
    ("infinite", lambda: apart(sets=spoilt(ROWS_OF_SETS, INF)), "`simulated` has 20 entries"),
    ("duplicates", lambda: apart(sets=ROWS_OF_SETS[[0] * 5]), ""),
    ("outliers", lambda: apart(DATA[:, None] * 1e30), ""),
    ("wrong dtype", lambda: apart(sets=ROWS_OF_SETS.astype("U9")), "`simulated` must hold real numbers; got dtype <U9"),
    ("wrong shape", lambda: apart(np.zeros((5, 2)), discrepancy=WASSERSTEIN), r"got shapes \(1,\) and \(2,\)"),
    ("wrong shape", lambda: apart(DATA, SETS), r"must have shape \(points, dim\); got \(20,\)"),
    ("m = 0", lambda: apart(sets=ROWS_OF_SETS[:0]), r"`simulated` must be outputs .*got shapes \(0, 20, 1\)"),
    ("m = 1", lambda: apart(DATA[:1, None]), "must have at least 2 points for an unbiased estimate; got 1"),
    ("raising", lambda: apart(discrepancy=raising_kernel), "The discrepancy `raising_kernel` failed: no kernel"),
    ("wrong type", lambda: apart(discrepancy=None), "`discrepancy` must be a function of a simulation .*got None"),
    ("constant", lambda: kme.abc.soft_abc_weights(np.ones(9)), "Check the simulations, or compare something else"),
    ("outliers", lambda: kme.abc.soft_abc_weights([0.0, 1.0, 1e30]), ""),
    ("m = 0", lambda: kme.abc.soft_abc_weights([]), r"`discrepancies` must have shape \(m,\)"),
    (BAD, lambda: kme.abc.soft_abc_weights([1.0, 2.0], [1.0, 2.0]), r"`epsilon` must be one number; got sh"),
    ("constant", lambda: kme.abc.rejection_weights(np.ones(9)), ""),
    (BAD, lambda: kme.abc.soft_abc_weights([0.0, 1.0], 0.0), "`epsilon` must be positive"),
    ("outliers", lambda: kme.abc.rejection_weights([2.0, 3.0], threshold=1.0), "discrepancy is 2, the threshold 1"),
    (BAD, lambda: kme.abc.rejection_weights([1.0], quantile=[0.1, 0.2]), "`quantile` must be one number"),
    (BAD, lambda: kme.abc.rejection_weights([1.0], threshold=NAN), "`threshold` must be finite; got nan"),
    ("wrong type", lambda: kme.abc.rejection_weights([1.0], quantile="half"), "`quantile` must hold real numbers"),
    ("NaN", lambda: kme.abc.effective_sample_size([1.0, NAN]), "`weights` has 1 entries .*what they were made of"),
    ("NaN", lambda: kme.abc.out_of_distribution_check(np.array([NAN, 1.0]), np.eye(2)), "`to_observation` has 1 ent"),
    ("m = 1", lambda: kme.abc.out_of_distribution_check([1.0], np.eye(1)), r"k from 2 to m; got \(1,\) and \(1, 1\)"),
    ("NaN", lambda: learnt_summary(spoilt(ROWS_OF_SETS, NAN)), "`x` has 20 entries"),
    ("NaN", lambda: learnt_summary(y=NAN * ROWS_OF_SETS[:1]), "`y` has 20 entries"),
    ("constant", lambda: learnt_summary(0 * ROWS_OF_SETS), ""),
    ("outliers", lambda: learnt_summary(spoilt(ROWS_OF_SETS, 1e30)), ""),
    ("wrong shape", lambda: learnt_summary(targets=THETA[:, 0]), r"`targets` must have shape \(points, dim\)"),
    ("m = 0", lambda: learnt_summary(ROWS_OF_SETS[:0], THETA[:0]), "`targets` must have at least 1 rows"),
    (BAD, lambda: learnt_summary(regularisation=1e-30), "Increase the regularisation"),
    ("wrong type", lambda: learnt_summary(kernel="sets"), "`kernel` must be a kernel, such as .*; got .sets"),
    ("wrong shape", lambda: learnt_summary(ROWS_OF_SETS[:4]), "sets; got 4 and 40"),
    ("NaN", lambda: ridge_weights(spoilt(X, NAN)), "`inputs` has 1 entries"),
    ("outliers", lambda: ridge_weights(t=np.array([[1e30]])), ""),
    ("wrong shape", lambda: ridge_weights(t=np.zeros((3, 2))), r"`t` must have \d columns; got shape \(3, 2\)"),
    ("m = 0", lambda: ridge_weights(X[:0]), "`points` must hold at least one point"),
    (BAD, lambda: ridge_weights(regularisation=0.0), "`regularisation` must be positive"),
    (BAD, lambda: ridge_weights(tolerance=2.0), "`tolerance` must be below 1"),
    ("NaN", lambda: recursive_step(y=np.array([NAN])), "`observed` has 1 entries"),
    ("constant", lambda: recursive_step(0 * THETA), "All points of `x` coincide"),
    ("wrong shape", lambda: recursive_step(y=np.zeros(3)), "must have . columns"),
    ("wrong shape", lambda: recursive_step(x=X[:30]), "as many rows; got 40 and 30"),
    ("m = 0", lambda: recursive_step(number=0), "`number` must be at least 1; got 0"),
    ("m = 1", lambda: recursive_step(THETA[:1], X[:1]), "`theta` must have at least 2 rows"),
    ("wrong type", lambda: recursive_step(kernel=None), "`kernel` must be a kernel on outputs"),
    ("wrong shape", lambda: synthetic(value=np.zeros(3)), r"`value` must be \(..., \*\(1,\)\), .* got \(3,\)"),
    ("wrong shape", lambda: synthetic(value=np.array(0.0)), r"as simulated; got \(\)"),
    ("NaN", lambda: synthetic(value=np.array([NAN])), "`value` has 1 entries that are not finite"),
    ("constant", lambda: synthetic(constant_beside, np.zeros(2)), "numbers of the event are constant"),
    ("duplicates", lambda: synthetic(twice, np.zeros(2)), "numbers of the event are constant, follow from one another"),
]:
    add("weighted", kind, call, raises)


# --- posterior bootstrap


def npl(model=IID, x=DATA, loss=None, **settings):
    settings = dict(num_samples=8, num_nodes=32) | settings
    engine = kme.PosteriorBootstrap(model, loss, **settings)
    engine.run(KEY, x)
    return engine.get_samples()


PREDICTS = kernels.CrossValidation(KEY)


def raising_loss():
    return kme.MMD(RAISING)


add("bootstrap", "NaN", lambda: npl(x=spoilt(DATA, NAN)), "1 of the 20 points of the observation at 'x' have")
add("bootstrap", "infinite", lambda: npl(x=spoilt(DATA, INF)), "has 1 entries that are not finite")
add("bootstrap", "duplicates", lambda: npl(x=np.repeat(DATA[:4], 5)), slow=True)
add("bootstrap", "outliers", lambda: npl(x=spoilt(DATA, 1e30)), slow=True)
add("bootstrap", "wrong shape", lambda: npl(x=np.zeros((5, 3))), "shape")
add("bootstrap", "wrong dtype", lambda: npl(x=np.array(["a"] * 5)), "at 'x' has dtype <U1; it must hold numbers")
add("bootstrap", "m = 0", lambda: npl(x=np.zeros(0)), "there is nothing to observe")
add("bootstrap", "m = 1", lambda: npl(x=np.zeros(1)), "at least two")
add("bootstrap", "m = 2", lambda: npl(num_samples=0), "`num_samples` must be at least 1; got 0")
add("bootstrap", BAD, lambda: npl(concentration=-1.0), "`concentration` must be finite and not negative")
add("bootstrap", "raising", lambda: npl(loss=raising_loss()), "kernel `raising_kernel` failed .*no kernel")
add("bootstrap", "hanging", lambda: npl(num_nodes=0), "`num_nodes` must be at least 32; got 0")
add("bootstrap", "wrongly shaped", lambda: npl(model=plated(shifted)), "shape")
add("bootstrap", "bad prior", lambda: npl(model=plated(scalar, dist.Bernoulli(0.5))), "discrete")
add("bootstrap", BAD, lambda: npl(num_nodes=100), "`num_nodes` must be a power of two")
add("bootstrap", BAD, lambda: npl(prior_weight=-1.0), "`prior_weight` must be finite and not negative")
add("bootstrap", BAD, lambda: npl(prior_draws=9), "`prior_draws` does nothing")
add("bootstrap", BAD, lambda: npl(loss=kme.MMD(kernels.Linear(1.0))), "`kernel` must be bounded")
add("bootstrap", BAD, lambda: npl(loss=kme.MMD(WIDE, length_scale=PREDICTS)), "Give `kernel` or `length_scale`")
add("bootstrap", BAD, lambda: npl(loss=kme.MMD(length_scale=PREDICTS)), "asks what predicts the parameters best")
add("bootstrap", BAD, lambda: npl(centering="prior"), "`centering` must be")
add("bootstrap", "NaN", lambda: npl(model=plated(scalar_broken)), "finite", slow=True)
add("bootstrap", "wrong type", lambda: npl(loss="mmd"), "`loss` must be")


# --- kernels, embeddings, discrepancies

POINTS, OTHERS = RNG.normal(size=(6, 2)), RNG.normal(size=(5, 2))
HOST = kernels.FromCallable(raising_kernel, host=True)
mmd = partial(kme.squared_mmd, kernels.Gaussian(1.0))
add("functions", "NaN", lambda: mmd(spoilt(POINTS, NAN), OTHERS), "`x` has 2 entries that are not finite")
add("functions", "infinite", lambda: kme.embeddings.MeanEmbedding(WIDE, spoilt(POINTS, INF)), "`points` has 2 entries")
add("functions", "constant", lambda: kernels.median_heuristic(np.ones((5, 2))), "All points of `x` coincide")
add("functions", "duplicates", lambda: mmd(POINTS[[0] * 6], OTHERS[[0] * 5]))
add("functions", "outliers", lambda: mmd(spoilt(POINTS, 1e30), OTHERS))
add("functions", "wrong shape", lambda: mmd(POINTS, OTHERS[:, :1]), r"`y` must have 2 columns; got shape \(5, 1\)")
add("functions", "wrong dtype", lambda: mmd(POINTS.astype("U9"), OTHERS), "`x` must hold real numbers; got dtype <U9")
add("functions", "m = 0", lambda: mmd(POINTS[:0], OTHERS), "`x` must have at least 2 points")
add("functions", "m = 1", lambda: mmd(POINTS[:1], OTHERS), "`x` must have at least 2 points")
add("functions", "m = 2", lambda: mmd(POINTS[:2], OTHERS, x_weights=[1.0, 0.0]), "divides by zero")
add("functions", BAD, lambda: kernels.Gaussian(-1.0), "`length_scale` must be positive")
add("functions", "raising", lambda: RAISING.gram(POINTS), "`raising_kernel` failed")
add("functions", "hanging", lambda: kme.embeddings.hsic(WIDE, WIDE, POINTS, OTHERS), "at least 2 pairs; got 6 and 5")
add("functions", "raising", lambda: HOST.gram(POINTS), "`raising_kernel` failed .*no kernel")
add("functions", "wrongly shaped", lambda: kernels.FromCallable(lambda a, b: a + b).gram(POINTS), "return a scalar")
add("functions", "bad prior", lambda: kme.embeddings.measures.Normal(np.zeros(2), -np.eye(2)), "`covariance` must be")
add("functions", "NaN", lambda: mmd(POINTS, OTHERS, x_weights=np.full(6, NAN)), "`x_weights` must sum to one")
add("functions", "NaN", lambda: kme.herd(WIDE, np.array([NAN, 0.0]), POINTS[:2], 3), "`embedding_values` has 1 entries")
add("functions", "NaN", lambda: kme.mmd_test(KEY, WIDE, spoilt(POINTS, NAN), OTHERS), "`x` has 2 entries")
add("functions", "NaN", lambda: kme.embeddings.hsic(WIDE, WIDE, POINTS, spoilt(POINTS, NAN)), "`y` has 2 entries")
add("functions", "NaN", lambda: kernels.median_heuristic(spoilt(POINTS, NAN)), "`x` has 2 entries")
add("functions", BAD, lambda: kernels.EmpiricalMeasure(WIDE, 0.0), "`length_scale` must be positive")
add("functions", "m = 0", lambda: kme.herd(WIDE, np.zeros(2), POINTS[:2], 0), "`num_samples` must be at least 1; got 0")
add("functions", "wrong shape", lambda: kme.embeddings.MeanEmbedding(WIDE, POINTS, np.ones(3)), r"shape \(6,\)")


# --- diagnostics


def foreign(x=X, y=X[0]):
    return diagnostics.misspecification_test(x, y).p_value


def run_rejection(model=CONJUGATE, x=X[0]):
    engine = kme.RejectionABC(model, simulations=KEPT, quantile=0.5, num_samples=20)
    engine.run(KEY, x=x)
    return engine


def calibrated(**settings):
    found = diagnostics.calibrate(KEY, run_rejection(), **({"progress_bar": False} | settings))
    return found.p_value


def looked_up(model, samples):
    return kme.mcmc.check_surrogate(model, samples, x=X[0])


SURROGATE = handlers.surrogate(CONJUGATE, {"x": lambda theta: dist.Normal(theta[..., None], 1.0).to_event(1)})
FRESH = kme.KELFI(CONJUGATE)
add("diagnostics", "NaN", lambda: foreign(spoilt(X, NAN)), "`x` has 1 entries that are not finite")
add("diagnostics", "infinite", lambda: foreign(y=np.array([INF])), "`y` has 1 entries that are not finite")
add("diagnostics", "constant", lambda: foreign(np.ones((40, 1))), "statistics are constant over the 40 simulations")
add("diagnostics", "duplicates", lambda: foreign(np.repeat(X[:4], 10, 0)))
add("diagnostics", "random key", lambda: foreign(KEY), "`x` must hold real numbers; got dtype key")
add("diagnostics", "outliers", lambda: foreign(spoilt(X, 1e30)))
add("diagnostics", "wrong shape", lambda: foreign(y=np.zeros(3)), r"got shapes \(40, 1\) and \(3,\)")
add("diagnostics", "wrong dtype", lambda: foreign(X.astype("U9")), "`x` must hold real numbers; got dtype <U9")
add("diagnostics", "m = 0", lambda: foreign(X[:0]), "more than 5 rows")
add("diagnostics", "m = 1", lambda: calibrated(num_datasets=1), "`num_datasets` must be at least 2; got 1")
add("diagnostics", "m = 2", lambda: calibrated(num_draws=0), "`num_draws` must be at least 1; got 0")
add("diagnostics", BAD, lambda: kme.diagnostics.calibrate_weight(kme.PosteriorBootstrap(IID), level=2.0), "`level`")
add("diagnostics", "raising", lambda: diagnostics.predictive_check(KEY, FRESH), "should be called first")
add("diagnostics", "wrongly shaped", lambda: calibrated(arguments=lambda x: x["x"]), "`arguments.outputs.` must be")
add("diagnostics", "bad prior", lambda: looked_up(SURROGATE, {"theta": np.zeros(3)}), "has a learnt likelihood")
add("diagnostics", "m = 0", lambda: diagnostics.predictive_check(KEY, run_rejection(), 0), "`num_draws` must be")
add("diagnostics", "m = 0", lambda: looked_up(SURROGATE, {"theta": np.zeros(0)}), "`samples` must hold at least one")
add("diagnostics", "wrong type", lambda: diagnostics.calibrate(KEY, SURROGATE), "`engine` must be of the kind Engine")


# --- handlers


def density(model, likelihoods, x=X[0]):
    smodel = handlers.surrogate(model, likelihoods)
    return numpyro.infer.util.log_density(smodel, (), {"x": x}, {"theta": jnp.asarray(0.1)})[0]


def good(theta):
    return dist.Normal(theta[..., None], 1.0).to_event(1)


def careless(rng_key, theta):
    return theta + jax.random.normal(rng_key) + jax.random.uniform(rng_key)


def robust(model=IID, x=DATA, loss=None, weight=1.0, noise=None, **settings):
    noise = kme.CommonNoise(16) if noise is None else noise
    gmodel = handlers.generalized_bayes(model, loss, weight=weight, noise=noise, **settings)
    return numpyro.infer.util.log_density(gmodel, (x,), {}, {"theta": jnp.asarray(0.1)})[0]


def small(x=X[0]):
    return density(CONJUGATE, {"x": fitted()}, x)


add("handlers", "NaN", lambda: small(np.array([NAN])), "All 1 entries of the observation are NaN")
add("handlers", "infinite", lambda: robust(x=spoilt(DATA, INF)), "has 1 entries that are not finite")
add("handlers", "duplicates", lambda: robust(x=np.repeat(DATA[:4], 5)), slow=True)
add("handlers", "outliers", lambda: small(np.array([1e30])), warns="far outside all simulations")
add("handlers", "wrong shape", lambda: density(CONJUGATE, {"x": lambda t: dist.Normal(t, 1.0)}), "has event shape")
add(
    "handlers",
    "wrong dtype",
    lambda: density(CONJUGATE, {"x": lambda t: 3.0}),
    "must be a distribution of NumPyro",
)
add("handlers", "m = 0", lambda: handlers.surrogate(CONJUGATE, {}), "`likelihoods` must be a dictionary")
add("handlers", "m = 1", lambda: robust(x=np.zeros(1)), "at least two data points")
add("handlers", "m = 2", lambda: kme.CommonNoise(1), "`num_simulations` must be at least 2; got 1")
add("handlers", BAD, lambda: robust(weight=-1.0), "`weight` must be positive")
add("handlers", "hanging", lambda: density(CONJUGATE, {"z": good}), r"without a likelihood: add 'x'|names \['z'\]")
add("handlers", "wrongly shaped", lambda: robust(model=plated(shifted)), "shape")
add("handlers", "bad prior", lambda: robust(model=given(scalar), x=np.array(1.0)), "must stand in one plate")
add("handlers", "wrong type", lambda: robust(noise="fresh"), "`noise` must be CommonNoise")
FEW = kme.LatentNoise(16)
add("handlers", BAD, lambda: robust(plated(careless), noise=FEW), "`careless` is needed as numbers. Declare it")
add("handlers", "wrong type", lambda: robust(loss="mmd"), "`loss` must be")
