"""Private names of NumPyro: where one is gone, what needs it says so, and nothing else fails."""

import jax.numpy as jnp
import numpyro
import pytest
from numpyro import primitives
from numpyro.ops import provenance

from numpyro_kme._core import compat


def outside():
    handler = numpyro.handlers.scale(scale=2.0)
    with handler, compat.outside(handler):
        return len(primitives._PYRO_STACK)


USES = {
    "_PYRO_STACK": (primitives, lambda: (outside(), compat.plate_shape()), (0, ())),
    "eval_provenance": (provenance, lambda: compat.depends_on(lambda d: d["a"], {"a": jnp.ones(()), "b": 1.0}), ("a",)),
}


@pytest.mark.parametrize("name", USES)
def test_a_name_that_is_gone_is_told(name, monkeypatch):
    owner, use, expected = USES[name]
    assert use() == expected
    with monkeypatch.context() as without:
        without.delattr(owner, name)
        with pytest.raises(NotImplementedError, match=rf"has no numpyro.*{name}, which this model needs here. Install"):
            compat.plate_shape() if name == "_PYRO_STACK" else use()
    assert use() == expected
