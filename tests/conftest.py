"""Tests run as users run: JAX's defaults, float32, full optimisation, asynchronous dispatch.

What users do not have is strictness: rank promotion raises, and pyproject.toml turns warnings into errors. A test that
needs 64 bits for its oracle says so with `@pytest.mark.x64`. What one test compiled serves the others, in processes of
their own too, of this run and of the next (.pytest_cache/xla; delete it freely).
"""

import gc
import os
from pathlib import Path

os.environ |= {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # JAX 0.9 lists the processor's features for each program from the cache
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".pytest_cache" / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
if "PYTEST_XDIST_WORKER" in os.environ:
    # workers share the processor, and the threads of several OpenBLAS take longer to wait for each other than they save
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest
from precision import pytest_make_collect_report, pytest_runtest_setup  # noqa: F401

jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_finish():
    """Look for garbage seldom, and not in what the modules define: a tenth of the time went there."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Let go of compiled programs between modules once they fill 5 GB; a whole run came to 6 GB for each worker."""
    yield
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 5e9:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed; tests must pass with any other."""
    return np.random.default_rng(0)


@pytest.fixture
def programs():
    """Names of the programs that are compiled from now on."""
    names = []

    def count(name, seconds, fun_name="", **more):
        if name.endswith("backend_compile_duration"):
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(count)
    return names
