"""What a backend is: the block attention of one rank, on one kind of hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ringmpi.backends.memory import Memory
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape
from ringmpi.core.work import Work

CALL_SECONDS = 0.3  # of a kernel call, about: `call_budget`

Poll = Callable[[], None]  # "a moment, please": lets the caller move messages on while a kernel runs


class Backend(Protocol):
    """The block operation that the ring loop calls. Same meaning on every kind of hardware.

    Attributes
    ----------
    reproducible : bool
        A promise. Forward, and of gradients of queries: the bits that a row has after a call depend on the bits that
        it had, on that row, and on k and v with the keys that it sees of them; not on the other rows, the place of the
        row, the threads, or the first and last key of an item. Of gradients of keys: likewise with rows and keys
        exchanged.
    records : bool
        `attend` carries the record of the rows along, where `into` has one (core/record.py).
    arithmetic : str
        Kind of core or library that its last bits depend on, beside its name.
    memory : Memory
        Where it wants its arrays. NumPy arrays it takes as well; elsewhere they are copied in each call.
    """

    name: str
    reproducible: bool
    records: bool
    arithmetic: str

    @property
    def memory(self) -> Memory:
        """Of the arrays of a pass."""
        ...

    def call_budget(self, heads: HeadShape, dtype: np.dtype) -> int:
        """Rows x keys of inputs of this dtype that take about `CALL_SECONDS`: work is cut to calls of this size.

        Between calls pairs are counted and progress is shown; messages move within a call too (`poll`).
        """
        ...

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        work: Work,
        scoring: Scoring,
        *,
        finite: bool = True,
        into: Partial | None = None,
        poll: Poll | None = None,
    ) -> tuple[Partial, int]:
        """Attend queries to the keys that `work` names.

        Parameters
        ----------
        q : array [batch, query_heads, queries, head_dim]
        k : array [batch, key_heads, keys, head_dim]
        v : array [batch, key_heads, keys, value_dim]
            One supported dtype for all three.
        work : Work [n, 10]
            Which rows see which keys, in local indices (core/work.py). Its items are disjoint as pairs.
        scoring : Scoring
        finite : bool
            False: k or v hold NaN or inf. Then a value outside a row's own keys must not reach that row.
        into : Partial or None
            Carried: absorbs the new keys, its arrays are written, those of its record too; no bit of the others depends
            on whether it has one. None: a fresh one of the shape of q is made, without a record.
        poll : function () -> None, or None
            Called by the calling thread every 1-2 ms while the kernel runs, so that messages progress and signals are
            seen. What it raises is raised here, after all threads have stopped; `into` is then of no use.

        Returns
        -------
        partial : Partial
            `into`, or the fresh one, accumulated in float32 (float64 for float64 input).
        attended : int
            (query, key) pairs that the kernel really attended to, summed over batch and query heads,
            counted where the scores are masked, not taken from the table.
        """
        ...

    def attend_backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        saved: Saved,
        work: Work,
        scoring: Scoring,
        *,
        into: Gradients,
        finite: bool = True,
        poll: Poll | None = None,
    ) -> int:
        """Add the gradients of the pairs that `work` names (core/gradients.py has the formula).

        Parameters
        ----------
        q, k, v, work, scoring
            As in `attend`.
        saved : Saved
            Of the rows of q.
        into : Gradients
            Written. What is None there is not computed.
        finite : bool
            False: q, k, v or grad_output hold NaN or inf; they then reach only pairs that see them.
        poll : function () -> None, or None
            As in `attend`.

        Returns
        -------
        int
            Pairs attended to, as in `attend`.
        """
        ...
