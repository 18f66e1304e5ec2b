"""Strict mode: float64, no silent rank promotion; pyproject.toml turns warnings into errors.

Compilation dominates the tests, so that XLA optimises little, each worker computes in one thread, in order, and what one test
compiled serves the others of this run and of the next (.pytest_cache/xla; delete it freely).
"""

import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed; tests must pass with any other."""
    return np.random.default_rng(0)
