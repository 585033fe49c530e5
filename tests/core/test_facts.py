"""What the literature says of the merge, each statement a test: reproduced, or contradicted with a number."""

from __future__ import annotations

import itertools
import math
from functools import reduce

import numpy as np
import pytest

from ringmpi.core.partial import Partial, empty_partial, finalize, merge

Q, K, V = np.array([1.0, 0, -1, 2]), np.array([1.0, 2, 0, -1]), np.array([10.0, 20, 30, 40])
WORKED_OUTPUT = [19.14379, 25.00000, 34.37567, 19.03071]


def block(queries, keys, values):
    """The partial of one block of keys: q, k [n] and values [n, dim], one head."""
    scores = np.atleast_2d(np.outer(queries, keys) if np.ndim(queries) == 1 else queries @ np.transpose(keys))
    row_max = scores.max(1)
    weights = np.exp(scores - row_max[:, None])
    values = np.reshape(values, (len(scores[0]), -1))
    return Partial(row_max[None, None], weights.sum(1)[None, None], (weights @ values)[None, None])


def output_of(partial):
    return finalize(partial, partial.weighted_sum.dtype)[0][0, 0]


def test_merging_is_not_averaging():
    """Scores 0 and 10 on two ranks, values 0 and 1: a mean of the two outputs says 0.5."""
    far, near = block([1.0], [0.0], [0.0]), block([1.0], [10.0], [1.0])
    assert output_of(merge(far, near)).item() == pytest.approx(1 / (1 + math.exp(-10)), abs=1e-15)
    assert round(output_of(merge(far, near)).item(), 5) == 0.99995
    far, near = block([1.0], [0.0], [0.0]), block([1.0], [10.0], [1.0])
    assert (output_of(far) + output_of(near)).item() / 2 == 0.5


def merge_without_maxima(a, b):
    """What a published two-device listing does: unnormalised sums weighted by their row sums, maxima forgotten."""
    weighted = a.weighted_sum * a.row_sum[..., None] + b.weighted_sum * b.row_sum[..., None]
    return (weighted / (a.row_sum + b.row_sum)[..., None])[0, 0]


def test_a_merge_that_forgets_the_maxima_is_wrong_by_a_fifth():
    rng = np.random.default_rng(5)
    q, k, v = (0.1 * rng.standard_normal((8, 16)) for _ in range(3))
    q /= math.sqrt(16)
    whole = output_of(block(q, k, v))
    wrong, right = [], []
    for rows, first, second in ((slice(0, 4), slice(0, 4), slice(4, 8)), (slice(4, 8), slice(4, 8), slice(0, 4))):
        own, visiting = block(q[rows], k[first], v[first]), block(q[rows], k[second], v[second])
        wrong.append(merge_without_maxima(own, visiting))
        right.append(output_of(merge(own, visiting)))
    assert np.abs(np.vstack(wrong) - whole).max() == pytest.approx(0.22, abs=0.005)
    assert np.abs(np.vstack(right) - whole).max() < 1e-15


def test_the_worked_example_of_four_keys():
    np.testing.assert_allclose(output_of(block(Q, K, V))[:, 0], WORKED_OUTPUT, rtol=0, atol=5e-6)


def test_the_worked_example_on_two_ranks_has_the_published_intermediate_values():
    """Its first query (q = 1): a rank meets keys 0 and 1, then keys 2 and 3 come to visit."""
    first = block(Q[:1], K[:2], V[:2])
    after_first = (first.row_max.item(), first.row_sum.item(), first.weighted_sum.item())
    assert after_first == pytest.approx((2, 1.367879, 23.678794), abs=5e-7)
    both = merge(first, block(Q[:1], K[2:], V[2:]))
    after_second = (both.row_max.item(), both.row_sum.item(), both.weighted_sum.item())
    assert after_second == pytest.approx((2, 1.553002, 29.730336), abs=5e-7)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_blocks_does_not_matter(order):
    parts = [block(Q, K[[j]], V[[j]]) for j in order]
    np.testing.assert_allclose(output_of(reduce(merge, parts))[:, 0], WORKED_OUTPUT, rtol=0, atol=5e-6)


def test_the_first_partial_is_adopted_unchanged():
    """(-inf, 0, 0) is the identity of the merge, bit by bit."""
    part = block(Q, K, V)
    identity = empty_partial(1, 1, len(Q), 1, np.dtype(np.float64))
    adopted = merge(identity, part)
    for name in ("row_max", "row_sum", "weighted_sum"):
        assert getattr(adopted, name).tobytes() == getattr(part, name).tobytes()
