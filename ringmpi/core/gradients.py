"""What the backward pass starts from, and what it gives.

With p_ij = e^(s_ij - log_sum_exp_i), dP = dO V^T and delta_i = sum_c dO_ic O_ic - d log_sum_exp_i:

    dS = p (dP - delta)      dQ = scale dS K      dK = scale dS^T Q      dV = p^T dO

With dropout dP = f (dO V^T) and dV = (f p)^T dO, f being 0 or 1 / (1 - dropout) (core/dropout.py); delta is as it was.

Probabilities are made again, tile by tile, from the log_sum_exp that the forward pass has kept (Dao et al. 2022,
FlashAttention, appendix B; delta: eq. 4 there).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.core.partial import Array


@dataclass(frozen=True)
class Saved:
    """What a row of queries brings along.

    grad_output  [batch, query_heads, queries, value_dim]  input dtype
    log_sum_exp  [batch, query_heads, queries]             accumulation dtype, natural log; -inf: no key
    delta        [batch, query_heads, queries]             accumulation dtype
    """

    grad_output: Array
    log_sum_exp: Array
    delta: Array


@dataclass(frozen=True)
class Gradients:
    """Sums that the kernels add to, in the accumulation dtype. None: not wanted, and not computed.

    query  [batch, query_heads, queries, head_dim]
    key    [batch, key_heads, keys, head_dim]
    value  [batch, key_heads, keys, value_dim]
    slope  [query_heads]: of the ALiBi slopes; added to where `query` or `key` is wanted
    """

    query: Array | None
    key: Array | None
    value: Array | None
    slope: Array


def delta_of(grad_output: Array, output: Array, grad_log_sum_exp: Array | None, dtype: np.dtype) -> Array:
    """Row sums of dO O, less the gradient of log_sum_exp, [batch, heads, queries] in `dtype`."""
    delta: Array = np.empty(output.shape[:-1], dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # inf in the input shows in the result
        for head in np.ndindex(output.shape[:2]):  # one at a time: wide copies of all would be the peak of a pass
            upstream, rows = (array[head].astype(dtype, copy=False) for array in (grad_output, output))
            np.einsum("ic,ic->i", upstream, rows, out=delta[head])
        return delta if grad_log_sum_exp is None else delta - grad_log_sum_exp.astype(dtype, copy=False)


def sink_gradient(sink_logits: Array, log_sum_exp: Array, delta: Array) -> Array:
    """Gradient of the sink logits from some rows [batch, query_heads, queries] of `Saved` -> [query_heads].

    A sink is a key with value 0, so dP = 0 and dS = -p delta.
    """
    seen = ~np.isneginf(log_sum_exp)
    weight = np.where(seen, np.exp(sink_logits[None, :, None] - np.where(seen, log_sum_exp, 0)), 0)
    gradient: Array = -(weight * np.where(seen, delta, 0)).sum((0, 2))
    return gradient
