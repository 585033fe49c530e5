"""What all passes have in common: how many pairs are asked of a rank, and whether its kernels attended to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend
from ringmpi.core.problem import Problem
from ringmpi.errors import ExactnessError
from ringmpi.passes.visits import VisitLog


class CountedPass:
    """A pass of one rank. Its kernels count the pairs that they attend to.

    Parameters
    ----------
    pairs : int64 [pieces]
        Pairs of this rank with each piece that visits it.

    Attributes
    ----------
    pairs_asked : int
        Over batch and query heads.
    visits : VisitLog
    """

    visits: VisitLog

    def __init__(self, problem: Problem, rank: int, backend: Backend, pairs: NDArray[np.int64]) -> None:
        self.problem, self.rank, self.backend = problem, rank, backend
        self.pairs_asked = int(pairs.sum()) * problem.heads.query_slabs

    @property
    def pairs_attended(self) -> int:
        """Pairs that the kernels counted, over batch and query heads; also those that a run before has counted."""
        return self.visits.pairs

    def check_counts(self) -> None:
        """ExactnessError where the kernels did not attend to exactly the pairs that the mask gives this rank."""
        attended, asked = self.pairs_attended, self.pairs_asked
        if attended != asked:
            raise ExactnessError(
                f"rank {self.rank} attended to {attended:,} pairs, {asked:,} were asked: the result would be wrong and "
                f"is not given. Please report this with the output of `ringmpi --version`."
            )
