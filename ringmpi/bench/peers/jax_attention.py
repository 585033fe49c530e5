"""JAX: jax.nn.dot_product_attention, compiled."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ringmpi.bench.peers import Array, Prepared, refuse
from ringmpi.bench.questions import Question


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """XLA takes as many threads as there are CPUs: this process is bound to as many as it may have."""
    refuse(softcap=question.softcap, sinks=question.sink_logits, float64=question.dtype == "float64")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import jax
    import jax.numpy as jnp

    def layout(array: Array) -> Any:  # [batch, length, heads, head_dim] is its own
        return jnp.asarray(np.ascontiguousarray(array.swapaxes(0, 1))[None], question.dtype)

    q, k, v, upstream = map(layout, (question.q, question.k, question.v, question.grad_output))
    options: dict[str, Any] = {"is_causal": question.mask == "causal"}
    kind, _, width = question.mask.partition(":")
    if kind == "window":
        options["local_window_size"] = (int(width), 0)
    elif kind not in ("full", "causal"):
        options["mask"] = jnp.asarray(question.allowed())[None, None]
    if question.alibi_slopes is not None:
        queries, keys = question.lengths
        distance = np.abs(np.arange(queries)[:, None] - np.arange(keys)[None, :])
        options["bias"] = jnp.asarray(-question.alibi_slopes[None, :, None, None] * distance, question.dtype)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, **options)

    about = {"jax": jax.__version__}
    if not backward:
        forward = jax.jit(attend)
        return Prepared(lambda: jax.block_until_ready(forward(q, k, v)), lambda out: [_array(out)], about)
    _, pull = jax.vjp(jax.jit(attend), q, k, v)  # holds what the forward pass has kept
    backward_alone = jax.jit(lambda pull, upstream: pull(upstream))
    return Prepared(
        lambda: jax.block_until_ready(backward_alone(pull, upstream)),
        lambda grads: [_array(grad) for grad in grads],
        about,
    )


def _array(result: Any) -> Array:
    array: Array = np.asarray(result, np.float32)[0].swapaxes(0, 1)
    return array
