"""What travels in the backward pass: keys come to the queries, or queries come to the keys. Whichever is cheaper.

The side that travels takes its gradients along, in the accumulation dtype; the other side's stay where they are.
A token and head cost, in bytes a hop, with head_dim d for keys and values alike:

    keys travel      2 d item + 2 d wide              K, V        and dK, dV           768 at d = 64 in 16 bit
    queries travel   2 d item + d wide + 2 wide       Q, dO, log_sum_exp, delta and dQ  520

times the key heads, or the query heads: grouped heads decide.

In a broadcast both sides travel, one after the other, and no gradients: first keys visit, for dQ alone, then queries,
for dK and dV alone. So a row and a key have their sums made in one place, in ascending order; for 7 products, not 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ringmpi.backends.memory import Memory
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import KeyWork, RankWork
from ringmpi.core.schedule import Piece
from ringmpi.core.sharding import Sharding
from ringmpi.core.work import KEY_START, ROW_START
from ringmpi.errors import ShapeError
from ringmpi.passes.slots import Form, Payload, key_forms

WAYS = ("auto", "keys", "queries")
QUERY_SIDE: tuple[str, ...] = ("grad_query",)
KEY_SIDE: tuple[str, ...] = ("grad_key", "grad_value")


@dataclass(frozen=True)
class Operands:
    """The shards of one rank."""

    q: Any
    k: Any
    v: Any
    saved: Saved


@dataclass(frozen=True)
class Block:
    """What one kernel call works on: queries of one shard, keys of another, and where their gradients are summed."""

    q: Any
    k: Any
    v: Any
    saved: Saved
    into: Gradients


class Travel(Protocol):
    """One way round. `staying_axis` says where in a table of work the rows or keys are that stay.

    resident, visiting   who owns the positions of each side
    staying_names, travelling_names   whose gradients `staying_forms` and `gradient_forms` are
    """

    name: str
    rank: int
    staying_axis: int
    pieces: tuple[Piece, ...]
    resident: Sharding
    visiting: Sharding
    staying_names: tuple[str, ...]
    travelling_names: tuple[str, ...]

    @property
    def work(self) -> RankWork | KeyWork:
        """Which pairs each visit brings."""
        ...

    def forms(self) -> list[Form]:
        """The arrays of a piece."""
        ...

    def gradient_forms(self) -> list[Form]:
        """The gradients of a piece."""
        ...

    def resident_forms(self) -> list[Form]:
        """The arrays of a rank that do not travel."""
        ...

    def staying_forms(self) -> list[Form]:
        """The gradients that do not travel."""
        ...

    def visitors(self, operands: Operands) -> Payload:
        """Which of a rank's arrays travel."""
        ...

    def resident_in(self, memory: Memory, operands: Operands) -> Operands:
        """The arrays that do not travel in another memory; those that do as they are."""
        ...

    def query_key_value(self, staying: Payload, visitors: Payload) -> tuple[Any, Any, Any]:
        """Gradients of q, k, v."""
        ...

    def block(self, operands: Operands, visitors: Payload, staying: Payload, leaving: Payload, slope: Any) -> Block:
        """Both sides in their roles; `staying` are the gradients of the resident side, `leaving` of the visitor.

        Both may hold None for what is not wanted.
        """
        ...


class KeysTravel:
    """Keys and values visit the queries, as in the forward pass, with dK and dV behind them."""

    name = "keys"
    staying_axis = ROW_START
    staying_names, travelling_names = QUERY_SIDE, KEY_SIDE

    def __init__(self, problem: Problem, rank: int) -> None:
        self._problem, self.rank = problem, rank
        self.pieces, self.resident, self.visiting = problem.pieces, problem.queries, problem.keys
        self.work: RankWork | KeyWork = RankWork(problem, rank)

    def forms(self) -> list[Form]:
        """K, V."""
        return key_forms(self._problem.heads, self._problem.dtype)

    def gradient_forms(self) -> list[Form]:
        """dK, dV."""
        return _key_gradients(self._problem)

    def resident_forms(self) -> list[Form]:
        """Q, dO, log_sum_exp, delta."""
        return _rows(self._problem)

    def staying_forms(self) -> list[Form]:
        """The gradient of queries, dQ."""
        return _query_gradients(self._problem)

    def visitors(self, operands: Operands) -> Payload:
        """K, V."""
        return operands.k, operands.v

    def resident_in(self, memory: Memory, operands: Operands) -> Operands:
        """Q, dO, log_sum_exp, delta."""
        saved = operands.saved
        arrays = operands.q, saved.grad_output, saved.log_sum_exp, saved.delta
        q, *rows = _put(memory, arrays, self.resident_forms())
        return replace(operands, q=q, saved=Saved(*rows))

    def query_key_value(self, staying: Payload, visitors: Payload) -> tuple[Any, Any, Any]:
        """What stayed is dQ; dK and dV came home."""
        return (*staying, *visitors)

    def block(self, operands: Operands, visitors: Payload, staying: Payload, leaving: Payload, slope: Any) -> Block:
        """Queries are resident."""
        (k, v), (query,), (key, value) = visitors, staying, leaving
        return Block(operands.q, k, v, operands.saved, Gradients(query, key, value, slope))


class QueriesTravel:
    """Queries visit the keys with all that their rows need, dQ behind them; dK and dV stay."""

    name = "queries"
    staying_axis = KEY_START
    staying_names, travelling_names = KEY_SIDE, QUERY_SIDE

    def __init__(self, problem: Problem, rank: int) -> None:
        self._problem, self.rank = problem, rank
        self.pieces, self.resident, self.visiting = problem.query_pieces, problem.keys, problem.queries
        self.work: RankWork | KeyWork = KeyWork(problem, rank)

    def forms(self) -> list[Form]:
        """Q, dO, log_sum_exp, delta."""
        return _rows(self._problem)

    def gradient_forms(self) -> list[Form]:
        """The gradient of queries, dQ."""
        return _query_gradients(self._problem)

    def resident_forms(self) -> list[Form]:
        """K, V."""
        return key_forms(self._problem.heads, self._problem.dtype)

    def staying_forms(self) -> list[Form]:
        """dK, dV."""
        return _key_gradients(self._problem)

    def visitors(self, operands: Operands) -> Payload:
        """Q, dO, log_sum_exp, delta."""
        saved = operands.saved
        return operands.q, saved.grad_output, saved.log_sum_exp[..., None], saved.delta[..., None]

    def resident_in(self, memory: Memory, operands: Operands) -> Operands:
        """K, V."""
        k, v = _put(memory, (operands.k, operands.v), self.resident_forms())
        return replace(operands, k=k, v=v)

    def query_key_value(self, staying: Payload, visitors: Payload) -> tuple[Any, Any, Any]:
        """What stayed is dK and dV; dQ came home."""
        return (*visitors, *staying)

    def block(self, operands: Operands, visitors: Payload, staying: Payload, leaving: Payload, slope: Any) -> Block:
        """Keys are resident."""
        (q, grad_output, log_sum_exp, delta), (key, value), (query,) = visitors, staying, leaving
        saved = Saved(grad_output, log_sum_exp.squeeze(-1), delta.squeeze(-1))
        return Block(q, operands.k, operands.v, saved, Gradients(query, key, value, slope))


def _rows(problem: Problem) -> list[Form]:
    """Q, dO, log_sum_exp, delta."""
    heads, item, wide = problem.heads, problem.dtype, accumulate_dtype(problem.dtype)
    forms = ((heads.head_dim, item, True), (heads.value_dim, item, True), (1, wide, False), (1, wide, False))
    return [Form(heads.batch, heads.query_heads, dim, dtype, aligned) for dim, dtype, aligned in forms]


def _query_gradients(problem: Problem) -> list[Form]:
    """The gradient of queries, dQ."""
    heads = problem.heads
    return [Form(heads.batch, heads.query_heads, heads.head_dim, accumulate_dtype(problem.dtype))]


def _key_gradients(problem: Problem) -> list[Form]:
    """dK, dV."""
    return key_forms(problem.heads, accumulate_dtype(problem.dtype), aligned=False)


def _put(memory: Memory, arrays: Payload, forms: Sequence[Form]) -> Iterator[Any]:
    """Arrays in another memory, each as its form says."""
    return (memory.put(array, aligned=form.aligned) for array, form in zip(arrays, forms, strict=True))


def staying_zeros(travel: Travel) -> Payload:
    """Zeros for the gradients of a rank that do not travel."""
    length = travel.resident.shard_length(travel.rank)
    return tuple(np.zeros(form.shape(length), form.dtype) for form in travel.staying_forms())


def ways_by_name(name: str, problem: Problem, rank: int) -> tuple[KeysTravel | QueriesTravel, ...]:
    """What travels, in this order: the side of this name with its gradients; in a broadcast both, without."""
    if problem.schedule.gradients_travel:
        return (travel_by_name(name, problem, rank),)
    if name != "auto":
        raise ShapeError(f"travel is {name!r}, but in a broadcast both sides travel. Leave travel out.")
    return KeysTravel(problem, rank), QueriesTravel(problem, rank)


def travel_by_name(name: str, problem: Problem, rank: int) -> KeysTravel | QueriesTravel:
    """The way of this name; "auto" takes the one that moves fewer bytes a hop, keys where both move as many."""
    if name not in WAYS:
        raise ShapeError(f"travel {name!r} is unknown; choose one of {', '.join(WAYS)}.")
    keys, queries = KeysTravel(problem, rank), QueriesTravel(problem, rank)
    if name == "auto":
        name = "queries" if round_bytes(queries) < round_bytes(keys) else "keys"
    return queries if name == "queries" else keys


def round_bytes(travel: Travel) -> int:
    """Bytes that all pieces and their gradients weigh: what every hop of a full ring moves, over all ranks."""
    forms = [*travel.forms(), *travel.gradient_forms()]
    return sum(form.nbytes(travel.visiting.length) for form in forms)
