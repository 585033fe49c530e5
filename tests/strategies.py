"""Hypothesis draws masks, shardings and problems: any length, any rank count, empty shards, unequal lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ringmpi import Mask, Sharding
from ringmpi.core.schedule import SCHEDULES

WHOLE_DTYPES = ["u1", "i1", "u2", "i4", "u8", "i8"]
LENGTHS = st.integers(0, 40)
RANKS = st.integers(1, 8)
SCHEDULE_NAMES = st.sampled_from(sorted(SCHEDULES))
OFFSETS = st.one_of(st.integers(-9, 9), st.just("end"))


@st.composite
def lengths_summing_to(draw: DrawFn, total: int, count: int) -> list[int]:
    """Document lengths, zeros among them."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=count - 1, max_size=count - 1)))
    return np.diff([0, *cuts, total]).tolist()


def simple_masks() -> SearchStrategy[Mask]:
    """Masks that hold at any length."""
    reach = st.one_of(st.none(), st.integers(0, 12))
    count = st.integers(0, 10)
    bound = st.integers(-45, 45)
    row = st.tuples(*[st.integers(0, 45)] * 4, bound, bound)
    return st.one_of(
        st.just(Mask.full()),
        st.builds(Mask.causal, OFFSETS),
        st.builds(Mask.window, reach, reach, OFFSETS),
        st.builds(Mask.prefix, count),
        st.builds(Mask.sinks, count),
        st.builds(lambda a, n: Mask.keys(a, a + n), count, count),
        st.builds(Mask.slices, st.lists(row, min_size=1, max_size=5)),
    )


@st.composite
def documents(draw: DrawFn, query_length: int, key_length: int) -> Mask:
    """Documents of drawn lengths, each with a simple mask within."""
    count = draw(st.integers(1, 6))
    q_lengths = draw(lengths_summing_to(query_length, count))
    k_lengths = draw(lengths_summing_to(key_length, count))
    return Mask.documents(q_lengths, k_lengths, within=draw(st.one_of(st.none(), simple_masks())))


def masks(query_length: int, key_length: int) -> SearchStrategy[Mask]:
    """Any mask of these lengths."""
    leaves = st.one_of(simple_masks(), documents(query_length, key_length))
    both = lambda inner: st.builds(lambda a, b: a & b, inner, inner)  # noqa: E731
    either = lambda inner: st.builds(lambda a, b: a | b, inner, inner)  # noqa: E731
    return st.recursive(leaves, lambda inner: st.one_of(both(inner), either(inner)), max_leaves=4)


@st.composite
def custom_shardings(draw: DrawFn, length: int, size: int) -> Sharding:
    """Runs of any length, dealt to ranks at random: some get several, some none."""
    count = draw(st.integers(1, 8))
    sizes = draw(lengths_summing_to(length, count))
    stops = np.cumsum(sizes).tolist()
    shards: list[list[range]] = [[] for _ in range(size)]
    for stop, run in zip(stops, sizes, strict=True):
        shards[draw(st.integers(0, size - 1))].append(range(stop - run, stop))
    return Sharding.from_ranges(length, shards)


def shardings(length: int, size: int, mask: Mask | None = None, other_length: int = 0) -> SearchStrategy[Sharding]:
    """Any sharding; the balanced one of `mask` where it is given."""
    block = st.sampled_from([1, 1, 4])
    choices = [
        st.builds(Sharding.contiguous, st.just(length), st.just(size), block=block),
        st.builds(Sharding.zigzag, st.just(length), st.just(size), block=block),
        st.builds(Sharding.striped, st.just(length), st.just(size), block=block),
        custom_shardings(length, size),
    ]
    if mask is not None:
        choices.append(st.builds(lambda: Sharding.balanced(mask, size, length=length, key_length=other_length)))
    return st.one_of(choices)


@st.composite
def rings(draw: DrawFn) -> dict[str, Any]:
    """Everything that a ring is made of."""
    query_length, key_length, size = draw(LENGTHS), draw(LENGTHS), draw(RANKS)
    mask = draw(masks(query_length, key_length))
    return {
        "lengths": (query_length, key_length),
        "mask": mask,
        "ranks": size,
        "sharding": draw(shardings(query_length, size, mask, key_length)),
        "key_sharding": draw(shardings(key_length, size)),
        "schedule": draw(SCHEDULE_NAMES),
    }
