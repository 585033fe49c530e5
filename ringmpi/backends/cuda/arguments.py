"""What the kernels are handed, field by field as in kernels/problem.cuh: NumPy records, passed by value."""

from __future__ import annotations

import numpy as np

_POINTER = np.uint64

ARRAY = np.dtype([("data", _POINTER), ("stride", np.int64, 3)], align=True)
WORK = np.dtype([(name, _POINTER) for name in ("items", "list", "first", "order")], align=True)
SCORING = np.dtype(
    [
        ("scale", np.float64),
        ("softcap", np.float64),
        ("slopes", _POINTER),
        ("seed", np.uint64),
        ("dropout_factor", np.float64),
        ("least", np.uint32),
    ],
    align=True,
)
PROBLEM = np.dtype(
    [
        *((name, ARRAY) for name in "qkv"),
        ("work", WORK),
        ("scoring", SCORING),
        ("attended", _POINTER),
        *((name, np.int64) for name in ("queries", "keys")),
        *((name, np.int32) for name in ("batch", "query_heads", "key_heads", "head_dim", "value_dim", "finite")),
    ],
    align=True,
)
FORWARD = np.dtype(
    [("problem", PROBLEM), *((name, _POINTER) for name in ("row_max", "row_sum", "weighted_sum"))], align=True
)
BACKWARD = np.dtype(
    [
        ("problem", PROBLEM),
        ("grad_output", ARRAY),
        *((name, _POINTER) for name in ("log_sum_exp", "delta", "inner", "outer", "slope")),
        ("by_key", np.int32),
    ],
    align=True,
)
