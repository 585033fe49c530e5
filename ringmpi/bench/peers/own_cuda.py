"""ringmpi's CUDA backend on arrays that lie on the GPU, as a ring step finds them: no copies of them are timed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

import ringmpi
from ringmpi.backends import get_backend
from ringmpi.bench.peers import AbsentError, Array, Prepared
from ringmpi.bench.peers.own import dtype_of, mask_of, widened
from ringmpi.bench.questions import Question
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved, delta_of
from ringmpi.core.partial import Partial, empty_partial, finalize, merge, sink_partial
from ringmpi.core.problem import Problem, pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.sharding import shardings_by_name
from ringmpi.core.work import Work, cut
from ringmpi.errors import BackendError


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """Threads are of no meaning: kernels are started by one. A run ends when the GPU has done all of it."""
    try:
        backend: Any = get_backend(contender)
    except BackendError as error:
        raise AbsentError(str(error)) from None
    about = {"ringmpi": ringmpi.__version__, "GPU": backend.device.name}
    attention = _Attention(backend, question)
    if not backward:
        return Prepared(attention.forward, lambda pairs: [widened(attention.result[0][0])], about, lambda pairs: pairs)
    attention.forward()
    gradients = _Gradients(backend, attention, question)
    return Prepared(gradients.backward, lambda pairs: list(gradients.result()), about, lambda pairs: pairs)


class _Attention:
    """A question, and its sums, on the GPU."""

    def __init__(self, backend: Any, question: Question) -> None:
        self._backend, self._memory = backend, backend.memory
        arrays = [array.astype(dtype_of(question.dtype)) for array in (question.q, question.k, question.v)]
        self.problem = _problem(question, arrays)
        self.finite = all(bool(np.isfinite(array).all()) for array in arrays)
        self.q, self.k, self.v = (self._memory.put(array[None], aligned=True) for array in arrays)
        heads, wide = self.problem.heads, accumulate_dtype(self.problem.dtype)
        empty = empty_partial(heads.batch, heads.query_heads, question.lengths[0], heads.value_dim, wide)
        self._none_seen, self._sums = empty.row_max, empty.moved(self._memory.put)

    @cached_property
    def calls(self) -> list[Work]:
        """As a run cuts them."""
        budget = self._backend.call_budget(self.problem.heads, self.problem.dtype)
        work, pieces = RankWork(self.problem, 0), range(len(self.problem.pieces))
        return [call for piece in pieces for call in cut(work.table(piece), budget)]

    def forward(self) -> int:
        """From fresh sums -> pairs."""
        self._memory.write(self._sums.row_max, self._none_seen)
        self._memory.clear(self._sums.row_sum)
        self._memory.clear(self._sums.weighted_sum)
        pairs = sum(self._pairs())
        self._backend.device.wait()
        return pairs

    @property
    def result(self) -> tuple[Array, Array]:
        """Output and log_sum_exp, on the host."""
        keys = self._sums.moved(self._memory.get)
        total: Partial = keys
        with np.errstate(all="ignore"):
            if self.problem.sink_logits is not None:
                total = merge(keys, sink_partial(self.problem.sink_logits, keys))
            return finalize(total, self.problem.dtype)

    def _pairs(self) -> Iterator[int]:
        for call in self.calls:
            _, pairs = self._backend.attend(
                self.q, self.k, self.v, call, self.problem.scoring, finite=self.finite, into=self._sums
            )
            yield pairs


class _Gradients:
    """The gradients of a question that has been attended to, on the GPU."""

    def __init__(self, backend: Any, attention: _Attention, question: Question) -> None:
        self._backend, self._memory, self._attention = backend, backend.memory, attention
        (output, log_sum_exp), wide = attention.result, accumulate_dtype(attention.problem.dtype)
        upstream = question.grad_output.astype(attention.problem.dtype)[None]
        delta = delta_of(upstream, output, None, wide)
        self._finite = attention.finite and bool(np.isfinite(upstream).all())
        self._saved = Saved(self._memory.put(upstream, aligned=True), *map(self._memory.put, (log_sum_exp, delta)))
        query, key, value = (self._memory.empty(array.shape, wide) for array in (attention.q, attention.k, attention.v))
        self._sums = Gradients(query, key, value, slope=np.zeros(len(question.q)))

    def backward(self) -> int:
        """From fresh sums -> pairs."""
        for array in self._of_qkv:
            self._memory.clear(array)
        pairs = sum(self._pairs())
        self._backend.device.wait()
        return pairs

    def result(self) -> Iterator[Array]:
        """Of q, k and v, on the host."""
        for array in self._of_qkv:
            yield self._memory.get(array)[0]

    @property
    def _of_qkv(self) -> tuple[Any, Any, Any]:
        return self._sums.query, self._sums.key, self._sums.value

    def _pairs(self) -> Iterator[int]:
        of = self._attention
        for call in of.calls:
            yield self._backend.attend_backward(
                of.q, of.k, of.v, self._saved, call, of.problem.scoring, into=self._sums, finite=self._finite
            )


def _problem(question: Question, arrays: list[Array]) -> Problem:
    mask = mask_of(question.mask, *question.lengths)
    queries, keys = shardings_by_name("contiguous", mask, *question.lengths, 1)
    return pose_problem(
        arrays,
        mask=mask,
        queries=queries,
        keys=keys,
        schedule="ring",
        softcap=question.softcap,
        alibi_slopes=question.alibi_slopes,
        sink_logits=question.sink_logits,
    )
