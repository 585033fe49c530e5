"""PyTorch: torch.nn.functional.scaled_dot_product_attention, and its backward pass by autograd.

It runs the fused CPU kernel by itself where there is one for the question.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from ringmpi.bench.peers import Array, Prepared, refuse
from ringmpi.bench.questions import Question


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """Masks without a word for them are given as a bool array, ALiBi as a bias."""
    refuse(softcap=question.softcap, sinks=question.sink_logits)
    torch.set_num_threads(threads)
    dtype = getattr(torch, question.dtype)

    def tensor(array: Array) -> Any:
        return torch.from_numpy(array)[None].to(dtype).contiguous()

    q, k, v = (tensor(array).requires_grad_(backward) for array in (question.q, question.k, question.v))
    options: dict[str, Any] = {"enable_gqa": question.group > 1, "is_causal": question.mask == "causal"}
    if question.alibi_slopes is not None:
        options |= {"attn_mask": tensor(_bias(question)), "is_causal": False}
    elif question.mask not in ("full", "causal"):
        options["attn_mask"] = torch.from_numpy(question.allowed())
    about = {"torch": torch.__version__, "isa": torch.backends.cpu.get_cpu_capability()}

    def forward() -> Any:
        return scaled_dot_product_attention(q, k, v, **options)

    def without_autograd() -> Any:
        with torch.no_grad():
            return forward()

    if not backward:
        return Prepared(without_autograd, lambda out: [_array(out)], about)
    out, upstream = forward(), tensor(question.grad_output)
    return Prepared(
        lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True),
        lambda grads: [_array(grad) for grad in grads],
        about,
    )


def _array(tensor: Any) -> Array:
    wide = tensor[0].detach()
    array: Array = (wide if wide.dtype == torch.float64 else wide.float()).numpy()
    return array


def _bias(question: Question) -> Array:
    """-slope |i - j|, and -inf where the mask forbids, [heads, queries, keys]."""
    queries, keys = question.lengths
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)[None, :]).abs()
    bias = -torch.from_numpy(question.alibi_slopes)[:, None, None] * distance
    hidden: Array = bias.masked_fill(~torch.from_numpy(question.allowed()), -torch.inf).numpy()
    return hidden
