"""The directory of checkpoints: numbered generations, of which two are kept, and files by which it is spoken to.

    LOCK                   held by the run that uses it
    generation-000007/     rank-00000.h5 ... and, written last, manifest.json
    STOP                   a user asks the run to save and end; removed when obeyed
    REQUEUE                the run ended before its end and wants to be started again

All names in it are relative, so it may be moved. Generations are told apart by number: clocks are never asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ringmpi.errors import StorageError
from ringmpi.storage.files import TEMPORARY_SUFFIX, prepare_directory, replace_text, storage_errors, sync
from ringmpi.storage.lock import holding
from ringmpi.storage.manifest import MANIFEST, Manifest, read_manifest, write_manifest

GENERATIONS = 3  # most on the disk at once: two are kept, and a third is there while it is written
LOCK, STOP, REQUEUE = "LOCK", "STOP", "REQUEUE"

_FOLDER = re.compile(r"generation-(\d{6,})")
_OWN_FILE = re.compile(rf"(rank-\d{{5,}}\.h5|{re.escape(MANIFEST)})({re.escape(TEMPORARY_SUFFIX)})?")


class Generation(NamedTuple):
    """One generation as it is found.

    number : larger than that of all older ones
    folder : where its files are
    manifest : None where there is none that can be used
    problem : why not
    unfinished : no manifest is there, so it was never one that a run could go on from
    """

    number: int
    folder: Path
    manifest: Manifest | None
    problem: str
    unfinished: bool = False


class Checkpoints:
    """A directory of checkpoints. One rank publishes, removes, and holds the lock; all write their files.

    Parameters
    ----------
    directory : path
        Need not exist yet.

    Raises
    ------
    StorageError
        By every method but `discard` and `stop_requested`, where files cannot be read, written or removed.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def prepare(self) -> None:
        """Create the directory where it is missing, and try whether it can be written to."""
        with storage_errors("write to", self.directory):
            prepare_directory(self.directory)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other runs away until the end of the block, or of this process; StorageError names a run that is there.

        Where the file system has no locks, two runs are not kept apart.
        """
        held, after = "Wait for it, or name another directory in [checkpoint].", "Run again."
        with holding(self.directory / LOCK, str(self.directory), held=held, after=after):
            yield

    def generations(self) -> list[Generation]:
        """All that is there, the newest first, also what is unfinished or damaged."""
        return [self._found(number) for number in sorted(self._numbers(), reverse=True)]

    def next_number(self) -> int:
        """The number of a new generation: larger than all that are there."""
        return max(self._numbers(), default=0) + 1

    def rank_path(self, number: int, rank: int) -> Path:
        """Where a rank writes its file of a generation."""
        return self._folder(number) / f"rank-{rank:05d}.h5"

    def begin(self, number: int) -> None:
        """Make the folder of a new generation, before any rank writes."""
        with storage_errors("write to", folder := self._folder(number)):
            folder.mkdir(parents=True, exist_ok=True)

    def publish(self, manifest: Manifest, *, keep: int | None) -> None:
        """Make a generation exist, once all ranks have written; then remove all others but one.

        Parameters
        ----------
        manifest : Manifest
        keep : int or None
            Number of the generation before, which this run has written or read and so knows to be good.
        """
        write_manifest(self._folder(manifest.generation), manifest)
        with storage_errors("write to", self.directory):
            sync(self.directory)
        for number in self._numbers() - {manifest.generation, keep}:
            self.discard(number)

    def discard(self, number: int) -> None:
        """Remove a generation as far as it can be removed: what a failed save has left, or one that is too old."""
        with suppress(OSError):
            self._remove(number)

    def clear(self) -> None:
        """Remove all generations, and the files STOP and REQUEUE; foreign files stay."""
        with storage_errors("clear", self.directory):
            for number in sorted(self._numbers()):
                self._remove(number)
            for name in (STOP, REQUEUE):
                _take_away(self.directory / name)

    def stop_requested(self) -> bool:
        """Whether a user has asked the run to end: `touch STOP`. What cannot be seen for now is no request."""
        return os.path.exists(self.directory / STOP)  # noqa: PTH110 - Path.exists() may raise, each second of the run

    def obey_stop(self) -> None:
        """Remove the request, so that the next start is not stopped by it."""
        with storage_errors("remove", self.directory / STOP):
            _take_away(self.directory / STOP)

    def ask_requeue(self, why: str) -> None:
        """Leave word that the run is to be started again."""
        replace_text(self.directory / REQUEUE, f"{why}\n")

    def withdraw_requeue(self) -> None:
        """Remove that word: the run has been started."""
        with storage_errors("remove", self.directory / REQUEUE):
            _take_away(self.directory / REQUEUE)

    def _numbers(self) -> set[int]:
        with storage_errors("read the directory", self.directory):
            if not self.directory.exists():
                return set()
            names = [_FOLDER.fullmatch(path.name) for path in self.directory.iterdir() if path.is_dir()]
        return {int(name[1]) for name in names if name}

    def _folder(self, number: int) -> Path:
        return self.directory / f"generation-{number:06d}"

    def _found(self, number: int) -> Generation:
        folder = self._folder(number)
        try:
            manifest = read_manifest(folder)
        except StorageError as error:
            return Generation(number, folder, None, str(error), unfinished=_is_missing(folder / MANIFEST))
        if manifest.generation != number:
            problem = f"{folder / MANIFEST} belongs to generation {manifest.generation}: it was moved there"
            return Generation(number, folder, None, problem)
        return Generation(number, folder, manifest, "")

    def _remove(self, number: int) -> None:
        """The manifest first, so that what remains after an interruption is no generation."""
        folder = self._folder(number)
        (folder / MANIFEST).unlink(missing_ok=True)
        for path in list(folder.iterdir()):
            if _OWN_FILE.fullmatch(path.name):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # files of others are in it
            folder.rmdir()


def _take_away(path: Path) -> None:
    """Remove a file, or what somebody has made in its place: a directory, as long as nothing is in it."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if any(path.iterdir()):
        raise StorageError(f"{path} is a directory that holds files; expected a file, or nothing. Move it away.")
    path.rmdir()


def _is_missing(path: Path) -> bool:
    """Whether it is not there for certain."""
    try:
        path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False
