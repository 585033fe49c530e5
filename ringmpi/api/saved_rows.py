"""What rows bring along from the forward pass to the backward one, checked; and the gradient of the sinks from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.api.arguments import batched, check_like, checked_arrays
from ringmpi.api.attention import Attention
from ringmpi.api.device_arrays import to_host
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Saved, delta_of, sink_gradient
from ringmpi.core.problem import Problem
from ringmpi.core.schedule import Piece
from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError

Array = NDArray[Any]


def saved_rows(
    problem: Problem, arrays: list[Array], grad_output: Array, out: Attention, grad_log_sum_exp: Array | None
) -> Saved:
    """Of all rows, with a batch axis; `arrays` are query, key and value.

    Raises
    ------
    ShapeError
        If `out` is not what the forward call gave for this problem, or an array does not fit to it.
    """
    if not isinstance(out, Attention):
        raise ShapeError(f"out is a {type(out).__name__}; give the Attention that the forward call returned, whole.")
    if out.meaning != problem.meaning():
        raise ShapeError(
            "out was computed with a different mask, scale, softcap, sinks, slopes, dropout, seed, dtype or heads; "
            "give the backward call the options of the forward call."
        )
    shape = (*arrays[0].shape[:-1], problem.heads.value_dim)
    (upstream,) = checked_arrays(grad_output=grad_output)
    output, log_sum_exp = to_host("out.output", out.output), to_host("out.log_sum_exp", out.log_sum_exp)
    grad_log_sum_exp = to_host("grad_log_sum_exp", grad_log_sum_exp)
    check_like("grad_output", upstream, shape)
    check_like("out.output", output, shape)
    check_like("out.log_sum_exp", log_sum_exp, shape[:-1])
    if grad_log_sum_exp is not None:
        check_like("grad_log_sum_exp", grad_log_sum_exp, shape[:-1])
    wide = accumulate_dtype(problem.dtype)
    # contiguous: for other strides the row sums would have other bits
    upstream, output = map(np.ascontiguousarray, batched([upstream.astype(problem.dtype, copy=False), output]))
    log_sum_exp = np.ascontiguousarray(log_sum_exp, wide).reshape(upstream.shape[:3])
    extra = None if grad_log_sum_exp is None else grad_log_sum_exp.reshape(log_sum_exp.shape)
    return Saved(upstream, log_sum_exp, delta_of(upstream, output, extra, wide))


def select_saved(queries: Sharding, saved: Saved, rank: int) -> Saved:
    """The rows of one rank, of those of all."""
    log_sum_exp, delta = (queries.select(rows[..., None], rank)[..., 0] for rows in (saved.log_sum_exp, saved.delta))
    return Saved(queries.select(saved.grad_output, rank), log_sum_exp, delta)


def sink_sums(problem: Problem, rank: int, saved: Saved) -> dict[int, Array]:
    """Piece of queries -> the gradient of the sinks from its rows, [query_heads], for the pieces of this rank.

    To be added in the order of pieces: where these are the same on any number of ranks, so are the bits.
    """
    if problem.sink_logits is None:
        return {}
    own = ((index, piece) for index, piece in enumerate(problem.query_pieces) if piece.owner == rank)
    return {
        index: sink_gradient(problem.sink_logits, _rows_of(saved.log_sum_exp, piece), _rows_of(saved.delta, piece))
        for index, piece in own
    }


def _rows_of(array: Array, piece: Piece) -> Array:
    """The rows of a piece, contiguous, so that they are summed in one way on any number of ranks."""
    return np.ascontiguousarray(np.concatenate([array[:, :, rows] for rows in piece.rows], axis=2))
