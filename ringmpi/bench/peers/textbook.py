"""The formula as a textbook has it, in NumPy: all scores of a head at once."""

from __future__ import annotations

import numpy as np

from ringmpi.bench.peers import Array, Prepared, UnsupportedError, refuse
from ringmpi.bench.questions import Question

SCORE_BYTES = 2 << 30


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """One head after the other."""
    refuse(backward_pass=backward, ALiBi=question.alibi_slopes, sinks=question.sink_logits)
    refuse(arithmetic_in_16_bit=question.dtype in ("float16", "bfloat16"))
    queries, keys = question.lengths
    if queries * keys * question.q.itemsize > SCORE_BYTES:
        raise UnsupportedError(f"needs {queries * keys * question.q.itemsize / 2**30:.1f} GiB for the scores of a head")
    masked = None if question.mask == "full" else ~question.allowed()

    def run() -> Array:
        return np.stack([_head(question, head, masked) for head in range(len(question.q))])

    return Prepared(run, lambda output: [output], {"numpy": np.__version__})


def _head(question: Question, head: int, masked: Array | None) -> Array:
    q, k, v = question.q[head], question.k[head // question.group], question.v[head // question.group]
    with np.errstate(all="ignore"):
        scores = q @ k.T * q.dtype.type(q.shape[-1] ** -0.5)
        if question.softcap is not None:
            scores = q.dtype.type(question.softcap) * np.tanh(scores / q.dtype.type(question.softcap))
        if masked is not None:
            scores[masked] = -np.inf
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        output: Array = scores @ v / scores.sum(-1, keepdims=True)
    return output
