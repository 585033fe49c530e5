"""Whether a generation of checkpoints is what was written, and which one is the newest of those that are.

A digest tells any damage, and any file that is not the one that was written, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ringmpi.errors import StorageError
from ringmpi.storage.file_digest import fingerprint
from ringmpi.storage.files import storage_errors
from ringmpi.storage.generations import Generation
from ringmpi.storage.manifest import RankFile
from ringmpi.storage.visibility import missing

SHOWN = 4  # of the problems of a generation, in one line


def problems(generation: Generation, share: slice = slice(None)) -> list[str]:
    """What is wrong with a generation; nothing where it is good. Reads all bytes of the files.

    Parameters
    ----------
    generation : Generation
    share : slice
        Which files to check. Of P ranks, rank r takes slice(r, None, P).

    Returns
    -------
    list of str
        One line a problem, each with the name of a file.
    """
    if generation.manifest is None:
        return [generation.problem]
    files, folder = generation.manifest.files, generation.folder
    try:
        with storage_errors("read", folder):
            absent = missing([folder / file.name for file in files[share]])
    except StorageError as error:
        return [str(error)]
    found = [_problem(folder, file, files) for file in files[share] if folder / file.name not in absent]
    return [*(f"{path} is missing" for path in absent), *filter(None, found)]


def newest_valid(
    generations: Iterable[Generation], check: Callable[[Generation], Sequence[str]]
) -> tuple[Generation | None, list[str]]:
    """The first of `generations` without problems.

    Parameters
    ----------
    generations : iterable of Generation
        The newest first (`Checkpoints.generations`).
    check : callable
        `problems`; on many ranks, what collects the problems that all ranks have found.

    Returns
    -------
    chosen : Generation or None
    passed_over : list of str
        For each newer one, why it was not chosen.
    """
    passed_over: list[str] = []
    for generation in generations:
        found = check(generation)
        if not found:
            return generation, passed_over
        more = [f"and {len(found) - SHOWN} more problems"] if len(found) > SHOWN else []
        said = "; ".join([*found[:SHOWN], *more])
        passed_over.append(f"generation {generation.number} is passed over: {said}")
    return None, passed_over


def _problem(folder: Path, file: RankFile, files: Sequence[RankFile]) -> str:
    path = folder / file.name
    try:
        found = fingerprint(path)
    except StorageError as error:
        return str(error)
    if (found.bytes, found.digest) == (file.bytes, file.digest):
        return ""
    if other := next((each.name for each in files if each.digest == found.digest), None):
        return f"{path} is the file that was written as {other}"
    if found.bytes != file.bytes:
        return f"{path} has {found.bytes:,} bytes, expected {file.bytes:,}: it is truncated or a different file"
    return f"{path} is damaged or a different file: its digest is {found.digest[:16]}..., not {file.digest[:16]}..."
