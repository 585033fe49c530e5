import io

import numpy as np
import pytest
from rich.console import Console

from ringmpi.cli.seconds import rank_table, spread, standing_out
from tests.storage.samples import make_account


def test_the_slowest_rank_is_named_with_its_node():
    assert standing_out(np.array([1.0, 1.0, 4.0]), ["rank 0", "rank 1", "rank 2"]) == "rank 2: 2.0 times the mean"


@pytest.mark.parametrize("seconds", [[0.1, 0.1, 0.1], [1.0, 1.0, 1.6], [0.0, 0.0, 0.29], [0.0, 0.0, 0.0], [9.0]])
def test_nobody_is_named_for_little(seconds):
    assert standing_out(np.array(seconds), ["n"] * len(seconds)) == ""


def test_times_are_short_and_ordered():
    assert spread(np.array([0.0012, 12.345, 1234.5])) == ("0.001", "415.6", "1234.5")
    assert spread(np.array([12.345])) == ("12.35",) * 3


def test_every_kind_of_time_has_a_line_of_min_mean_and_max():
    account, text = make_account(4), io.StringIO()
    Console(file=text, width=100).print(rank_table(account))
    found = {line.split()[0]: line.split()[1:] for line in text.getvalue().splitlines()[2:]}
    timeline = account.timeline
    assert found["attend"][:3] == list(spread(timeline.attend_seconds.sum(1)))
    assert found["wait"][:3] == list(spread(timeline.wait_seconds.sum(1)))
    named = ["rank", "3", "(launch", "rank", "0,", "node", "n003):", "2.0", "times", "the", "mean"]
    assert found["read"] == [*spread(timeline.read_seconds), *named]
    assert found["write"] == [*spread(timeline.write_seconds), *named]
