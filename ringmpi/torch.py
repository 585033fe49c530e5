"""Attention for PyTorch: the same functions on tensors, with gradients by autograd. Needs PyTorch (the extra "torch").

    from ringmpi.torch import ring_attention

Tensors on the CPU are read in place, as NumPy arrays. Nothing else of the package imports this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.autograd.function import once_differentiable

import ringmpi.api.attention
import ringmpi.api.backward
from ringmpi.api.attention import Attention
from ringmpi.api.backward import AttentionGradients
from ringmpi.comm.agreement import agree, together
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.masking import Mask
from ringmpi.core.sharding import Sharding
from ringmpi.errors import BackendError, ShapeError
from ringmpi.ring import Ring

Array = NDArray[Any]
Numbers: TypeAlias = torch.Tensor | ArrayLike  # one number per query head; gradients flow to tensors only
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.compiler.disable
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Numbers | None = None,
    alibi_slopes: Numbers | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    ranks: int = 1,
    sharding: str | Sharding = "zigzag",
    key_sharding: Sharding | None = None,
    schedule: str = "auto",
    travel: str = "auto",
    reproducible: bool = False,
    backend: str = "auto",
    return_log_sum_exp: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention to whole tensors, in this process: `ringmpi.attention` with gradients.

    Parameters
    ----------
    ranks : int
        Simulated ranks: what a ring of this size would compute.
    q, k, v : tensor [(batch,) heads, length, dim]
        As in `ring_attention` below, but whole.
    sink_logits, alibi_slopes, travel, return_log_sum_exp : optional
        As in `ring_attention` below; here the gradients of sink_logits and alibi_slopes are whole.
    mask, scale, softcap, dropout, seed, sharding, key_sharding, schedule, reproducible, backend : optional
        As in `ringmpi.attention`.

    Returns
    -------
    tensor, or two
        As from `ring_attention`, in the caller's order.

    Raises
    ------
    ShapeError, MaskError, BackendError
        If tensors, mask and options do not fit together; the message says what to do.
    """
    options: dict[str, Any] = {
        "mask": mask,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "seed": seed,
        "ranks": ranks,
        "sharding": sharding,
        "key_sharding": key_sharding,
        "schedule": schedule,
        "reproducible": reproducible,
        "backend": backend,
    }
    passes = _Passes(
        partial(ringmpi.api.attention.attention, **options),
        partial(ringmpi.api.backward.attention_backward, travel=travel, **options),
    )
    output, log_sum_exp = _Attend.apply(
        passes, *_checked(q, k, v, sink_logits=sink_logits, alibi_slopes=alibi_slopes, reproducible=reproducible)
    )
    return (output, log_sum_exp) if return_log_sum_exp else output


@torch.compiler.disable
def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    ring: Ring,
    sharding: Sharding,
    key_sharding: Sharding | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Numbers | None = None,
    alibi_slopes: Numbers | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    schedule: str = "auto",
    travel: str = "auto",
    reproducible: bool = False,
    backend: str = "auto",
    return_log_sum_exp: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention of this rank's queries to the keys of all ranks, with gradients. Collective, both ways.

    Every rank calls this with its own shards, and every rank calls `backward` on a loss to which its output
    contributes, even with weight 0. Gradients are those of the sum of the losses of all ranks.

    Parameters
    ----------
    q, k, v : tensor [(batch,) heads, length, dim]
        This rank's shards, on the CPU, any strides; float16, bfloat16, float32 or float64.
    sink_logits, alibi_slopes : tensor or numbers [query_heads], optional
        Equal on all ranks. The gradient of a tensor is this rank's share, as that of any parameter that all ranks
        hold: the sum over ranks is the gradient. Here the shares are equal.
    travel : str
        What travels in the backward pass: see `ringmpi.attention_backward`.
    return_log_sum_exp : bool
        Give the log_sum_exp too.
    ring, sharding, key_sharding, mask, scale, softcap, dropout, seed, schedule, backend : optional
        As in `ringmpi.ring_attention`. Use a different seed for each training step: PyTorch's generators are not used.

    Returns
    -------
    output : tensor [(batch,) query_heads, queries, value_dim]
        Dtype of q.
    log_sum_exp : tensor [(batch,) query_heads, queries]
        With `return_log_sum_exp`; float32, for float64 float64. Differentiable as the output is.

    Raises
    ------
    ShapeError, MaskError, BackendError, RingError
        On all ranks, if anything does not fit on any, or if the ranks disagree.
    """
    with ring.call("ring_attention") as transport:
        tensors = together(
            transport,
            "reading the tensors",
            lambda: _checked(q, k, v, sink_logits=sink_logits, alibi_slopes=alibi_slopes, reproducible=reproducible),
        )
        # A rank that records no graph would not come to the backward pass, and the others would wait for it.
        recorded = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
        agree(transport, "need of gradients (requires_grad, torch.no_grad)", lambda: str(recorded))
    options: dict[str, Any] = {
        "ring": ring,
        "sharding": sharding,
        "key_sharding": key_sharding,
        "mask": mask,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "seed": seed,
        "schedule": schedule,
        "reproducible": reproducible,
        "backend": backend,
    }
    passes = _Passes(
        partial(ringmpi.api.attention.ring_attention, **options),
        partial(ringmpi.api.backward.ring_attention_backward, travel=travel, **options),
        ring.size,
    )
    output, log_sum_exp = _Attend.apply(passes, *tensors)
    return (output, log_sum_exp) if return_log_sum_exp else output


@dataclass(frozen=True)
class _Passes:
    """Both passes, with all options but those that have gradients, and how many ranks share these."""

    forward: Callable[..., Attention]
    backward: Callable[..., AttentionGradients]
    sharers: int = 1


class _Attend(torch.autograd.Function):
    """Both passes as autograd wants them."""

    @staticmethod
    def forward(ctx: Any, passes: _Passes, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        *arrays, sink_logits, alibi_slopes = map(_array, tensors)
        out = passes.forward(*arrays, sink_logits=sink_logits, alibi_slopes=alibi_slopes)
        output, log_sum_exp = _tensor(out.output), _tensor(out.log_sum_exp)
        ctx.passes, ctx.kept = passes, (out.pairs, out.meaning)
        ctx.save_for_backward(*tensors, output, log_sum_exp)  # autograd sees to it that none is written meanwhile
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_output: torch.Tensor | None, grad_log_sum_exp: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        *arrays, sink_logits, alibi_slopes, output, log_sum_exp = map(_array, ctx.saved_tensors)
        gradients = ctx.passes.backward(
            np.zeros_like(output) if grad_output is None else _array(grad_output),
            *arrays,
            Attention(output, log_sum_exp, *ctx.kept),
            grad_log_sum_exp=_array(grad_log_sum_exp),
            sink_logits=sink_logits,
            alibi_slopes=alibi_slopes,
        )
        shares = (
            None if whole is None else whole / ctx.passes.sharers
            for whole in (gradients.sink_logits, gradients.alibi_slopes)
        )
        return None, *map(_tensor, (*gradients, *shares))


def _checked(
    q: Any, k: Any, v: Any, *, sink_logits: Numbers | None, alibi_slopes: Numbers | None, reproducible: bool
) -> list[torch.Tensor | None]:
    """What has gradients, as tensors that NumPy can read in place."""
    per_head = {
        name: torch.as_tensor(numbers, dtype=torch.float64)
        for name, numbers in (("sink_logits", sink_logits), ("alibi_slopes", alibi_slopes))
        if numbers is not None
    }
    for name, tensor in ({"q": q, "k": k, "v": v} | per_head).items():
        _check(name, tensor)
    if reproducible and alibi_slopes is not None and per_head["alibi_slopes"].requires_grad:
        raise ShapeError(
            "alibi_slopes requires a gradient, a sum over all pairs whose order depends on the ranks: it is not "
            "reproducible. Give alibi_slopes.detach(), or leave reproducible out."
        )
    return [q, k, v, per_head.get("sink_logits"), per_head.get("alibi_slopes")]


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ShapeError(
            f"{name} is a {type(tensor).__name__}; ringmpi.torch takes tensors. Use torch.from_numpy, or the functions "
            f"of ringmpi itself for NumPy arrays."
        )
    if tensor.device.type != "cpu":
        raise BackendError(
            f"{name} is on {tensor.device}; tensors are taken from the CPU, even where kernels run on a GPU. "
            f"Move it with {name}.cpu(): gradients find the way back."
        )
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        raise ShapeError(
            f"{name} is {tensor.layout} of {tensor.dtype}; attention takes dense tensors of float16, bfloat16, float32 "
            f"or float64. Convert it first, for example {name}.to_dense() or {name}.to(torch.float32)."
        )


def _array(tensor: torch.Tensor | None) -> Any:
    """The memory of a tensor as a NumPy array, which knows no bfloat16 of PyTorch's."""
    if tensor is None:
        return None
    raw = tensor.detach().resolve_neg()
    if raw.dtype == torch.bfloat16:
        return raw.view(torch.int16).numpy().view(bfloat16)
    return raw.numpy()


def _tensor(array: Array | None) -> torch.Tensor | None:
    """The memory of an array as a tensor."""
    if array is None:
        return None
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
