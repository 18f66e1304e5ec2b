"""64 bits for the tests that ask for them by `@pytest.mark.x64`, their fixtures included, and for no other.

A module that asks as a whole, by `pytestmark = pytest.mark.x64`, is imported in 64 bits too: what it makes for its
tests is made so.
"""

import jax
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before any fixture of the test is made."""
    jax.config.update("jax_enable_x64", item.get_closest_marker("x64") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """While a module is imported."""
    whole = isinstance(collector, pytest.Module) and "\npytestmark = pytest.mark.x64" in collector.path.read_text()
    with jax.enable_x64(whole):
        return (yield)
