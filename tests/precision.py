"""64 bits for the tests that ask for them by `@pytest.mark.x64`, their fixtures included, and for no other."""

import jax
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before any fixture of the test is made."""
    jax.config.update("jax_enable_x64", item.get_closest_marker("x64") is not None)
