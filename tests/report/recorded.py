"""Outputs with all that [record] asks for, by the plain formula."""

from __future__ import annotations

from hashlib import blake2b

import h5py
import numpy as np

from tests.analysis.written import LENGTH, Case, write_run

BLOCK, SINKS, TOP = 8, 4, 3
ROWS = (0, 17, LENGTH - 1)
ASKED = f"""
[record]
sinks = {SINKS}
map_block = {BLOCK}
received = true
top_rows = {list(ROWS)}
top_keys = {TOP}
"""


def scores_of(folder):
    """Causal scores of input.h5, [query heads, queries, keys]: two query heads share a key head."""
    with h5py.File(folder / "input.h5") as file:
        q, k = file["q"][...].astype("f8"), np.repeat(file["k"][...].astype("f8"), 2, axis=0)
    return np.where(np.tri(LENGTH, dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2]), -np.inf)


def write_recorded(folder, case=None):
    """A run on three ranks, and /record in its output; the path and the weights."""
    path, scores = write_run(folder, case or Case(dtype=np.float64)), scores_of(folder)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    with h5py.File(path, "r+") as file:
        file["provenance"].attrs["configuration"] += ASKED
        distance = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
        logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
        file["record/entropy"] = -(weights * logs).sum(2)
        file["record/distance"] = (weights * distance).sum(2)
        file["record/top_score"] = scores.max(2)
        file["record/top_key"] = weights.argmax(2)
        file["record/sinks"] = weights[..., :SINKS].sum(2)
        file["record/sinks"].attrs["keys"] = SINKS
        file["record/received"] = weights.sum(1)
        file["record/map"] = blocks_of(weights)
        file["record/map"].attrs["block"] = BLOCK
        file["record/map"].attrs["key_length"] = LENGTH
        order = np.argsort(-weights[:, list(ROWS)], axis=2, kind="stable")[..., :TOP]
        top = np.take_along_axis(weights[:, list(ROWS)], order, 2)
        file["record/top_rows"], file["record/top_weights"] = np.array(ROWS), top
        file["record/top_keys"] = np.where(top > 0, order, -1)
        for dataset in file["record"].values():
            dataset.attrs["blake2b"] = blake2b(dataset[...].tobytes(), digest_size=32).hexdigest()
    return path, weights


def blocks_of(weights):
    starts = np.arange(0, LENGTH, BLOCK)
    rows = np.diff([*starts, LENGTH])[:, None]
    return np.add.reduceat(np.add.reduceat(weights, starts, 1), starts, 2) / rows
