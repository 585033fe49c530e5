"""Advice: each rule speaks where it should, with figures that are true, and is silent elsewhere."""

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.planner.advice import advise
from ringmpi.planner.balance import resharded
from ringmpi.planner.machines import Rates
from ringmpi.planner.plan import make_plan, ranks_that_fit
from tests.planner.problems import problem

SILENCE = ["nothing to change: no rule of `ringmpi plan` finds anything better."]


def advice(asked, rates=None, memory=None):
    return advise(make_plan(asked, rates), memory)


def test_a_balanced_plan_that_fits_needs_no_advice():
    fast_network = Rates(1e9, 1e12, "")
    assert advice(problem(16_000, 8, sharding="zigzag"), fast_network, 1e12) == SILENCE


def test_contiguous_causal_on_8_ranks_wastes_47_percent():
    (sentence,) = advice(problem(80_000, 8))
    assert sentence == (
        "contiguous wastes 47 % here (the busiest rank does 1.87 times the mean): use zigzag, which wastes 0 %."
    )


def test_where_nothing_balances_better_fewer_ranks_are_advised():
    (sentence,) = advice(problem(5, 3, sharding="zigzag", mask=Mask.full()))
    assert "no other sharding does much better" in sentence


def test_striped_is_a_poor_choice_for_documents():
    mask = Mask.documents([1000] * 16, within=Mask.causal())
    asked = problem(16_000, 4, sharding="striped", mask=mask)
    (sentence,) = advice(asked)
    sent = make_plan(asked).bytes_sent / 1e6
    assert sentence.startswith(f"striped is a poor choice for documents(16, within=causal): it sends {sent:,.3g} MB")
    better = make_plan(resharded(asked, "balanced", 4))
    assert better.bytes_sent < make_plan(asked).bytes_sent / 2
    assert advice(better.problem) == SILENCE


@pytest.mark.parametrize("memory", [3e6, 1e6, 4e5])
def test_the_ranks_that_fit_do_and_one_fewer_do_not(memory):
    asked = problem(16_000, 2, sharding="zigzag")
    (sentence,) = advice(asked, memory=memory)
    enough = ranks_that_fit(asked, "zigzag", memory)
    assert sentence.endswith(f"per rank; on {enough} ranks it does.")
    assert make_plan(resharded(asked, "zigzag", enough)).memory.peak <= memory
    assert make_plan(resharded(asked, "zigzag", enough - 1)).memory.peak > memory


def test_all_gather_that_fits_on_no_number_of_ranks_says_why():
    (sentence,) = advice(problem(4096, 2, mask=Mask.full(), schedule="all-gather"), memory=5e5)
    assert "on any number of ranks: all-gather holds all keys" in sentence


def test_hops_that_are_not_hidden_are_said_with_the_ranks_that_hide_them():
    asked = problem(8_000, 8, mask=Mask.full())
    rates = Rates(3000.0 * 1e9, 1e9, "")
    (sentence,) = advice(asked, rates)
    assert "1,000 queries per rank, 3,000 are needed" in sentence
    assert "At this length 2 ranks or fewer hide them." in sentence
    assert not make_plan(resharded(asked, "contiguous", 2), rates).times.exposed.any()
    assert make_plan(resharded(asked, "contiguous", 3), rates).times.exposed.any()


def test_ranks_without_queries_and_masks_without_pairs_are_said():
    assert "7 ranks have none. Use at most 3 ranks." in " ".join(advice(problem(3, 10)))
    assert advice(problem(100, 2, mask=Mask.keys(5, 5)))[0].startswith("the mask allows no pair")


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_every_number_of_ranks_and_no_tokens_at_all_can_be_planned(dtype):
    for length in (0, 1, 5):
        for ranks in (1, 2, 7):
            assert advice(problem(length, ranks, dtype=dtype), Rates(1e9, 1e9, ""), 1e3)


def test_gradients_that_fit_on_no_planned_number_of_ranks_are_told_so():
    plan = make_plan(problem(1024, 128, sharding="contiguous"), travel="keys")
    (sentence,) = [line for line in advise(plan, 1.0) if "does not fit" in line]
    assert sentence.endswith("per rank, nor on 256 ranks.")
