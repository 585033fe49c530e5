"""Problems for plans, by sizes alone."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ringmpi import Mask
from ringmpi.core.problem import pose_problem
from ringmpi.core.sharding import shardings_by_name

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Shape:
    """An array that is not there."""

    shape: tuple[int, ...]
    dtype: np.dtype


def problem(length, ranks, *, mask=None, sharding="contiguous", schedule="ring", heads=(1, 1, 64), dtype=BFLOAT16):
    """`length`: positions, or (queries, keys). `heads`: query heads, key heads, head_dim."""
    query_length, key_length = (length, length) if isinstance(length, int) else length
    mask = mask if mask is not None else Mask.causal()
    query_heads, key_heads, dim = heads
    arrays = [Shape((query_heads, query_length, dim), np.dtype(dtype))]
    arrays += [Shape((key_heads, key_length, dim), np.dtype(dtype))] * 2
    queries, keys = shardings_by_name(sharding, mask, query_length, key_length, ranks)
    return pose_problem(arrays, mask=mask, queries=queries, keys=keys, schedule=schedule)
