"""Bytes of a backward pass: which side should travel.

Either keys travel, with their gradients behind them, or queries do, with theirs (travel.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.problem import Problem
from ringmpi.core.shapes import HeadShape


@dataclass(frozen=True)
class BackwardHop:
    """Bytes of one position in one hop, over all heads. Gradients travel in the accumulation dtype.

    forward : keys and values
    keys_travel : keys, values and their gradients
    queries_travel : queries, the output's gradients, the queries' gradients, log_sum_exp and one number more a row
    """

    forward: int
    keys_travel: int
    queries_travel: int


def backward_hop(heads: HeadShape, dtype: np.dtype) -> BackwardHop:
    """The BackwardHop of some heads.

    Source
    ------
    Keys travel: Liu, Zaharia, Abbeel 2023, appendix A. Rows: FlashAttention-2 (Dao 2023), Algorithm 2.
    """
    item, wide = dtype.itemsize, accumulate_dtype(dtype).itemsize
    both = heads.head_dim + heads.value_dim
    return BackwardHop(
        forward=heads.batch * heads.key_heads * both * item,
        keys_travel=heads.batch * heads.key_heads * both * (item + wide),
        queries_travel=heads.query_slabs * (both * item + (heads.head_dim + 2) * wide),
    )


def backward_bytes(problem: Problem) -> tuple[int, int]:
    """Bytes that all ranks send in a forward and in a backward pass with a full mask, keys travelling.

    Keys and values make P - 1 hops either way, gradients P: the last one brings them home.
    """
    hop = backward_hop(problem.heads, problem.dtype)
    size, keys = problem.size, problem.keys.length
    gradients = hop.keys_travel - hop.forward
    hops_home = size if size > 1 else 0
    return (size - 1) * keys * hop.forward, (size - 1) * keys * hop.forward + hops_home * keys * gradients
