"""Deciding together: all ranks go on, or all ranks refuse with one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ringmpi import errors
from ringmpi.comm.protocol import Communicator
from ringmpi.errors import RingMpiError

T = TypeVar("T")
Failure: TypeAlias = tuple[str, tuple[str, ...]]  # name of the error, what it says
# Times the usual limit, for those who wait for what may be long work of rank 0 (merging a large output) or of any rank
# (reading its input, writing its rows or its state) on a slow file system.
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
    """Do `action` on every rank; if it fails on any, raise an error on all of them. Collective.

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
        Other exceptions are faults of ringmpi: they pass through on their own rank, and are a RingError on the others.
    """
    tried = _Tried(what, action, checks=checks)
    tried.judge(ring, ring.exchange(tried.failure, what, patience=patience))
    return tried.result  # type: ignore[return-value]


def shared(ring: Exchanges, what: str, action: Callable[[], T]) -> list[T]:
    """Do `action` on every rank, as `together`, and give its (small, picklable) results to all, in ring order."""
    tried = _Tried(what, action)
    failures, results = zip(*ring.exchange((tried.failure, tried.result), what), strict=True)
    tried.judge(ring, failures)
    return list(results)


def on_first(ring: Exchanges, what: str, action: Callable[[], T]) -> T | None:
    """Do `action` on rank 0 alone, as `together`; None elsewhere. The others are patient: it may be long work."""
    patience = LONG_WORK if ring.rank else 1.0
    return together(ring, what, lambda: action() if ring.rank == 0 else None, patience=patience)


def from_first(ring: Exchanges, what: str, action: Callable[[], T]) -> T:
    """Do `action` on rank 0 alone, as `together`, and give its (picklable) result to all ranks."""
    result: T = ring.exchange(on_first(ring, what, action), what)[0]
    return result


def agree(ring: Exchanges, what: str, mine: Callable[[], str]) -> None:
    """Make sure that what `mine` gives is equal on all ranks. Collective.

    Raises
    ------
    RingError
        On all ranks, naming those that differ from rank 0.
    """
    everyone = shared(ring, f"comparing the {what}", mine)
    if differing := [ring.called(rank) for rank, theirs in enumerate(everyone) if theirs != everyone[0]]:
        error = errors.RingError(
            f"{' and '.join(differing)} gave a different {what} from rank 0; give all ranks the same arguments."
        )
        error.on_all_ranks = True
        raise error


class _Tried(Generic[T]):
    """What came of an action on this rank: its `result`, or its `failure` in a form that other ranks can read."""

    def __init__(self, what: str, action: Callable[[], T], *, checks: bool = False) -> None:
        self.result: T | None = None
        self.failure: Failure | None = None
        self._fault: Exception | None = None
        try:
            self.result = action()
        except RingMpiError as error:
            self.failure = type(error).__name__, getattr(error, "problems", (str(error),))
        except MemoryError as error:
            advice = "Use more ranks, fewer ranks per node, or a narrower dtype."
            self.failure = "BackendError", (f"{what}: {error}. {advice}",)
        except Exception as error:
            user = checks and isinstance(error, WRONG_ARGUMENTS)
            self.failure = "ShapeError" if user else "RingError", (f"{what}: {type(error).__name__}: {error}",)
            self._fault = None if user else error

    def judge(self, ring: Exchanges, failures: Sequence[Failure | None]) -> None:
        """Raise on all ranks if any has failed."""
        if self._fault is not None:
            self._fault.on_all_ranks = True  # type: ignore[attr-defined]
            raise self._fault  # with its trace
        if any(failures):
            raise _common_error(failures, ring)


def _common_error(failures: Sequence[Failure | None], ring: Exchanges) -> RingMpiError:
    first = next(rank for rank, failure in enumerate(failures) if failure)
    name, problems = failures[first] or ("RingError", ())
    if any(failure != failures[first] for failure in failures):
        problems = tuple(f"{ring.called(first)}: {problem}" for problem in problems)
    kind: type[RingMpiError] = getattr(errors, name, RingMpiError)
    error = kind(*problems)
    error.on_all_ranks = True
    return error
