"""Deciding together: all ranks go on, or all ranks refuse with one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ringmpi import errors
from ringmpi.comm.protocol import Communicator
from ringmpi.errors import RingMpiError

T = TypeVar("T")
# Times the usual limit, for those who wait for what may be long work of rank 0 (merging a large output) or of any rank
# (writing its state) on a slow file system.
LONG_WORK = 6.0
WRONG_ARGUMENTS = (TypeError, ValueError, AttributeError, OverflowError)


class Exchanges(Protocol):
    """A ring whose ranks can give each other small items."""

    @property
    def rank(self) -> int:
        """Position in the ring."""
        ...

    def exchange(self, item: Any, during: str = ..., *, patience: float = ...) -> list[Any]:
        """Every rank's item, in ring order.

        `during` says what a late rank is late for; `patience`: how many times the usual limit to wait.
        """
        ...

    def called(self, rank: int) -> str:
        """The rank at a ring position, for messages."""
        ...


class AgreeingRing(Communicator, Exchanges, Protocol):
    """A transport over which ranks can also come to agreements."""


def together(ring: Exchanges, what: str, action: Callable[[], T], *, patience: float = 1.0, checks: bool = False) -> T:
    """Do `action` on every rank; if it fails on any, raise that error on all of them. Collective.

    Parameters
    ----------
    what : str
        What is done, for the message of a late rank: "reading the input".
    patience : float
        How many times the usual limit this rank waits for the others.
    checks : bool
        `action` looks at what a user gave: what Python itself raises then is the user's error too.

    Raises
    ------
    RingMpiError
        The error of the first rank that failed, with its name unless all failed alike; `on_all_ranks` is True.
        Other exceptions are faults of ringmpi and pass through on their own rank.
    """
    failure: tuple[str, tuple[str, ...]] | None = None
    result = None
    try:
        result = action()
    except RingMpiError as error:
        failure = type(error).__name__, getattr(error, "problems", (str(error),))
    except MemoryError as error:
        failure = "BackendError", (f"{what}: {error}. Use more ranks, fewer ranks a node, or a narrower dtype.",)
    except WRONG_ARGUMENTS as error:
        if not checks:
            raise
        failure = "ShapeError", (f"{what}: {type(error).__name__}: {error}",)
    failures = ring.exchange(failure, what, patience=patience)
    if any(failures):
        raise _common_error(failures, ring)
    return result  # type: ignore[return-value]


def on_first(ring: Exchanges, what: str, action: Callable[[], T]) -> T | None:
    """Do `action` on rank 0 alone, as `together`; None elsewhere. The others are patient: it may be long work."""
    patience = LONG_WORK if ring.rank else 1.0
    return together(ring, what, lambda: action() if ring.rank == 0 else None, patience=patience)


def from_first(ring: Exchanges, what: str, action: Callable[[], T]) -> T:
    """Do `action` on rank 0 alone, as `together`, and give its (picklable) result to all ranks."""
    result: T = ring.exchange(on_first(ring, what, action), what)[0]
    return result


def agree(ring: Exchanges, what: str, mine: str) -> None:
    """Make sure that `mine` is equal on all ranks. Collective.

    Raises
    ------
    RingError
        On all ranks, naming those that differ from rank 0.
    """
    everyone = ring.exchange(mine, f"comparing the {what}")
    if differing := [ring.called(rank) for rank, theirs in enumerate(everyone) if theirs != everyone[0]]:
        error = errors.RingError(
            f"{' and '.join(differing)} gave another {what} than rank 0; give all ranks the same arguments."
        )
        error.on_all_ranks = True
        raise error


def _common_error(failures: list[tuple[str, tuple[str, ...]] | None], ring: Exchanges) -> RingMpiError:
    first = next(rank for rank, failure in enumerate(failures) if failure)
    name, problems = failures[first] or ("RingError", ())
    if any(failure != failures[first] for failure in failures):
        problems = tuple(f"{ring.called(first)}: {problem}" for problem in problems)
    kind: type[RingMpiError] = getattr(errors, name, RingMpiError)
    error = kind(*problems)
    error.on_all_ranks = True
    return error
