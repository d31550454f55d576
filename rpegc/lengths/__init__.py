"""Measured response lengths to the length quantiles of a workload: reading, fitting, reporting."""

from rpegc.lengths.fit import fit_quantiles, quantile_error
from rpegc.lengths.read import read_lengths

__all__ = ["fit_quantiles", "quantile_error", "read_lengths"]
