"""How far from the truth a result may be: the one policy, for tests and for `ringmpi verify`.

    max|found - reference| <= 2 max|naive - reference| + 4 eps(dtype) max|v|

`reference` is computed in a wider dtype, `naive` by the plain formula in the dtype that the kernels accumulate in: a
result must be about as good as the formula itself, however many ranks took part. A 16-bit output is cast once at the
end, so each element may be off by 0.51 units in its last place, beyond the float32 bound. What is not finite must
match.

For a gradient the size of its terms stands in the place of max|v| (`gradient_scales` in gradient_tolerance.py).

A tolerance does not reveal a dropped pair. Pairs are counted instead (analysis/verify.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import accumulate_dtype, epsilon, wide_dtype
from ringmpi.core.record import Record
from ringmpi.errors import ShapeError

Array = NDArray[Any]
Scale: TypeAlias = float | Array  # one for all elements, or one for each (broadcast)

NAIVE_FACTOR = 2
EPSILON_FACTOR = 4
CAST_ULP = 0.51
RATIO_FACTOR = 2  # between worst ratios of the same rows on two machines
OTHER_SCORES = 0.01  # above 1: the sum of weights of a row is not made with its own log_sum_exp
LEAST_RATIO = 0.01  # below it they are equally good


@dataclass(frozen=True)
class Verdict:
    """What a comparison found, at the element that comes closest to its bound or exceeds it most.

    Attributes
    ----------
    passed : bool
    error : float
        |found - reference| there; inf where one is finite and the other is not, or only one is NaN.
    bound : float
        What the policy permits there, in the units of the array.
    ratio : float
        error / bound. At most 1 when passed.
    where : tuple of int
        Index of that element; () for arrays without elements.
    found, reference : float
        The two values there.
    """

    passed: bool
    error: float
    bound: float
    ratio: float
    where: tuple[int, ...]
    found: float
    reference: float

    def __str__(self) -> str:
        """One line: worst error, bound, ratio and where."""
        return (
            f"error {self.error:.3g}, permitted {self.bound:.3g} (ratio {self.ratio:.2f}) at {list(self.where)}: "
            f"found {self.found:.9g}, reference {self.reference:.9g}"
        )


def has_wider_reference(dtype: np.dtype[Any]) -> bool:
    """Whether this platform has a dtype that can judge `dtype`.

    False only for float64 where longdouble is float64 too (Windows, macOS on ARM). Then a reference is no more exact
    than what it judges, and a verdict says that two computations agree, no more.
    """
    return bool(np.finfo(wide_dtype(dtype)).eps < np.finfo(accumulate_dtype(dtype)).eps)


def error_bound(naive: Array, reference: Array, dtype: np.dtype[Any], value_scale: Scale) -> Array:
    """The largest error that the policy permits, element by element.

    Parameters
    ----------
    naive : array [...], accumulation dtype
        The plain formula in the dtype that `dtype` accumulates in (float32 for 16 bit).
    reference : array [...], wider dtype
        The plain formula, as near to the truth as the platform goes.
    dtype : dtype
        Of the result under test.
    value_scale : float or array
        `finite_scale` of the values; for a log_sum_exp `log_sum_exp_scale`, for gradients `gradient_scales`.

    Returns
    -------
    array
        Shape and dtype of `reference`.
    """
    finite = np.isfinite(naive) & np.isfinite(reference)
    wide = reference.dtype
    naive_error = np.abs(naive[finite].astype(wide) - reference[finite]).max(initial=0)
    bound = NAIVE_FACTOR * naive_error + EPSILON_FACTOR * epsilon(accumulate_dtype(dtype)) * value_scale
    cast = CAST_ULP * _ulp(reference, dtype) if dtype.itemsize == 2 else 0
    return np.asarray(np.broadcast_to(bound + cast, reference.shape), wide)


def error_ratios(found: Array, naive: Array, reference: Array, value_scale: Scale) -> Array:
    """|found - reference| in units of what the policy permits, element by element: at most 1 passes.

    Parameters
    ----------
    found : array [...]
        The result under test, in the dtype it was delivered in: the policy is that of this dtype.
    naive, reference, value_scale
        As in `error_bound`.

    Returns
    -------
    float64 array [...]
        inf where an element that is not finite differs from its reference, and where no error is permitted.

    Raises
    ------
    ShapeError
        If the three shapes differ.
    """
    if not found.shape == naive.shape == reference.shape:
        raise ShapeError(
            f"found {found.shape}, naive {naive.shape} and reference {reference.shape} differ in shape; "
            f"compare results of the same rows."
        )
    bound = error_bound(naive, reference, found.dtype, value_scale)
    error = _distance(found.astype(reference.dtype), reference)
    ratio = np.where(error == 0, 0.0, np.inf)
    with np.errstate(over="ignore"):
        np.divide(error, bound, out=ratio, where=bound > 0, casting="same_kind")
    return ratio


def judge(found: Array, naive: Array, reference: Array, value_scale: Scale) -> Verdict:
    """Judge a result by its worst element. Parameters and errors: see `error_ratios`."""
    ratio = error_ratios(found, naive, reference, value_scale)
    if not ratio.size:
        return Verdict(True, 0.0, 0.0, 0.0, (), 0.0, 0.0)
    where = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    return Verdict(
        passed=bool(ratio[where] <= 1),
        error=float(_distance(found[where].astype(reference.dtype), reference[where])),
        bound=float(error_bound(naive, reference, found.dtype, value_scale)[where]),
        ratio=float(ratio[where]),
        where=where,
        found=float(found[where]),
        reference=float(reference[where]),
    )


def same_ratio(one: float, other: float) -> bool:
    """Whether two worst ratios may be of the same rows, judged on two machines.

    The error of a result is the same on both to many digits. What is permitted follows from how the plain formula
    rounds, and so from the order of sums in a BLAS; nothing that is equal but for that is further apart.
    """
    if not (math.isfinite(one) and math.isfinite(other)):
        return str(one) == str(other)
    small, large = sorted(max(ratio, LEAST_RATIO) for ratio in (one, other))
    return (one <= 1) == (other <= 1) and large <= RATIO_FACTOR * small


def log_sum_exp_scale(reference: Array) -> float:
    """max(1, max|log_sum_exp|) over the finite elements: stands where max|v| stands for an output."""
    return max(1.0, finite_scale(reference))


def record_scales(reference: Record) -> dict[str, Scale]:
    """The `value_scale` of each quantity of a record, by name; that of top_key is for the score of this key.

    An error of a score is a relative error of its weight, and scores are as large as the largest one. All weights are
    positive, so that is a relative error of a distance too, element by element: what is near is to be near, however
    long the sequence.
    """
    score = log_sum_exp_scale(reference.top_score)
    return {
        "entropy": score * log_sum_exp_scale(reference.entropy),
        "distance": score * np.where(np.isfinite(reference.distance), reference.distance, 0),
        "top_score": score,
        "top_key": score,
        "sinks": score,
    }


def most_of_weights(dtype: np.dtype[Any], log_sum_exp: Array, terms: Scale) -> float:
    """What the weights of a row may sum to, at most, where log_sum_exp is of the same scores.

    Rounding, or 1 %, whichever is more: log_sum_exp of another mask or scale is to be told, not bits.
    """
    return 1 + max(OTHER_SCORES, float(np.max(sum_of_weights_bound(dtype, log_sum_exp, terms), initial=0)))


def sum_of_weights_bound(dtype: np.dtype[Any], log_sum_exp: Array, terms: Scale) -> Scale:
    """How far from 1 the weights of a row may sum, where no plain formula in the same dtype is at hand to compare with.

    Their exponents are differences of numbers as large as log_sum_exp, rounded wherever they are added up: 4 times the
    error of one rounding, 4 times. And each is a score, off by 4 roundings of what its products sum to on the way,
    however small they leave it: the size of `terms` (`score_terms`), shape as that.
    """
    eps = EPSILON_FACTOR * epsilon(accumulate_dtype(dtype))
    return eps * (EPSILON_FACTOR * log_sum_exp_scale(log_sum_exp) + terms)


def weight_scale(reference: Array, log_sum_exp: Array, terms: Scale) -> Array:
    """The `value_scale` of sums or means of weights p = e^(score - log_sum_exp), [...] as `reference`.

    Weights are positive, so a relative error of theirs is one of their sums; and theirs is that of the exponent: of
    log_sum_exp, rounded when it is, and of a score, rounded when its products are added up.

    Parameters
    ----------
    reference : array [...]
    log_sum_exp : array
        Of all rows that are judged, any shape.
    terms : float or array
        `score_terms`: one for all, or one for each of the first axes of `reference`.
    """
    sizes = np.asarray(terms)
    by_head = sizes.reshape(*sizes.shape, *[1] * (reference.ndim - sizes.ndim))
    known = np.where(np.isfinite(reference), reference, 0)
    return np.asarray(known * (log_sum_exp_scale(log_sum_exp) + by_head))


def score_terms(longest_query: Array, longest_key: Array, scale: float) -> Array:
    """How large what the scores of a head sum up on the way is: scale max|q_i| max|k_j| >= scale sum_c |q_ic k_jc|.

    A score is rounded in proportion to it (Higham 2002, section 3.1), also where the products cancel.

    Parameters
    ----------
    longest_query : array [batch, query_heads]
        `longest_rows` of the queries.
    longest_key : array [batch, key_heads]
    scale : float
        Of the scores.

    Returns
    -------
    array [batch, query_heads]
        Score units.
    """
    group = longest_query.shape[1] // longest_key.shape[1]
    return np.asarray(abs(scale) * longest_query * np.repeat(longest_key, group, axis=1))


def longest_row(array: Array) -> float:
    """Largest 2-norm over the last axis, of rows that are finite."""
    return float(longest_rows(array).max(initial=0))


def longest_rows(array: Array) -> Array:
    """The same of each head: of [batch, heads, length, dim] float64 [batch, heads]."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(np.einsum("...d,...d->...", array, array, dtype=np.float64))  # casts a buffer at a time
    return np.asarray(np.where(np.isfinite(norms), norms, 0).max(-1, initial=0))


def finite_scale(values: Array) -> float:
    """max|v| over the finite elements, 0 if there are none: the `value_scale` of the policy."""
    size = np.abs(values)
    return float(size[np.isfinite(size)].max(initial=0))


def _distance(found: Array, reference: Array) -> Array:
    """|found - reference|; where one is not finite: 0 if both are the same, else inf."""
    finite = np.isfinite(found) & np.isfinite(reference)
    same = (found == reference) | (np.isnan(found) & np.isnan(reference))
    error: Array = np.where(same, reference.dtype.type(0), reference.dtype.type(math.inf))
    np.subtract(found, reference, out=error, where=finite)
    return np.asarray(np.abs(error))


def _ulp(values: Array, dtype: np.dtype[Any]) -> Array:
    """Distance between neighbours of a 16-bit `dtype` at |values|; where a value is not finite: of the smallest."""
    smallest = np.ones(1, np.uint16).view(dtype).astype(values.dtype)
    size = np.maximum(smallest, np.where(np.isfinite(values), np.abs(values), 0))
    exponent = np.frexp(size)[1] - 1
    return np.asarray(np.maximum(smallest, np.ldexp(smallest.dtype.type(epsilon(dtype)), exponent)))
