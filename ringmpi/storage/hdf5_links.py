"""What an HDF5 file takes from other files: HDF5 reads zeros where they are missing, and says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py

from ringmpi.errors import StorageError

SAME_FILE = "."
NAMES_SHOWN = 3


def check_sources(path: Path, dataset: Any) -> None:
    """Refuse a virtual dataset of which a source file or dataset is missing: HDF5 would read its fill value there."""
    if not dataset.is_virtual:
        return
    named = {(source.file_name, source.dset_name) for source in dataset.virtual_sources()}
    missing = sorted(
        f"{file}:{name}" for file, name in named if "%" not in file + name and not _is_there(path, file, name)
    )
    if missing:
        more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
        raise StorageError(
            f"dataset {dataset.name} of {path} is virtual, and {len(missing)} of its {len(named)} sources are missing: "
            f"{', '.join(missing[:NAMES_SHOWN])}{more}. Put them back beside it."
        )


def _is_there(path: Path, file: str, name: str) -> bool:
    """Whether the source of a virtual dataset in `path` is there. HDF5 looks beside the file first."""
    source = path if file == SAME_FILE else next((p for p in (path.parent / file, Path(file)) if p.exists()), None)
    if source is None:
        return False
    try:
        with h5py.File(source, "r", locking="best-effort") as opened:
            return name in opened
    except OSError:
        return False


def check_external(path: Path, dataset: Any) -> None:
    """Refuse a dataset whose raw data lie in other files of which one is missing or too short."""
    left = dataset.size * dataset.dtype.itemsize
    for file, offset, size in dataset.external or ():
        needed = min(size, left)
        left -= needed
        held = Path(file).stat().st_size - offset if Path(file).exists() else None
        if held is None or held < needed:
            what = "is missing" if held is None else f"holds {max(held, 0):,} bytes for it, expected {needed:,}"
            raise StorageError(
                f"dataset {dataset.name} of {path} stores its numbers in {file}, which {what}. Put it back, or start "
                f"in the directory that its path is relative to."
            )


def dangling(group: Any, name: str) -> str | None:
    """Where a soft or external link at `name` leads to, if there is one."""
    if not isinstance(group, h5py.Group) or not name.strip("/"):
        return None
    try:
        link = group.get(name, getlink=True)
    except (KeyError, ValueError, RuntimeError):
        return None
    if isinstance(link, h5py.ExternalLink):
        return f"{link.path} in {link.filename}"
    return str(link.path) if isinstance(link, h5py.SoftLink) else None
