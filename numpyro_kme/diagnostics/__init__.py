"""Whether to trust a posterior: calibration over simulated data, predictive checks, and a test of the model itself."""

from numpyro_kme.diagnostics.calibration import Calibration, calibrate
from numpyro_kme.diagnostics.checks import Check, MisspecificationTest, check, misspecification_test
from numpyro_kme.diagnostics.comparison import Comparison, ComparisonCheck, check_comparison, compare
from numpyro_kme.diagnostics.posterior_comparison import PosteriorComparison, compare_posteriors
from numpyro_kme.diagnostics.predictive import PredictiveCheck, predictive_check
from numpyro_kme.diagnostics.weight_calibration import WeightCalibration, calibrate_weight

__all__ = ["Calibration", "Check", "Comparison", "ComparisonCheck", "MisspecificationTest", "PosteriorComparison"]
__all__ += ["PredictiveCheck", "WeightCalibration", "calibrate", "calibrate_weight", "check", "check_comparison"]
__all__ += ["compare", "compare_posteriors", "misspecification_test", "predictive_check"]
