"""What is asked of the late record: of what needs the final log_sum_exp, and so comes after the forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.attention_map import check_block
from ringmpi.core.problem import Problem
from ringmpi.core.top_keys import check_rows
from ringmpi.errors import ShapeError


@dataclass(frozen=True, eq=False)
class LateRecording:
    """What to record.

    Attributes
    ----------
    map_block : int or None
        Positions of a block of the attention map; None: no map.
    received : bool
        What each key receives.
    top_rows : int64 [rows] or None
        Ascending positions of the queries whose top keys are asked for; None: of none.
    top_key_count : int
        How many of each.
    """

    map_block: int | None = None
    received: bool = False
    top_rows: NDArray[np.int64] | None = None
    top_key_count: int = 0

    @property
    def has_map_pass(self) -> bool:
        """Whether all pairs are met once more; a few rows are not worth a pass."""
        return self.map_block is not None or self.received

    def check(self, problem: Problem) -> None:
        """ShapeError where it cannot be recorded of this problem."""
        queries, keys = problem.queries.length, problem.keys.length
        if problem.reproducible:
            raise ShapeError(
                "[record] map_block, received and top_rows are sums over keys of all ranks, whose order and last bits "
                "depend on how many there are; [ring] reproducible asks for equal bits. Leave one of them out."
            )
        if self.map_block is not None:
            check_block(problem.heads, queries, keys, self.map_block)
        if self.top_rows is not None:
            check_rows(self.top_rows, queries, self.top_key_count)

    def identity(self) -> dict[str, Any]:
        """For what must be equal in all runs that go on with each other."""
        rows = None if self.top_rows is None else self.top_rows.tolist()
        return {
            "map_block": self.map_block,
            "received": self.received,
            "top_rows": rows,
            "top_keys": self.top_key_count,
        }
