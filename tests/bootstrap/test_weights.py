"""Random weights of the data and points of a centering measure."""

import jax
import numpy as np
import pytest

from numpyro_kme.bootstrap import DirichletProcess
from numpyro_kme.bootstrap.weights import PILOT, draw_reweightings, with_full_data

X = np.linspace(0.0, 1.0, 7)


def uniform(key, num):
    return jax.random.uniform(key, (num,))


def test_weights_have_the_moments_of_a_dirichlet():
    """`E w_i = 1 / n`, `Var w_i = (n - 1) / (n^2 (n + 1))`."""
    n, num = len(X), 4000
    w = draw_reweightings(jax.random.key(0), X, DirichletProcess(), np.arange(num)).weights
    variance = (n - 1) / (n**2 * (n + 1))
    np.testing.assert_allclose(w.sum(axis=1), 1.0, rtol=1e-12)
    assert np.abs(w.mean(axis=0) - 1.0 / n).max() < 5.0 * np.sqrt(variance / num)
    assert np.abs(w.var(axis=0) / variance - 1.0).max() < 0.2


def test_a_prior_guess_takes_its_share_of_the_weight():
    """`alpha / (n + alpha)` of it in the mean."""
    process = DirichletProcess(3.0, uniform, truncation=5)
    drawn = draw_reweightings(jax.random.key(1), X, process, np.arange(2000))
    assert drawn.weights.shape == (2000, 12) and drawn.extra.shape == (2000, 5)
    share = drawn.weights[:, 7:].sum(axis=1)
    assert abs(share.mean() - 0.3) < 5.0 * share.std() / np.sqrt(2000)
    assert len(np.unique(drawn.extra)) > 9_900  # float32


def test_the_weights_of_a_replicate_depend_on_its_number_alone():
    key, process = jax.random.key(2), DirichletProcess(1.0, uniform, truncation=3)
    many, few = (draw_reweightings(key, X, process, ids) for ids in (np.arange(100), np.array([70, PILOT])))
    np.testing.assert_array_equal(many.weights[70], few.weights[0])
    np.testing.assert_array_equal(many.extra[70], few.extra[0])
    assert not np.isin(few.weights[1], many.weights).any()


def test_the_data_as_they_are_come_first():
    drawn = draw_reweightings(jax.random.key(2), X, DirichletProcess(1.0, uniform, truncation=3), np.arange(4))
    whole = with_full_data(drawn, 7)
    np.testing.assert_allclose(whole.weights[0], [1 / 7] * 7 + [0.0] * 3)
    np.testing.assert_array_equal(whole.weights[1:], drawn.weights)
    np.testing.assert_array_equal(whole.extra[1:], drawn.extra)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(concentration=-1.0), "`concentration` must be finite and not negative; got -1.0"),
        (dict(concentration=1.0), "`centering` must be given when `concentration` is positive"),
        (dict(truncation=0), "`truncation` must be at least 1"),
    ],
)
def test_a_process_that_makes_no_sense_raises_an_error(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        DirichletProcess(**arguments)


def test_centering_points_of_another_shape_raise_an_error():
    process = DirichletProcess(1.0, lambda key, num: jax.random.uniform(key, (num, 2)), truncation=3)
    with pytest.raises(ValueError, match=r"`centering` drew points of shape \[\(3, 2\)\] for 3 draws"):
        draw_reweightings(jax.random.key(0), X, process, np.arange(2))
