"""Exact attention over sequences too long for one device: ring attention over MPI ranks.

The public names. They load on first use, so that `import ringmpi` starts neither MPI nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringmpi.api.attention import Attention, attention, attention_reference, ring_attention
    from ringmpi.api.backward import AttentionGradients, attention_backward, ring_attention_backward
    from ringmpi.api.maps import AttentionMap, attention_map, ring_attention_map
    from ringmpi.core.masking import Mask
    from ringmpi.core.record import Record, Recording
    from ringmpi.core.sharding import Sharding
    from ringmpi.errors import RingMpiError
    from ringmpi.ring import Ring

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "AttentionGradients",
    "AttentionMap",
    "Mask",
    "Record",
    "Recording",
    "Ring",
    "RingMpiError",
    "Sharding",
    "__version__",
    "attention",
    "attention_backward",
    "attention_map",
    "attention_reference",
    "ring_attention",
    "ring_attention_backward",
    "ring_attention_map",
]

_HOMES = {
    "Attention": "ringmpi.api.attention",
    "Mask": "ringmpi.core.masking",
    "Record": "ringmpi.core.record",
    "Recording": "ringmpi.core.record",
    "Ring": "ringmpi.ring",
    "RingMpiError": "ringmpi.errors",
    "Sharding": "ringmpi.core.sharding",
    "AttentionGradients": "ringmpi.api.backward",
    "AttentionMap": "ringmpi.api.maps",
    "attention": "ringmpi.api.attention",
    "attention_backward": "ringmpi.api.backward",
    "attention_map": "ringmpi.api.maps",
    "attention_reference": "ringmpi.api.attention",
    "ring_attention": "ringmpi.api.attention",
    "ring_attention_backward": "ringmpi.api.backward",
    "ring_attention_map": "ringmpi.api.maps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ringmpi' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
