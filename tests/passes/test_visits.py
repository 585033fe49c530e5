"""Where visits may stop: where the order of sums must not depend on the ranks, not in the middle of one."""

import numpy as np
import pytest

from ringmpi import Mask, Sharding
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.work import ROW_START
from ringmpi.passes.guard import Unguarded
from ringmpi.passes.visits import VISITED, VisitLog


class Impatient(Unguarded):
    """Lets so many questions pass, then wants no more work."""

    def __init__(self, questions):
        self.left = questions

    def attends(self):
        self.left -= 1
        return self.left >= 0


def visits_of_one_rank(*, whole):
    owned = Sharding.contiguous(32, 2)
    arrays = (np.zeros((1, 1, 32, 4), np.float32),) * 3
    problem = pose_problem(arrays, mask=Mask.full(), queries=owned, keys=owned, schedule="ring")
    return VisitLog(RankWork(problem, 1), problem.pieces, staying_axis=ROW_START, budget=64, whole=whole)


@pytest.mark.parametrize("questions", range(8))
@pytest.mark.parametrize("whole", [False, True])
def test_a_whole_visit_that_has_begun_is_ended(questions, whole):
    visits, guard = visits_of_one_rank(whole=whole), Impatient(questions)
    assert len(visits.calls(0)) == 4
    for piece in range(2):
        list(visits.attend(piece, guard, lambda work: len(work)))
    under_way = (visits.cursor > 0) & (visits.cursor < VISITED)
    assert not under_way.any() if whole else under_way.any() == (questions in (2, 3, 4, 7))
