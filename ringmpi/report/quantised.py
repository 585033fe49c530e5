"""The attention map in few bytes: weights as 16-bit steps on a log scale, which the script of the page undoes."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CELLS = 600_000  # on the page, of all heads together: 1.6 MB as text
MOST_CELLS = 512  # a side of one map
DECADES = 6  # below the largest weight: what is less counts as the smallest
COLOUR_DECADES = 4  # that colours tell apart
TOP_STEP = 65535


def cells_a_side(maps: int) -> int:
    """Cells a side of each of so many maps, so that the page stays small."""
    return min(MOST_CELLS, int((CELLS / maps) ** 0.5))


def quantised(weights: NDArray[np.float64]) -> tuple[NDArray[np.uint16], float, float]:
    """Steps of weights on a log scale, and the weights of its two ends.

    Parameters
    ----------
    weights : float64 [...]
        >= 0; nan counts as 0.

    Returns
    -------
    steps : uint16 [...]
        0: no weight. Else the weight is low x (high / low) ** ((step - 1) / 65534), within 0.011 % unless it is
        below `low`.
    low, high : float
    """
    weights = np.nan_to_num(weights, nan=0.0)
    there = weights > 0
    if not there.any():
        return np.zeros(weights.shape, np.uint16), 0.1, 1.0
    high = float(weights.max())
    low = max(float(weights[there].min()), high / 10**DECADES)
    if low == high:
        low = high / 10
    part = np.log(np.maximum(weights, low) / low) / np.log(high / low)
    steps = np.where(there, 1 + np.rint(part * (TOP_STEP - 1)), 0)
    return steps.astype(np.uint16), low, high


def as_text(array: NDArray[Any]) -> str:
    """Bytes of an array in C order, little-endian, base64."""
    little = array.byteswap() if sys.byteorder == "big" and array.itemsize > 1 else array
    return b64encode(np.ascontiguousarray(little).tobytes()).decode("ascii")


def map_data(
    names: Sequence[str], weights: NDArray[np.float64], edges: tuple[list[int], list[int]], colours: NDArray[np.uint8]
) -> dict[str, Any]:
    """What the script of the page draws.

    Parameters
    ----------
    names : sequence of str [maps]
        What each map is of.
    weights : float64 [maps, query cells, key cells]
    edges : pair of lists of int
        Positions at which cells begin, and the end of the last: of queries, of keys.
    colours : uint8 [256, 3]
        From the smallest to the largest weight.
    """
    steps, low, high = quantised(weights)
    return {
        "names": list(names),
        "queries": edges[0],
        "keys": edges[1],
        "low": low,
        "high": high,
        "clipped": bool((weights[weights > 0] < low).any()),
        "darkest": max(low, high / 10**COLOUR_DECADES),
        "steps": as_text(steps),
        "colours": as_text(colours),
    }
