"""Strict mode: float64, no silent rank promotion; pyproject.toml turns warnings into errors.

Compilation dominates the tests, so that XLA optimises little, and each worker computes in one thread.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed; tests must pass with any other."""
    return np.random.default_rng(0)
