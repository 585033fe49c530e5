"""ringmpi itself, by its public functions, on one of its backends."""

from __future__ import annotations

from typing import Any

import numpy as np

import ringmpi
from ringmpi.backends import get_backend
from ringmpi.bench.peers import Array, Prepared, UnsupportedError
from ringmpi.bench.questions import Case, Question, document_lengths, parse_lengths
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.masking import Mask
from ringmpi.errors import BackendError


def prepare(contender: str, question: Question, *, backward: bool, threads: int) -> Prepared:
    """Threads are those of OMP_NUM_THREADS, as in any run."""
    dtype = dtype_of(question.dtype)
    q, k, v, grad = (array.astype(dtype) for array in (question.q, question.k, question.v, question.grad_output))
    options: dict[str, Any] = {
        "mask": mask_of(question.mask, *question.lengths),
        "softcap": question.softcap,
        "sink_logits": question.sink_logits,
        "alibi_slopes": question.alibi_slopes,
        "backend": contender,
    }
    try:
        isa = getattr(get_backend(contender), "isa", "that of NumPy")
    except BackendError as error:
        raise UnsupportedError(str(error)) from None
    about = {"ringmpi": ringmpi.__version__, "isa": isa}
    if not backward:
        return Prepared(
            lambda: ringmpi.attention(q, k, v, **options),
            lambda out: [widened(out.output)],
            about,
            lambda out: out.pairs,
        )
    out = ringmpi.attention(q, k, v, **options)
    return Prepared(
        lambda: ringmpi.attention_backward(grad, q, k, v, out, **options),
        lambda grads: [widened(array) for array in grads],
        about,
        lambda grads: grads.pairs,
    )


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name; NumPy alone knows no bfloat16."""
    return bfloat16 if name == "bfloat16" else np.dtype(name)


def widened(array: Array) -> Array:
    """As `Prepared.read` gives it: float32, or float64 as it is."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def pairs_of(case: Case) -> int:
    """Pairs that the mask of a case allows, of one head."""
    return mask_of(case.mask, case.length, case.length).pairs(case.length, case.length)


def mask_of(words: str, queries: int, keys: int) -> Mask:
    """The Mask that questions.py describes in words."""
    kind, _, rest = words.partition(":")
    if kind == "causal-end":
        return Mask.causal(offset="end")
    if kind == "window":
        return Mask.window(int(rest), 0)
    if kind == "documents":
        return Mask.documents(document_lengths(int(rest), queries), within=Mask.causal())
    if kind == "lengths":
        of_query, of_key = parse_lengths(rest)
        return Mask.documents(of_query, of_key)
    if kind == "hole":
        row, key = map(int, rest.split(","))
        far = queries + keys
        boxes = [(0, row, 0, keys), (row, row + 1, 0, key), (row, row + 1, key + 1, keys), (row + 1, queries, 0, keys)]
        return Mask.slices([(*box, -far, far) for box in boxes if box[0] < box[1] and box[2] < box[3]])
    return Mask.causal() if kind == "causal" else Mask.full()
