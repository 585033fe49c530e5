"""What the passes of a run are called, in their order.

One forward, one for the attention map where it is asked for, then one backward, or two one-sided ones
(passes/travel.py).
"""

from __future__ import annotations

FORWARD = "forward"
MAP = "map"
BACKWARD = "backward"


def one_sided(travel: str) -> str:
    """The backward pass in which keys, or queries, visit without gradients."""
    return f"{BACKWARD}-{travel}"


SECOND_BACKWARD = one_sided("queries")
