"""From q . k to a weight: scale, softcap, ALiBi, dropout. The mask is apart (core/masking.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scoring:
    """score(h, i, j) = cap(scale * q_i . k_j) - alibi_slopes[h] * |i - j|,  cap(s) = softcap * tanh(s / softcap).

    Attributes
    ----------
    scale : float
        Factor on q . k; 1 / sqrt(head_dim) by convention.
    softcap : float or None
        None: no cap. Otherwise > 0, in score units.
    alibi_slopes : array [query_heads] or None
        Score units per position, float64. i and j are global positions.
    dropout : float
        Chance that a pair is dropped after the softmax, 0 <= dropout < 1; core/dropout.py says which pairs are.
    seed : int
        Of dropout, 0 <= seed < 2^64.

    Source
    ------
    Scale: Vaswani et al. 2017, eq. 1. Softcap: Gemma 2 (2024), section 2. ALiBi: Press et al. 2022, section 3.
    Dropout: Srivastava et al. 2014, on attention weights as in Vaswani et al. 2017.
    """

    scale: float
    softcap: float | None = None
    alibi_slopes: NDArray[np.float64] | None = None
    dropout: float = 0.0
    seed: int = 0
