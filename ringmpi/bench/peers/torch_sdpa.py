"""PyTorch: torch.nn.functional.scaled_dot_product_attention, and its backward pass by autograd.

It runs the fused kernel by itself where there is one for the question. "torch-cuda" has its arrays on the GPU; a run
ends when that has done all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from ringmpi.bench.peers import ON_GPU, AbsentError, Array, Prepared, refuse
from ringmpi.bench.questions import Question


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """Masks without a word for them are given as a bool array, ALiBi as a bias."""
    refuse(softcap=question.softcap, sinks=question.sink_logits)
    device = _device(contender)
    torch.set_num_threads(threads)
    dtype = getattr(torch, question.dtype)

    def tensor(array: Array) -> Any:
        return torch.from_numpy(array)[None].to(device, dtype).contiguous()

    q, k, v = (tensor(array).requires_grad_(backward) for array in (question.q, question.k, question.v))
    options: dict[str, Any] = {"enable_gqa": question.group > 1, "is_causal": question.mask == "causal"}
    if question.alibi_slopes is not None:
        options |= {"attn_mask": tensor(_bias(question)), "is_causal": False}
    elif question.mask not in ("full", "causal"):
        options["attn_mask"] = torch.from_numpy(question.allowed()).to(device)

    def forward() -> Any:
        return scaled_dot_product_attention(q, k, v, **options)

    def without_autograd() -> Any:
        with torch.no_grad():
            return forward()

    if not backward:
        return Prepared(_ended(without_autograd, device), lambda out: [_array(out)], _about(device))
    out, upstream = forward(), tensor(question.grad_output)
    return Prepared(
        _ended(lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True), device),
        lambda grads: [_array(grad) for grad in grads],
        _about(device),
    )


def _device(contender: str) -> str:
    if contender not in ON_GPU:
        return "cpu"
    if not torch.cuda.is_available():
        raise AbsentError("this PyTorch sees no GPU")
    return "cuda"


def _about(device: str) -> dict[str, str]:
    on_gpu = device == "cuda"
    where = {"GPU": torch.cuda.get_device_name()} if on_gpu else {"isa": torch.backends.cpu.get_cpu_capability()}
    return {"torch": torch.__version__} | where


def _ended(run: Callable[[], Any], device: str) -> Callable[[], Any]:
    """The same; on a GPU a call returns before its work is done."""
    if device == "cpu":
        return run

    def until_done() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return until_done


def _array(tensor: Any) -> Array:
    wide = tensor[0].detach().cpu()
    array: Array = (wide if wide.dtype == torch.float64 else wide.float()).numpy()
    return array


def _bias(question: Question) -> Array:
    """-slope |i - j|, and -inf where the mask forbids, [heads, queries, keys]."""
    queries, keys = question.lengths
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)[None, :]).abs()
    bias = -torch.from_numpy(question.alibi_slopes)[:, None, None] * distance
    hidden: Array = bias.masked_fill(~torch.from_numpy(question.allowed()), -torch.inf).numpy()
    return hidden
