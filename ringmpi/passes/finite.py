"""Who holds NaN or inf: kernels take a quicker path where nobody does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.comm.agreement import Exchanges, shared
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.problem import Problem


def share_finite(ring: Exchanges, arrays: Sequence[Any]) -> NDArray[np.bool_]:
    """Which ranks hold neither NaN nor inf in these arrays, bool [size]. Collective."""
    return np.array(shared(ring, "looking for NaN and inf", lambda: all_finite(*arrays)), np.bool_)


def one_path(problem: Problem, finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`finite`; where equal bits are asked for, all ranks take one path of the kernel, whoever holds NaN."""
    return finite & finite.all() if problem.reproducible else finite


def all_finite(*arrays: Any) -> bool:
    """Whether no array holds NaN or inf; looks at one head at a time, to stay small."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(_is_finite(head) for array in arrays for batch in array for head in batch)


def _is_finite(head: Any) -> bool:
    """The sum is quick, and finite only where all is; where it is not, it may have overflowed."""
    return bool(np.isfinite(head.sum(dtype=accumulate_dtype(head.dtype)))) or bool(np.isfinite(head).all())
