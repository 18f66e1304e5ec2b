"""64 bits for the tests that ask for them by `@pytest.mark.x64`, their fixtures included, and for no other.

A module that asks as a whole, by `pytestmark = pytest.mark.x64`, is imported in 64 bits too: what it makes for its
tests is made so. And which products of matrices a GPU or TPU would compute with rounded factors.
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


def rounded_products(function, *args):
    """Products of float32 matrices, within all that a function does, for which JAX was not told to keep all bits."""
    with jax.enable_x64(False):
        return list(_rounded(jax.make_jaxpr(function)(*args).jaxpr))


def _rounded(jaxpr):
    for eqn in jaxpr.eqns:
        product = eqn.primitive.name == "dot_general" and eqn.outvars[0].aval.dtype == "float32"
        if product and eqn.params["precision"] != (jax.lax.Precision.HIGHEST,) * 2:
            yield str(eqn)
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(value, "eqns"):  # of a jaxpr, closed or not
                yield from _rounded(value)
