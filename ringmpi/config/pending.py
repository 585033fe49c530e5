"""Options of the design that this version does not have: refused by name, never accepted and ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringmpi.config.checks import Location


def _any(_value: Any) -> bool:
    return True


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


@dataclass(frozen=True)
class Pending:
    """A table, or a key in one, of which a value that `asks` is not there yet, and what to do until it is."""

    location: tuple[str] | tuple[str, str]
    advice: str
    asks: Callable[[Any], bool] = _any


PENDING = (
    Pending(
        ("backward", "grad_sink_logits"),
        "remove the key; attention_backward of Python gives the gradients of sinks",
    ),
    Pending(
        ("backward", "grad_alibi_slopes"),
        "remove the key; attention_backward of Python gives the gradients of slopes",
    ),
    Pending(("record",), "remove the table"),
    Pending(("ring", "schedule"), "use ring, bidirectional, all-gather or broadcast", _one_of("two-level", "direct")),
)


def take_pending(document: dict[str, Any]) -> list[tuple[Location, Any, str]]:
    """Remove from `document` what this version does not have; return location, value and advice of each."""
    taken: list[tuple[Location, Any, str]] = []
    for pending in PENDING:
        *tables, name = pending.location
        holder = document.get(tables[0]) if tables else document
        if isinstance(holder, dict) and name in holder and pending.asks(holder[name]):
            taken.append((pending.location, holder.pop(name), pending.advice))
    return taken
