"""What depends on versions of others."""

import pytest

from numpyro_kme._core import compat


@pytest.mark.parametrize(
    "version, before, after",
    [
        ("0.10.2", {}, {"PJRT_NPROC": "8"}),
        ("0.10.2", {"PJRT_NPROC": "4"}, {"PJRT_NPROC": "4"}),
        ("0.9.2", {}, {}),
        ("0.11.0", {}, {}),
        ("1.0.10", {}, {}),
    ],
)
def test_only_jax_0_10_gets_more_threads(version, before, after):
    compat.more_threads(version, before)
    assert before == after
