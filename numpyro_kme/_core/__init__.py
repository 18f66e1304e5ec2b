"""What every room uses: checks, conversions, programs and keys, files, and how values print."""

from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.display import Card, is_default, listed, names_and_shapes, short, shown
from numpyro_kme._core.doors import door, frozen
from numpyro_kme._core.host import full_precision, in_jax_types, in_present_precision, numpy_function, numpy_rng
from numpyro_kme._core.programs import Program, Recomputed, child, data_of, fold_in, jitted, numbers, pieces, split
from numpyro_kme._core.saving import Saved, SavedFileError, saveable
from numpyro_kme._core.solves import Array, blocked, by_columns, median_absolute_deviation, robust_standard_deviation
