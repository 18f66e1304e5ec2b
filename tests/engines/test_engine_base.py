"""The shared part of the engines: results, the ArviZ conversion on both ArviZ lines, and BibTeX entries."""

import inspect
import re
import warnings
from dataclasses import dataclass

import jax
import numpy as np
import pytest

import numpyro_kme as kme
from numpyro_kme._core import arviz
from numpyro_kme.engines import Engine, Posterior

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az


class Known(Engine):
    """Draws from known normals: 100 draws, a scalar and a vector site."""

    def _infer(self, rng_key, args, kwargs):
        a, b = jax.random.split(rng_key)
        samples = {
            "a": np.asarray(jax.random.normal(a, (100,))),
            "b": np.asarray(jax.random.normal(b, (100, 3))) + np.arange(3.0)[None],
        }
        posterior = Posterior(
            engine="Known",
            samples=samples,
            fields={"log_weight": np.zeros(100)},
            groups={
                "prior": {"a": np.zeros((1, 7))},
                "weighted_posterior": {"a": np.zeros((1, 5)), "weight": np.full((1, 5), 0.2)},
                "observed_data": {"x": kwargs["x"]},
            },
            info={"learnt length scale": np.array([0.5, 1.25]), "sampler": "exact", "reliable": True},
        )
        return None, posterior


@pytest.fixture(scope="module")
def engine():
    engine = Known(model=lambda x: None)
    engine.run(jax.random.key(0), x=np.arange(4.0))
    return engine


def test_summary_shows_sites_and_what_was_learnt(engine, capsys):
    engine.print_summary(prob=0.5)
    printed = capsys.readouterr().out
    assert "b[2]" in printed and "learnt length scale: [0.5  1.25]" in printed and "sampler: exact" in printed
    lines = printed.splitlines()
    assert lines[3].split() == ["mean", "std", "median", "25.0%", "75.0%"]
    assert lines[1].startswith("Known: ") and "warned of: nothing" in printed
    assert engine.checks == (("warnings", 0.0, 0.0),)
    draws = engine.get_samples()["b"][:, 1]
    row = next(line for line in lines if line.split()[:1] == ["b[1]"]).split()[1:]
    expected = [draws.mean(), draws.std(ddof=1), *np.quantile(draws, [0.5, 0.25, 0.75])]
    np.testing.assert_allclose([float(number) for number in row], expected, rtol=5e-3)
    with pytest.raises(ValueError, match="`prob` must lie between 0 and 1; got 90"):
        engine.print_summary(90)


def test_an_engine_that_keeps_nothing_is_run_again_by_condition(engine):
    run = Known(model=lambda x: None)
    with pytest.raises(RuntimeError, match="should be called first"):
        run.condition(jax.random.key(1), x=np.zeros(4))
    run.run(jax.random.key(1), x=np.zeros(4))
    again = engine.condition(jax.random.key(1), x=np.zeros(4))
    np.testing.assert_array_equal(again.get_samples()["a"], run.get_samples()["a"])
    np.testing.assert_array_equal(again.groups["observed_data"]["x"], 0.0)


@pytest.mark.smoke
def test_inference_data_has_every_group_and_round_trips(engine, tmp_path):
    """The samples are one chain."""
    idata = engine.to_inference_data(dims={"b": ["species"]}, coords={"species": ("x", "y", "z")})
    np.testing.assert_array_equal(idata["posterior"]["a"].values, engine.get_samples(group_by_chain=True)["a"])
    np.testing.assert_array_equal(idata["posterior"]["a"].values, engine.get_samples()["a"][None])
    assert engine.get_extra_fields(group_by_chain=True)["log_weight"].shape == (1, 100)
    assert idata["posterior"]["b"].dims == ("chain", "draw", "species")
    np.testing.assert_array_equal(idata["posterior"]["b"].sel(species="y", draw=0), idata["posterior"]["b"][:, 0, 1])
    np.testing.assert_array_equal(idata["observed_data"]["x_dim_0"], np.arange(4))
    assert idata["observed_data"]["x"].dims == ("x_dim_0",)
    assert idata["weighted_posterior"]["weight"].shape == (1, 5)
    assert idata["posterior"].attrs["engine"] == "Known"
    path = tmp_path / "run.nc"
    idata.to_netcdf(str(path), engine="h5netcdf")
    again = az.from_netcdf(str(path))
    np.testing.assert_array_equal(again["posterior"]["b"].values, idata["posterior"]["b"].values)
    np.testing.assert_array_equal(again["weighted_posterior"]["weight"].values, np.full((1, 5), 0.2))


def test_wrong_event_names_are_explained():
    with pytest.raises(ValueError, match=r"`b` has the event shape \(2,\), and `dims` has.*one name for each"):
        arviz.to_inference_data({"posterior": {"b": np.zeros((1, 4, 2))}}, dims={"b": ["u", "v"]})
    with pytest.raises(ValueError, match=r"`coords` has 3 values for 'u', along which `b` has 2 numbers"):
        arviz.to_inference_data({"posterior": {"b": np.zeros((1, 4, 2))}}, dims={"b": ["u"]}, coords={"u": "abc"})


def test_what_a_run_found_is_no_part_of_what_an_engine_looks_like():
    """Of a user's dataclass: it is neither shown nor compared, which arrays cannot be."""

    @dataclass
    class Shown(Known):
        size: int = 3

    one, other = (Shown(print) for _ in range(2))
    one.run(jax.random.key(0), x=np.arange(4.0))
    other.run(jax.random.key(1), x=np.arange(4.0))
    assert one == other
    assert repr(one) == repr(other)
    assert "_found=" not in repr(one)


KINDS = [getattr(kme.engines, name) for name in kme.engines.__all__ if inspect.isclass(getattr(kme.engines, name))]


@pytest.mark.parametrize("kind", [k for k in KINDS if issubclass(k, Engine) and not inspect.isabstract(k)])
def test_every_engine_has_a_paper(kind):
    entry = kme.cite(kind)
    assert re.match(r"@(article|inproceedings)\{\w+,\n", entry)
    for part in ("title", "author", "year"):
        assert re.search(rf"^  {part} = \{{.+\}},?$", entry, re.MULTILINE)


def test_objects_cite_as_their_class_does_and_kelfi_says_which_form_runs():
    """A class may bring its entry; without any the package cites itself."""
    assert "Hsu" in kme.cite(kme.KELFI) and "Dellaporta" in kme.cite(kme.PosteriorBootstrap)
    published, default = (kme.cite(kme.KELFI(print, form=form)) for form in (kme.KernelMeans(), None))
    assert published == kme.cite(kme.KELFI) == kme.cite(kme.KernelMeans())
    assert default.startswith("% ResidualKernelMeans, ") and default.endswith("\n" + published)
    assert re.match(rf"@software\{{numpyro_kme,\n(.*\n)*  version = \{{{kme.__version__}\}}", kme.cite())
    entry = "@article{nobody2000,\n  title = {Nothing}\n}"
    assert kme.cite(type("Own", (kme.KernelABC,), {"paper": entry})) == entry


def test_classes_without_a_paper_are_refused():
    unknown = type("Unknown", (kme.KernelABC,), {"paper": "nobody2000"})
    for kind, paper in ((dict, None), (kme.MMD(), None), (Engine, None), (unknown, "nobody2000")):
        with pytest.raises(TypeError, match=f"`engine` must be a class with a paper.* is {paper}, neither"):
            kme.cite(kind)
