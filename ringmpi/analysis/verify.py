"""Is this output file right? Several questions, because none of them sees every fault.

    digest    the bits of /output and /log_sum_exp are those that were written: sees one changed number, swapped rows
    shards    every row was held by one rank
    input     the input file is the one that the run read
    pairs     the mask's pairs as integers: sees a dropped or repeated pair, which no tolerance sees
    rows      chosen rows, recomputed from the input file in wider precision: sees wrong arithmetic

Neither file is loaded whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ringmpi.analysis import checks
from ringmpi.analysis.certificate import Certificate, Check
from ringmpi.analysis.recompute import recompute, sample_positions
from ringmpi.config import RunConfig, parse_config
from ringmpi.core.dtypes import wide_dtype
from ringmpi.errors import ConfigError, MaskError, ShapeError, StorageError
from ringmpi.question import Question, question_of
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.results import Results

__all__ = ["Certificate", "verify_file"]

SEARCH_SCORES = 1 << 30  # recomputed at most to find what changed: less than a minute in float64
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
        arrays = (results.output, results.log_sum_exp)
        found = [checks.digest(array) for array in arrays]
        changed = {array.name for array, check in zip(arrays, found, strict=True) if not check.passed}
        found.append(checks.shards(results))
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
    length = question.q.length
    if changed and _can_afford_all_rows(question):
        rows = length
    positions = sample_positions(results.shards if checks.shards(results).passed else [[range(length)]], rows, seed)
    if len(positions):
        for judged in recompute(question, results.output, results.log_sum_exp, positions):
            yield checks.rows(judged, question, changed=judged.name in changed)


def _can_afford_all_rows(question: Question) -> bool:
    scores = question.q.length * question.k.length * question.problem.heads.query_slabs
    cost = 1 if wide_dtype(question.problem.dtype) == np.float64 else LONGDOUBLE_COST
    return scores * cost <= SEARCH_SCORES
