"""What all analysis starts from: an output file that is opened or was, its heads by name, and what it has recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.options_used import options_of
from ringmpi.errors import ConfigError, StorageError
from ringmpi.storage.layout import GRAD_KEY, LOG_SUM_EXP
from ringmpi.storage.record_layout import KEY_LENGTH_ATTRIBUTE, RECEIVED, RECORD_GROUPS, RECORDED_MAP, TOP_KEY
from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.results import Results

Source: TypeAlias = str | Path | Results

EXAMPLES = {"rows": "true", "map_block": "256", "received": "true", "top_rows": "[0, 100]"}  # of options of [record]
OPTIONS = {
    path: f"[record] {group.option} = {EXAMPLES[group.option]}" for group in RECORD_GROUPS for path in group.paths
}


class NotRecordedError(StorageError):
    """An output without something that is recorded only where it is asked for.

    Attributes
    ----------
    dataset : str
        Its path in the file.
    option : str
        What a RUN.toml must have.
    """

    def __init__(self, path: Path, dataset: str, option: str) -> None:
        self.dataset, self.option = dataset, option
        super().__init__(f"{path} has no {dataset}: run with {option}")


@contextmanager
def opened(source: Source) -> Iterator[Results]:
    """The output, open: for a path until the block ends, else as long as it was.

    Raises
    ------
    ConfigError
        If `source` is neither.
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    if not isinstance(source, str | Path | Results):
        raise ConfigError(
            f"the source is of type {type(source).__name__}; expected the path of an output file of ringmpi run, or "
            f'open Results. Give for example "out.h5".'
        )
    if isinstance(source, Results):
        yield source
    else:
        with Results(source) as results:
            yield results


def recorded(results: Results, dataset: str) -> RecordedArray:
    """What the run has recorded; NotRecordedError where it was not asked for."""
    found = results.recorded_array(dataset)
    if found is None:
        raise NotRecordedError(results.path, dataset, OPTIONS[dataset])
    return found


def head_names(results: Results) -> tuple[str, ...]:
    """A name for each slab: the heads of all batch entries, in C order."""
    batch, heads = results.output.full_shape[:2]
    if not has_batch(results):
        return tuple(f"head {head}" for head in range(heads))
    return tuple(f"batch {entry}, head {head}" for entry in range(batch) for head in range(heads))


def has_batch(results: Results) -> bool:
    """Whether the output has a batch axis."""
    return results.output.ndim == 4


def chosen_slabs(slab: int | None, names: tuple[str, ...]) -> slice:
    """One slab, or all for None.

    Raises
    ------
    ConfigError
        If there is no such slab.
    """
    if slab is None:
        return slice(0, len(names))
    if not 0 <= slab < len(names):
        raise ConfigError(
            f"slab = {slab}: the output has {len(names)}, from 0 to {len(names) - 1}, the heads of all batch entries. "
            f"Choose one of them."
        )
    return slice(slab, slab + 1)


def key_length_of(results: Results) -> int | None:
    """How many keys there were, from what has a number for each of them; None where nothing has."""
    if GRAD_KEY in results.gradients:
        return int(results.gradients[GRAD_KEY].length)
    received, blocks = (results.recorded_array(path) for path in (RECEIVED, RECORDED_MAP))
    if received is not None:
        return int(received.shape[1])
    return None if blocks is None else blocks.number(KEY_LENGTH_ATTRIBUTE)


def rows_that_see_keys(results: Results) -> tuple[RecordedArray, Callable[[NDArray[Any]], NDArray[np.bool_]]]:
    """What tells rows that see a key from those that see none: an array [slabs, rows], and a test of its numbers.

    log_sum_exp is -inf where there is no key. A sink logit is in it too; then the key with the largest score tells.

    Raises
    ------
    NotRecordedError
        If the run had sink logits and has not recorded that key.
    """
    if "attention.sink_logits" in options_of(results):
        return recorded(results, TOP_KEY), lambda found: np.asarray(found >= 0)
    log_sum_exp = results.recorded_array(LOG_SUM_EXP)
    assert log_sum_exp is not None  # Results has looked
    return log_sum_exp, lambda found: np.asarray(found != -np.inf)


def bounds(length: int, parts: int) -> NDArray[np.int64]:
    """Where `length` positions are cut into at most so many parts, as equal as can be: int64 [parts + 1]."""
    parts = max(1, min(parts, length))
    return np.array([length * part // parts for part in range(parts + 1)], np.int64)
