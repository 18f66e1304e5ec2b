"""Bad inputs: each of a table gets a sentence of ours that names it, or a finite answer."""

import re
import traceback
import warnings
from pathlib import Path

import bad_inputs
import jax
import numpy as np
import pytest

import numpyro_kme

PACKAGE = str(Path(numpyro_kme.__file__).parent)
NAMED = (ValueError, TypeError, RuntimeError, FloatingPointError, np.linalg.LinAlgError)


def is_ours(error: Exception) -> bool:
    """Whether an exception was raised by a line of the package, in words."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return isinstance(error, NAMED) and last.filename.startswith(PACKAGE) and len(str(error)) > 20


def all_finite(answer) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(answer)]
    return all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind in "fc")


def names(row):
    return f"{row.place}-{row.kind}"


ROWS = [pytest.param(row, marks=[pytest.mark.slow] if row.slow else [], id=names(row)) for row in bad_inputs.ROWS]


@pytest.mark.parametrize("row", ROWS)
def test_bad_input(row):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = row.call()
        except Exception as error:
            assert is_ours(error), f"{type(error).__name__} of another package: {error}"
            assert row.raises and re.search(row.raises, str(error), re.DOTALL), f"it says: {error}"
            return
    assert not row.raises, f"no exception; answer {answer}"
    assert all_finite(answer)
    said = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    assert not row.warns or any(re.search(row.warns, sentence) for sentence in said), said
