"""Strict mode: float64, no silent rank promotion; pyproject.toml turns warnings into errors."""

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed; tests must pass with any other."""
    return np.random.default_rng(0)
