"""Small questions on which attention goes wrong: our own list. Needs NumPy alone, as peers may have no more.

A textbook's error is invisible on normal random numbers of a round length; each of these brings one out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.bench.questions import Question, rounded

Array = NDArray[Any]


@dataclass(frozen=True)
class Hard:
    """A question, why it is hard, and what would be the right answer if it is not the one to this question.

    truth   the mask of the right answer; None: that of the question. Where it differs, a pair has been dropped on
            purpose, and the point is who notices.
    """

    why: str
    question: Callable[[], Question]
    truth: str | None = None


def _normal(
    queries: int = 256, keys: int | None = None, heads: tuple[int, int] = (2, 2), dim: int = 64, **options: Any
) -> Question:
    rng = np.random.default_rng([queries, dim, heads[0]])
    rows, columns = (heads[0], queries, dim), (heads[1], queries if keys is None else keys, dim)
    dtype = options.get("dtype", "float32")
    arrays = (rng.standard_normal(shape, np.float32) for shape in (rows, columns, columns, rows))
    q, k, v, grad_output = (rounded(array, dtype) for array in arrays)
    return Question(q, k, v, grad_output, **options)


def _scaled(question: Question, factor: float) -> Question:
    """Scores `factor` times as large."""
    return replace(question, q=question.q * question.q.dtype.type(factor))


def _hidden(value: float) -> Question:
    """A value in a key and its value that only the last row sees, and the last row sees a finite one there."""
    question = _normal(mask="causal")
    k, v = question.k.copy(), question.v.copy()
    k[:, -1], v[:, -1] = value, value
    return replace(question, k=k, v=v, q=question.q[:, :-1], grad_output=question.grad_output[:, :-1])


def _one_infinite_value() -> Question:
    question = _normal(mask="causal")
    v = question.v.copy()
    v[:, 100, 3] = -np.inf
    return replace(question, v=v)


def _ones(keys: int) -> Question:
    """All values are 1, so all output is: errors of long sums show."""
    question = _normal(8, keys, heads=(1, 1))
    return replace(question, v=np.ones_like(question.v))


def _one_weak_pair_less() -> Question:
    """Row 1024 and key 7 point away from each other: their pair weighs less than rounding does."""
    question = _normal(2048, heads=(1, 1), mask="hole:1024,7")
    k = question.k.copy()
    k[:, 7] = -question.q[:, 1024]
    return replace(question, k=k)


def _slopes(question: Question) -> Question:
    heads = len(question.q)
    return replace(question, alibi_slopes=2.0 ** (-8.0 * np.arange(1, heads + 1) / heads))


def _sinks(question: Question) -> Question:
    return replace(question, sink_logits=np.linspace(-1, 3, len(question.q)))


HARD: dict[str, Hard] = {
    "full": Hard("nothing is: the base line", _normal),
    "causal": Hard("the diagonal", lambda: _normal(mask="causal")),
    "odd lengths": Hard("no tile divides 251 rows and 509 keys", lambda: _normal(251, 509)),
    "one key": Hard("the softmax of one score is 1", lambda: _normal(64, 1)),
    "causal, fewer keys": Hard("row 100 of 256 sees all 64 keys", lambda: _normal(256, 64, mask="causal")),
    "rows without keys": Hard("documents without keys: 0, not NaN", lambda: _normal(8, 8, mask="lengths:3+2+3/4+0+4")),
    "causal at the end, fewer keys": Hard("192 rows see no key", lambda: _normal(256, 64, mask="causal-end")),
    "documents": Hard("five causal documents in one sequence", lambda: _normal(mask="documents:5")),
    "window": Hard("itself and 7 before it", lambda: _normal(mask="window:7")),
    "grouped heads": Hard("8 query heads on 2 key heads", lambda: _normal(heads=(8, 2))),
    "grouped heads, causal": Hard("9 query heads on 3 key heads", lambda: _normal(heads=(9, 3), mask="causal")),
    "head_dim 80": Hard("no vector divides it", lambda: _normal(dim=80)),
    "softcap": Hard("scores held within 2 by tanh", lambda: _normal(softcap=2.0)),
    "ALiBi": Hard("a bias that grows with the distance", lambda: _slopes(_normal(heads=(4, 4), mask="causal"))),
    "sinks": Hard("one logit per head in the normaliser", lambda: _sinks(_normal(heads=(4, 4), mask="causal"))),
    "scores of 1e3": Hard("exp overflows at 89", lambda: _scaled(_normal(), 400.0)),
    "scores of 1e8": Hard("one key takes all", lambda: _scaled(_normal(), 4e7)),
    "hidden NaN": Hard("NaN behind the mask reaches no row", lambda: _hidden(np.nan)),
    "hidden inf": Hard("inf behind the mask reaches no row", lambda: _hidden(np.inf)),
    "-inf in a value": Hard("reaches the rows that see it, in its column", _one_infinite_value),
    "100,000 keys": Hard("values of 1 give 1: the sums are long", lambda: _ones(100_000)),
    "float64": Hard("computed in float64", lambda: _normal(dtype="float64")),
    "bfloat16": Hard("16 bits are for storage, float32 for sums", lambda: _normal(1024, dtype="bfloat16")),
    "bfloat16, long": Hard("sums of 16,384 keys", lambda: _normal(32, 16_384, dtype="bfloat16")),
    "float16": Hard("the same in float16", lambda: _normal(1024, dtype="float16")),
    "float16, large": Hard("q . k exceeds 65,504", lambda: _scaled(_normal(dtype="float16"), 1024.0)),
    "one pair dropped": Hard("1 of 4,194,304, of little weight: does anything tell?", _one_weak_pair_less, "full"),
}
