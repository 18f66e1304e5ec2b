"""Strict mode: float64, no silent rank promotion; pyproject.toml turns warnings into errors.

Compilation dominates the tests, so that XLA optimises little, each worker computes in one thread, in order, and what one test
compiled serves the others, in processes of their own too, of this run and of the next (.pytest_cache/xla; delete it freely).
"""

import gc
import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ |= {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # JAX 0.9 lists the processor's features for each program from the cache
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".pytest_cache" / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

import jax
import numpy as np
import pytest

from numpyro_kme.engines import _sampling

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_cpu_enable_async_dispatch", False)
_sampling.PARTICLES = 2000
"""Fewer than the draws that are asked for; examples and documents are tested with all, in processes of their own."""
gc.freeze()
gc.set_threshold(200_000, 20, 100)
"""Tracing makes millions of short-lived objects; looking for cycles among them took a tenth of the time."""


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Let go of compiled programs between modules once they fill 3 GB; a whole run came to 6 GB for each worker."""
    yield
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 3e9:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed; tests must pass with any other."""
    return np.random.default_rng(0)
