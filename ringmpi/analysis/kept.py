"""What a directory of checkpoints holds, and what of it is good."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringmpi.storage.generations import LOCK, REQUEUE, STOP, Checkpoints, Generation
from ringmpi.storage.manifest import MANIFEST
from ringmpi.storage.validity import problems


@dataclass(frozen=True)
class Kept:
    """A directory of checkpoints, looked at.

    Attributes
    ----------
    directory : Path
    generations : tuple of Generation
        The newest first.
    damage : dict
        Number of a generation -> what is wrong with it.
    notes : tuple of str
        Of the files STOP and REQUEUE.
    checked : bool
        Whether the files of the ranks were read.
    """

    directory: Path
    generations: tuple[Generation, ...]
    damage: dict[int, tuple[str, ...]]
    notes: tuple[str, ...]
    checked: bool

    @property
    def newest(self) -> int | None:
        """The generation from which a run would go on; None: there is none."""
        return next((each.number for each in self.generations if not self.damage[each.number]), None)


def directory_of(path: Path) -> Path | None:
    """The directory of checkpoints that a path leads to: itself, one of its generations, or a manifest; else None.

    A directory with nothing in it is one too: a run that has ended leaves it so.
    """
    if path.is_dir() and {each.name for each in path.iterdir()} <= {LOCK, STOP, REQUEUE}:
        return path
    generation = path.parent if path.name == MANIFEST else path
    for directory in (path, generation.parent):
        found = Checkpoints(directory).generations() if directory.is_dir() else []
        if found and (directory == path or generation in [each.folder for each in found]):
            return directory
    return None


def examine_checkpoints(directory: Path, *, check: bool = False) -> Kept:
    """Look at a directory of checkpoints.

    Parameters
    ----------
    check : bool
        Read the files of the ranks too, and compare their digests.

    Raises
    ------
    StorageError
        If the directory cannot be read.
    """
    found = Checkpoints(directory).generations()
    share = slice(None) if check else slice(0)
    notes = {STOP: "the run is asked to save and stop", REQUEUE: "the run has been stopped, and wants to go on"}
    return Kept(
        directory,
        tuple(found),
        {generation.number: tuple(problems(generation, share)) for generation in found},
        tuple(f"{name}: {meaning}" for name, meaning in notes.items() if (directory / name).exists()),
        check,
    )
