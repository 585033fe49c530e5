"""Is this output file right? Several questions, because none of them sees every fault.

    digest    the bits of every array are those that were written: sees one changed number, swapped rows
    shards    every row was held by one rank
    input     the input file is the one that the run read
    pairs     the mask's pairs as integers: sees a dropped or repeated pair, which no tolerance sees
    rows      chosen rows, recomputed from the input file in wider precision: sees wrong arithmetic

The same for gradients: pairs of the backward pass, rows of /grad_query, and keys of /grad_key and /grad_value
(analysis/recompute_gradients.py says what the latter rest on).

Neither file is loaded whole. What was found can be written down as a certificate (analysis/certify.py), which others
check again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ringmpi.analysis import checks
from ringmpi.analysis.certificate import Certificate, Check
from ringmpi.analysis.check_late import check_late
from ringmpi.analysis.recompute import Ints, recompute, sample_positions
from ringmpi.analysis.recompute_gradients import (
    recompute_key_gradients,
    recompute_query_gradients,
    rows_of_file,
    rows_of_input,
)
from ringmpi.analysis.recompute_record import recompute_record
from ringmpi.asking.question import Question, question_of
from ringmpi.config import RunConfig, parse_config
from ringmpi.core.dtypes import wide_dtype
from ringmpi.errors import ConfigError, MaskError, ShapeError, StorageError
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.layout import LOG_SUM_EXP, OUTPUT
from ringmpi.storage.merge import check_cover
from ringmpi.storage.results import Results
from ringmpi.storage.source import ArraySource

__all__ = ["Certificate", "Found", "Request", "check_output", "verify_file"]

SEARCH_SCORES = 1 << 30  # recomputed at most to find what changed: less than a minute in float64
GRADIENT_COST = 32  # times that of the output alone: more products, and all rows once more for each block of keys
LONGDOUBLE_COST = 16  # times that of float64, without BLAS
ALL_ROWS = sys.maxsize


@dataclass(frozen=True)
class Request:
    """How an output is to be checked.

    Attributes
    ----------
    rows : int
        Rows to recompute, and keys where there are gradients.
    seed : int
        Of the choice of rows.
    input_path : path or None
        Where the input is now; None: where the run read it.
    listed : (positions, keys) or None
        Rows and keys of a certificate, taken instead of a choice; "all" for all of them.
    thorough : bool
        Read the input whole: compare its checksums whatever its size and time, and take the digests of its arrays.
    """

    rows: int = 64
    seed: int = 0
    input_path: Path | None = None
    listed: tuple[Sequence[int] | str, Sequence[int] | str] | None = None
    thorough: bool = False


@dataclass
class Found:
    """What a check of an output came to; a certificate is written from it.

    Attributes
    ----------
    checks : list of Check
    question : dict
        `Question.identity`; empty where the question could not be asked again.
    input_digests : dict
        Name -> array of the input and its digest, where the request was thorough.
    positions, keys : int64 [n]
        Rows and keys that were recomputed.
    lengths : (int, int)
        Of queries and keys.
    """

    checks: list[Check] = field(default_factory=list)
    question: dict[str, Any] = field(default_factory=dict)
    input_digests: dict[str, tuple[ArraySource, str]] = field(default_factory=dict)
    positions: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    keys: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    lengths: tuple[int, int] = (0, 0)


def verify_file(
    path: str | Path, rows: int | None = 64, seed: int = 0, *, input_path: str | Path | None = None
) -> Certificate:
    """Check an output file against its own account and its input file.

    If a digest does not match, all rows are recomputed where that is affordable, to say which ones are wrong.

    Parameters
    ----------
    path : path
        An output file of `ringmpi run`.
    rows : int or None
        Rows to recompute, all heads of each; all rows if there are no more, and for None. 0: none.
    seed : int
        Of the choice of rows.
    input_path : path or None
        Where the input is now. None: where the run read it.

    Returns
    -------
    Certificate

    Raises
    ------
    ConfigError
        If `rows` or `seed` is negative.
    StorageError
        If the output file is missing, damaged or not a ringmpi output.
    """
    request = checked_request(rows, seed, input_path)
    with Results(path) as results:
        found = check_output(results, request)
    return Certificate(str(path), seed, tuple(found.checks))


def checked_request(rows: int | None, seed: int, input_path: str | Path | None, *, thorough: bool = False) -> Request:
    """The request of a caller; ConfigError for numbers below 0."""
    for name, value in (("rows", rows or 0), ("seed", seed)):
        if value < 0:
            raise ConfigError(f"{name} = {value}; must be a whole number >= 0. Leave it out for the default.")
    moved = None if input_path is None else Path(input_path)
    return Request(ALL_ROWS if rows is None else rows, seed, moved, thorough=thorough)


def check_output(results: Results, request: Request) -> Found:
    """Make all checks of an open output, as far as they can be made."""
    found = Found([checks.digest(array) for array in results.arrays])
    changed = {array.name for array, check in zip(results.arrays, found.checks, strict=True) if not check.passed}
    found.checks.append(checks.shards(results))
    found.checks += [checks.key_shards(results)] if results.gradients else []
    found.checks += _against_input(results, request, changed, found)
    return found


def _against_input(results: Results, request: Request, changed: set[str], found: Found) -> Iterator[Check]:
    """All checks that need the input file, as far as it lets them be made. `changed`: arrays of another digest."""
    provenance = results.account.provenance
    try:
        config = parse_config(provenance.configuration, "configuration in /provenance")
        recorded = Path(str(provenance.input_identity["path"]))
        path = request.input_path or _input_path(recorded, Path(config.input.file))
        sums = dict(provenance.input_identity)
        yield checks.identity(path, sums, lambda: _checksums(config, path), always=request.thorough)
        with Inputs(path) as inputs:
            question = question_of(config, inputs)
            found.question, found.lengths = question.identity(), (question.q.length, question.k.length)
            if request.thorough:
                found.input_digests = {name: (each, dataset_digest(each)) for name, each in question.arrays.items()}
            yield checks.pairs(question, results.account)
            if results.account.backward is not None:
                yield checks.backward_pairs(question, results.account.backward, results.account.earlier_pairs[1])
            yield from _rows(question, results, request, changed, found)
    except (ConfigError, StorageError, ShapeError, MaskError) as error:
        yield Check("question", False, f"what the run was asked to compute cannot be reconstructed ({error})")


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


def _rows(question: Question, results: Results, request: Request, changed: set[str], found: Found) -> Iterator[Check]:
    """Recompute chosen rows; all rows if a digest says that something changed and there is time to find it."""
    shape = checks.shape(question, results)
    yield shape
    if not shape.passed:
        return
    _choose(question, results, request, changed, found)
    if len(found.positions):
        for judged in recompute(question, results.output, results.log_sum_exp, found.positions):
            yield checks.rows(judged, question, changed=judged.name in changed)
    if results.recorded_rows and len(found.positions):
        for judged in recompute_record(question, results, found.positions):
            yield checks.rows(judged, question, changed=judged.name in changed)
    if question.late is not None:
        yield from check_late(question, results, found.positions, changed)
    if results.gradients:
        yield from _gradients(question, results, changed, found)


def _gradients(question: Question, results: Results, changed: set[str], found: Found) -> Iterator[Check]:
    """Gradients of the chosen rows, and of the chosen keys."""
    positions, keys = found.positions, found.keys
    if len(positions):
        judged = recompute_query_gradients(question, results, positions)
        yield checks.rows(judged, question, changed=judged.name in changed)
    if len(keys):
        every = len(positions) == question.q.length
        rows_of = rows_of_input(question) if every else rows_of_file(question, results)
        basis = "" if every else f"; from {LOG_SUM_EXP} and {OUTPUT} as they are in the file"
        for judged in recompute_key_gradients(question, results, keys, rows_of):
            yield checks.rows(judged, question, changed=judged.name in changed, basis=basis)


def _choose(question: Question, results: Results, request: Request, changed: set[str], found: Found) -> None:
    """Rows and keys to recompute: those of a certificate, or a choice by the seed."""
    queries, keys = question.q.length, question.k.length
    if request.listed is not None:
        found.positions, found.keys = (
            _within(each, length) for each, length in zip(request.listed, (queries, keys), strict=True)
        )
        return
    rows = ALL_ROWS if changed and _can_afford_all_rows(question) else request.rows
    found.positions = _sample(results.shards, queries, rows, request.seed)
    if results.gradients:
        found.keys = _sample(results.key_shards, keys, rows, request.seed)


def _within(listed: Sequence[int] | str, length: int) -> Ints:
    """Those of listed positions that there are, ascending."""
    every = np.arange(length)
    return every if isinstance(listed, str) else every[np.isin(every, np.array(listed, np.int64))]


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
