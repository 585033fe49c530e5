"""PyTorch's scaled_dot_product_attention on the GPU, by the backends that it has; nothing where there is no PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.device.timing import Shape


class CannotError(RuntimeError):
    """Why a contender does not take part."""


def finish() -> None:
    """Until PyTorch's work on the GPU has ended, if it has been used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


def prepare(backend: str, shape: Shape) -> Callable[[], Any]:
    """A call of one of PyTorch's backends on bfloat16 numbers.

    Raises
    ------
    CannotError
        Without PyTorch, without a GPU for it, or where the backend does not take the shape.
    """
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        raise CannotError(f"no PyTorch: {error}") from error
    if not torch.cuda.is_available():
        raise CannotError("this PyTorch sees no GPU")
    size = shape.batch, shape.heads, shape.tokens, shape.head_dim
    q, k, v, upstream = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    for array in (q, k, v):
        array.requires_grad_(shape.backward)

    def forward() -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)

    try:
        output = forward()
        if not shape.backward:
            return forward
        call = partial(torch.autograd.grad, output, (q, k, v), upstream, retain_graph=True)
        call()
    except (RuntimeError, AttributeError) as error:  # an older PyTorch has fewer backends
        raise CannotError((str(error).splitlines() or [type(error).__name__])[0]) from error
    return call


PEERS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "torch flash": partial(prepare, "FLASH_ATTENTION"),
    "torch cuDNN": partial(prepare, "CUDNN_ATTENTION"),
}
