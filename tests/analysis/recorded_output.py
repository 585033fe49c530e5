"""Outputs with everything that a run can record, by the plain formula in float64, and with timelines as wanted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.storage.account import LateRecord
from ringmpi.storage.attempts import Attempts, write_attempts
from ringmpi.storage.digest import new_digest
from ringmpi.storage.late_record import write_late_record
from ringmpi.storage.layout import dataset_layout
from ringmpi.storage.record_layout import KEYS_ATTRIBUTE, RECORDED_ROWS, SINKS
from tests.analysis.written import LENGTH, Case, write_run

BLOCK, FIRST_KEYS, TOP_ROWS, K = 7, 4, (0, 13, 59), 5


@dataclass(frozen=True)
class Written:
    """An output and what is true of it: weights float64 [slabs, queries, keys]."""

    path: Path
    weights: NDArray[np.float64]

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Rows that see a key, [slabs, queries]."""
        return np.asarray(self.weights.sum(axis=2) > 0)


def write_recorded(folder: Path, case: Case | None = None, *, window: int | None = None, block: int = BLOCK) -> Written:
    """out.h5 of a causal run, or of one in which a query sees `window` keys that lie 3 or more before it."""
    if case is None:
        mask = '"causal"' if window is None else f"{{window = [{window - 1}, 0], offset = -3}}"
        case = Case(attention=f"mask = {mask}", sharding="contiguous")
    path = write_run(folder, case)
    apart = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    allowed = apart >= 0 if window is None else (apart >= 3) & (apart <= window + 2)
    with h5py.File(folder / "input.h5") as file:
        q, k = (file[name][...].astype(np.float64).reshape(-1, *file[name].shape[-3:]) for name in "qk")
    scores = np.einsum("bhid,bhjd->bhij", q, np.repeat(k, q.shape[1] // k.shape[1], axis=1)) / np.sqrt(q.shape[-1])
    scores = np.where(allowed, scores, -np.inf).reshape(-1, LENGTH, LENGTH)
    weights = np.where(allowed, np.exp(scores - _log_sum_exp(scores)[..., None]), 0)
    with h5py.File(path, "r+") as file:
        arrays = {f"/record/{name}": array for name, array in _recorded(weights, scores, block).items()}
        heads = file["output"].shape[:-2]
        arrays = {n: a if a.ndim == 1 else a.reshape(*heads, *a.shape[1:]) for n, a in arrays.items()}
        for name in RECORDED_ROWS:
            add(file, name, arrays.pop(name))
        file[SINKS].attrs[KEYS_ATTRIBUTE] = np.int64(FIRST_KEYS)
        write_late_record(file, LateRecord(None, arrays=arrays, block=block, key_length=LENGTH))
    return Written(path, weights)


def add(file: Any, path: str, array: NDArray[Any]) -> None:
    """A dataset with its digest, as a run describes it."""
    file[path] = array
    dataset_layout(path).describe(file[path])
    digest = new_digest()
    digest.update(file[path][...].data)
    file[path].attrs["blake2b"] = digest.hexdigest()


def _log_sum_exp(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    most = scores.max(axis=-1)
    most[np.isneginf(most)] = 0
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(np.isneginf(scores).all(axis=-1), 0, most + np.log(_safe(scores, most))))


def _safe(scores: NDArray[np.float64], most: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.exp(scores - most[..., None]).sum(axis=-1)
    return np.where(sums > 0, sums, 1)


def _recorded(weights: NDArray[np.float64], scores: NDArray[np.float64], block: int) -> dict[str, NDArray[Any]]:
    seen = weights.sum(axis=2) > 0
    apart = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    top = np.argsort(-weights[:, TOP_ROWS], axis=2, kind="stable")[:, :, :K]
    heavy = np.take_along_axis(weights[:, TOP_ROWS], top, axis=2)
    return {
        "entropy": -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=2),
        "distance": (weights * apart).sum(axis=2),
        "top_score": scores.max(axis=2),
        "top_key": np.where(seen, scores.argmax(axis=2), -1),
        "sinks": weights[:, :, :FIRST_KEYS].sum(axis=2),
        "map": block_map(weights, block),
        "received": weights.sum(axis=1),
        "top_rows": np.array(TOP_ROWS),
        "top_keys": np.where(heavy > 0, top, -1),
        "top_weights": heavy,
    }


def block_map(weights: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """The definition, block by block: [slabs, query blocks, key blocks]."""
    starts = range(0, LENGTH, block)
    found = np.zeros((len(weights), len(starts), len(starts)))
    for h, i, j in np.ndindex(*found.shape):
        rows = weights[h, i * block : (i + 1) * block]
        seeing = rows[rows.sum(axis=1) > 0]
        found[h, i, j] = seeing[:, j * block : (j + 1) * block].sum() / max(len(seeing), 1)
    return found


def set_timeline(path: Path, group: str = "timeline", **counters: Any) -> None:
    """Replace counters of a pass: [ranks, steps] each."""
    with h5py.File(path, "r+") as file:
        for name, array in counters.items():
            kept, dtype = dict(file[f"{group}/{name}"].attrs), file[f"{group}/{name}"].dtype
            del file[f"{group}/{name}"]
            file[f"{group}/{name}"] = np.asarray(array, dtype)
            file[f"{group}/{name}"].attrs.update(kept)


def set_attempts(path: Path, *, ranks: tuple[int, ...]) -> None:
    """As if runs on so many ranks had come to this output, one after the other."""
    each = (1,) * len(ranks)
    with h5py.File(path, "r+") as file:
        write_attempts(file, Attempts({}, ("2026-01-02T03:04:05+00:00",) * len(ranks), ranks, each, each))
