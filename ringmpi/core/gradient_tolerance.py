"""The `value_scale` of gradients in the policy of tolerance.py: how large the terms are that they sum up."""

from __future__ import annotations

from dataclasses import dataclass

from ringmpi.core.tolerance import Scale


@dataclass(frozen=True)
class TermSizes:
    """How large what a gradient is made of is, finite elements only: largest element, longest row (2-norm)."""

    query: float
    key: float
    grad_output: float
    longest_grad_output: float
    longest_value: float
    grad_log_sum_exp: float

    @property
    def inner(self) -> float:
        """Bound on |dP - delta| of any pair."""
        return 2 * self.longest_grad_output * self.longest_value + self.grad_log_sum_exp


def gradient_scales(sizes: TermSizes, scale: float, weight: Scale) -> tuple[float, Scale, Scale]:
    """The `value_scale` of the gradients of query, key and value.

    An output is a mean of values, so max|v| bounds it. A gradient is a sum of terms that cancel (dP - delta is 0 for a
    row of one key), so what bounds its rounding is the size of the terms: |dP - delta| <= 2 max|dO_i| max|v_j| +
    max|d log_sum_exp| with norms of rows, times the other factor, times the weight that a row (1) or a key has got.

    Parameters
    ----------
    sizes : TermSizes
    scale : float
        Of the scores.
    weight : float or array
        Sums of the probabilities that keys have got: the largest, or of each key [batch, key_heads, keys, 1].
    """
    by_score = scale * sizes.inner
    return by_score * sizes.key, by_score * sizes.query * weight, sizes.grad_output * weight
