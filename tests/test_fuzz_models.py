"""Two of the random models of `fuzz_models`."""

import pytest
from fuzz_models import outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_a_random_model_is_right_or_refused(seed):
    found = outcome(seed)
    assert found["outcome"] in ("ok", "refused", "warned"), found
