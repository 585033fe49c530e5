"""Names of the dtypes that options take."""

from __future__ import annotations

DTYPES = ("float16", "bfloat16", "float32", "float64")  # those of core/dtypes.py, which would import NumPy for --help
