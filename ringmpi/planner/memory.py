"""How much memory a rank needs, term by term, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.itinerary import Itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.record import record_bytes, sums_bytes
from ringmpi.core.schedule import Piece
from ringmpi.passes.slots import Form
from ringmpi.passes.travel import Travel
from ringmpi.planner.balance import key_bytes


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank. Not in it: the interpreter and MPI (about 100 MB), and the kernel's scratch (a few MB).

    queries : its shard of q
    slots : keys and values, its own and visiting ones; visiting ones alone where they stay for a backward pass
    partial : row_max, row_sum, weighted_sum in the accumulation dtype; becomes the output where dtypes agree
    output : the cast output, where the dtype is narrower; by then the queries are gone, if they do not stay
    record : the sums of the record of its rows, and what they become in the end; 0 where rows are not recorded
    kept : what else stays for a backward pass: its keys, values and grad_output, and copies of them for the pass
    """

    queries: int
    slots: int
    partial: int
    output: int
    record: int
    kept: int

    @property
    def peak(self) -> int:
        """The most that is needed at once."""
        last = self.queries + self.output if self.kept else max(self.queries, self.output)
        return self.kept + self.slots + self.partial + self.record + last


def rank_memory(problem: Problem, itinerary: Itinerary, *, gradients: bool = False, stays: bool = False) -> RankMemory:
    """The memory of the rank of `itinerary`, as `ringmpi run` has it.

    Parameters
    ----------
    gradients : bool
        A backward pass follows: all inputs stay.
    stays : bool
        Keys and values stay for what is recorded after the pass; where nothing stays, the rank's own lie in slots
        (`donated`).
    """
    wide, row = accumulate_dtype(problem.dtype), problem.heads.value_dim + 2
    sides, length = _sides(problem, itinerary.rank), problem.keys.shard_length(itinerary.rank)
    rows = problem.heads.query_slabs * problem.queries.shard_length(itinerary.rank)
    partial = sides.rows // (problem.heads.value_dim * problem.dtype.itemsize) * row * wide.itemsize
    copied = own_lengths(problem.pieces, itinerary, length)[0] * key_bytes(problem)
    grad_log_sum_exp = partial // row  # where there is one
    return RankMemory(
        queries=sides.queries,
        slots=sum(itinerary.slot_lengths) * key_bytes(problem),
        partial=partial,
        output=sides.rows if wide != problem.dtype else 0,
        record=rows * (sums_bytes(wide) + record_bytes(wide)) if problem.record else 0,
        kept=(sides.keys + copied if gradients or stays else 0) + (sides.rows + grad_log_sum_exp if gradients else 0),
    )


@dataclass(frozen=True)
class BackwardMemory:
    """Bytes of one rank in a backward pass, after the forward pass has left.

    rows : output, log_sum_exp and the record, until they are written; in the second of two passes what the first one
        found too
    own : what of its own travels: where it lies, and copies of pieces that must be packed
    slots : what visits
    gradients : slots of the gradients of what visits, in the accumulation dtype; in a run that has gone on from another
        layout, what travels has its sums of before beside them
    staying : gradients of the side that stays, in the accumulation dtype
    inputs : the rest of q, k, v, grad_output and delta, until the pass is over
    home : gradients of its own that travelled, come home; and all three cast where the dtype is narrower
    """

    rows: int
    own: int
    slots: int
    gradients: int
    staying: int
    inputs: int
    home: int

    @property
    def peak(self) -> int:
        """The most that is needed at once: in the loop, or when it is over."""
        return self.rows + self.own + self.slots + self.gradients + self.staying + max(self.inputs, self.home)


def backward_memory(problem: Problem, travel: Travel, itinerary: Itinerary, gradient_bytes: int) -> BackwardMemory:
    """The backward memory of the rank of `itinerary`, that of what travels; `gradient_bytes` follow it."""
    rank, item, wide = itinerary.rank, problem.dtype.itemsize, accumulate_dtype(problem.dtype).itemsize
    heads, sides, length = problem.heads, _sides(problem, rank), travel.visiting.shard_length(rank)
    one, one_gradient = form_bytes(travel.forms()), form_bytes(travel.gradient_forms())
    row = heads.query_slabs * problem.queries.shard_length(rank) * wide  # log_sum_exp, or delta
    copied, in_place = (positions * one for positions in own_lengths(travel.pieces, itinerary, length))
    shared = row if in_place and travel.name == "queries" else 0  # log_sum_exp travels from where it lies
    staying = travel.resident.shard_length(rank) * form_bytes(travel.staying_forms())
    inputs = sides.queries + sides.keys + sides.rows + row + shared - in_place
    home = length * one_gradient + (sides.queries + sides.keys if wide != item else 0)
    found = 0
    if not problem.schedule.gradients_travel:  # the second pass needs the inputs too, and the first one's dQ
        cast, first = staying // wide * item if wide != item else 0, travel.name == "keys"
        home, found = (inputs + cast, 0) if first else (cast, sides.queries)
    return BackwardMemory(
        rows=sides.rows + row + _record(problem, rank) - shared + found,
        own=copied + in_place,
        slots=sum(itinerary.slot_lengths) * one,
        gradients=gradient_bytes,
        staying=staying,
        inputs=inputs,
        home=home,
    )


def _record(problem: Problem, rank: int) -> int:
    """Bytes of the record of a rank's rows, once it is made."""
    rows = problem.heads.query_slabs * problem.queries.shard_length(rank)
    return rows * record_bytes(accumulate_dtype(problem.dtype)) if problem.record else 0


def form_bytes(forms: Sequence[Form]) -> int:
    """Bytes of one position of what travels together."""
    return sum(form.nbytes(1) for form in forms)


@dataclass(frozen=True)
class _Sides:
    """Bytes of a rank's shards: queries (or their gradient), keys and values (or theirs), output (or its gradient)."""

    queries: int
    keys: int
    rows: int


def _sides(problem: Problem, rank: int) -> _Sides:
    heads, item = problem.heads, problem.dtype.itemsize
    rows = heads.query_slabs * problem.queries.shard_length(rank)
    keys = problem.keys.shard_length(rank) * key_bytes(problem)
    return _Sides(rows * heads.head_dim * item, keys, rows * heads.value_dim * item)


def own_lengths(pieces: Sequence[Piece], itinerary: Itinerary, shard: int) -> tuple[int, int]:
    """Positions of its own that a rank copies for its pass; and those that lie in place, which are all or none."""
    copied = [itinerary.is_packed(index, pieces[index], shard) for index in itinerary.own]
    lengths = (pieces[index].length for index in itinerary.own)
    return sum(n for n, is_copy in zip(lengths, copied, strict=True) if is_copy), 0 if all(copied) else shard


@dataclass(frozen=True)
class KVCache:
    """Keys and values of a whole model, kept for all positions and spread over the ranks.

    token_bytes : bytes of one position
    tokens, ranks : how many positions, on how many ranks
    """

    token_bytes: int
    tokens: int
    ranks: int = 1

    @property
    def total(self) -> int:
        """Bytes on all ranks together."""
        return self.token_bytes * self.tokens

    @property
    def share(self) -> int:
        """Bytes of the rank that holds most."""
        return self.token_bytes * -(-self.tokens // self.ranks)

    def tokens_in(self, memory: float) -> int:
        """Positions that fit in some bytes."""
        return int(memory // self.token_bytes)


def kv_cache(problem: Problem, layers: int = 1) -> KVCache:
    """The KV cache of `layers` layers like this one."""
    return KVCache(key_bytes(problem) * layers, problem.keys.length, problem.size)


def score_bytes(problem: Problem) -> int:
    """Bytes of the scores of one head, which are never stored: queries x keys numbers of the input's dtype."""
    return problem.queries.length * problem.keys.length * problem.dtype.itemsize
