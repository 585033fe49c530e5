"""Is this output file right? Several questions, because none of them sees every fault.

    digest    the bits of every array are those that were written: sees one changed number, swapped rows
    shards    every row was held by one rank
    input     the input file is the one that the run read
    pairs     the mask's pairs as integers: sees a dropped or repeated pair, which no tolerance sees
    rows      chosen rows, recomputed from the input file in wider precision: sees wrong arithmetic

The same for gradients: pairs of the backward pass, rows of /grad_query, and keys of /grad_key and /grad_value
(analysis/recompute_gradients.py says what the latter rest on).

Neither file is loaded whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ringmpi.analysis import checks
from ringmpi.analysis.certificate import Certificate, Check
from ringmpi.analysis.recompute import Ints, recompute, sample_positions
from ringmpi.analysis.recompute_gradients import (
    recompute_key_gradients,
    recompute_query_gradients,
    rows_of_file,
    rows_of_input,
)
from ringmpi.config import RunConfig, parse_config
from ringmpi.core.dtypes import wide_dtype
from ringmpi.errors import ConfigError, MaskError, ShapeError, StorageError
from ringmpi.question import Question, question_of
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.layout import LOG_SUM_EXP, OUTPUT
from ringmpi.storage.merge import check_cover
from ringmpi.storage.results import Results

__all__ = ["Certificate", "verify_file"]

SEARCH_SCORES = 1 << 30  # recomputed at most to find what changed: less than a minute in float64
GRADIENT_COST = 32  # times that of the output alone: more products, and all rows once more for each block of keys
LONGDOUBLE_COST = 16  # times that of float64, without BLAS


def verify_file(path: str | Path, rows: int = 64, seed: int = 0) -> Certificate:
    """Check an output file against its own record and its input file.

    If a digest does not match, all rows are recomputed where that is affordable, to say which ones are wrong.

    Parameters
    ----------
    path : path
        An output file of `ringmpi run`.
    rows : int
        Rows to recompute, all heads of each; all rows if there are no more. 0: none.
    seed : int
        Of the choice of rows.

    Returns
    -------
    Certificate

    Raises
    ------
    ConfigError
        If `rows` or `seed` is negative.
    StorageError
        If the output file is missing, damaged or no output of ringmpi.
    """
    for name, value in (("rows", rows), ("seed", seed)):
        if value < 0:
            raise ConfigError(f"{name} = {value}; must be a whole number >= 0. Leave it out for the default.")
    with Results(path) as results:
        found = [checks.digest(array) for array in results.arrays]
        changed = {array.name for array, check in zip(results.arrays, found, strict=True) if not check.passed}
        found.append(checks.shards(results))
        found += [checks.key_shards(results)] if results.gradients else []
        found += _against_input(results, rows, seed, changed)
    return Certificate(str(path), seed, tuple(found))


def _against_input(results: Results, rows: int, seed: int, changed: set[str]) -> Iterator[Check]:
    """All checks that need the input file, as far as it lets them be made. `changed`: arrays of another digest."""
    provenance = results.record.provenance
    try:
        config = parse_config(provenance.configuration, "configuration in /provenance")
        path = _input_path(Path(str(provenance.input_identity["path"])), Path(config.input.file))
        yield checks.identity(path, provenance.input_identity, lambda: _checksums(config, path))
        with Inputs(path) as inputs:
            question = question_of(config, inputs)
            yield checks.pairs(question, results.record)
            if results.record.backward is not None:
                yield checks.backward_pairs(question, results.record.backward, results.record.earlier_pairs[1])
            yield from _rows(question, results, rows, seed, changed)
    except (ConfigError, StorageError, ShapeError, MaskError) as error:
        yield Check("question", False, f"what the run was asked cannot be asked again ({error})")


def _checksums(config: RunConfig, path: Path) -> dict[str, str]:
    """Of the arrays of the input as they are now; none where they cannot be read, which the next check says."""
    try:
        with Inputs(path) as inputs:
            return question_of(config, inputs).checksums()
    except (StorageError, ShapeError, MaskError):
        return {}


def _input_path(absolute: Path, configured: Path) -> Path:
    """Where the run read from; if nothing is there, what the configuration names from the working directory."""
    return configured if configured.exists() and not absolute.exists() else absolute


def _rows(question: Question, results: Results, rows: int, seed: int, changed: set[str]) -> Iterator[Check]:
    """Recompute sampled rows; all rows if a digest says that something changed and there is time to find it."""
    shape = checks.shape(question, results)
    yield shape
    if not shape.passed:
        return
    if changed and _can_afford_all_rows(question):
        rows = max(question.q.length, question.k.length)
    positions = _sample(results.shards, question.q.length, rows, seed)
    if len(positions):
        for judged in recompute(question, results.output, results.log_sum_exp, positions):
            yield checks.rows(judged, question, changed=judged.name in changed)
    if results.gradients:
        yield from _gradients(question, results, positions, rows, (seed, changed))


def _gradients(
    question: Question, results: Results, positions: Ints, rows: int, options: tuple[int, set[str]]
) -> Iterator[Check]:
    """Gradients of the rows at `positions`, and of as many sampled keys. options: seed and changed arrays."""
    seed, changed = options
    if len(positions):
        judged = recompute_query_gradients(question, results, positions)
        yield checks.rows(judged, question, changed=judged.name in changed)
    keys = _sample(results.key_shards, question.k.length, rows, seed)
    if len(keys):
        every = len(positions) == question.q.length
        rows_of = rows_of_input(question) if every else rows_of_file(question, results)
        basis = "" if every else f"; from {LOG_SUM_EXP} and {OUTPUT} as they are in the file"
        for judged in recompute_key_gradients(question, results, keys, rows_of):
            yield checks.rows(judged, question, changed=judged.name in changed, basis=basis)


def _sample(shards: Sequence[Sequence[range]], length: int, rows: int, seed: int) -> Ints:
    """Positions in all shards, or anywhere where the shards are not what they must be."""
    try:
        check_cover(shards, length)
    except StorageError:
        shards = [[range(length)]]
    return sample_positions(shards, rows, seed)


def _can_afford_all_rows(question: Question) -> bool:
    scores = question.q.length * question.k.length * question.problem.heads.query_slabs
    cost = 1 if wide_dtype(question.problem.dtype) == np.float64 else LONGDOUBLE_COST
    return scores * cost * (1 if question.grad_output is None else GRADIENT_COST) <= SEARCH_SCORES
