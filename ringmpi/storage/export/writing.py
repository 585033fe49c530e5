"""Writing an export: bounded memory, whole or not at all, and over nothing but an export."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ringmpi.errors import ConfigError, StorageError
from ringmpi.storage.export import netcdf, npy, zarr_store
from ringmpi.storage.export.variables import Exported, exported
from ringmpi.storage.files import (
    TEMPORARY_SUFFIX,
    check_destination,
    free_bytes,
    open_file,
    prepare_directory,
    storage_errors,
    sync,
)
from ringmpi.storage.lock import only_run
from ringmpi.storage.results import Results

NPY, ZARR, NETCDF = "npy", "zarr", "netcdf"
BY_SUFFIX = {"": NPY, ".zarr": ZARR, ".nc": NETCDF}
OLD_SUFFIX = ".old"


class Writer(NamedTuple):
    """A format: what writes it, and what tells the names of an earlier export (None: it is none)."""

    write: Callable[[Path, Exported], None]
    own_names: Callable[[Path], set[str] | None]


WRITERS = {
    NPY: Writer(npy.write_npy, npy.own_names),
    ZARR: Writer(zarr_store.write_zarr, zarr_store.own_names),
    NETCDF: Writer(netcdf.write_netcdf, netcdf.own_names),
}


class Summary(NamedTuple):
    """What was written.

    destination : path
    form : "npy", "zarr" or "netcdf"
    arrays : name -> (dimension -> length)
    dtypes : name -> dtype in the export
    """

    destination: Path
    form: str
    arrays: dict[str, dict[str, int]]
    dtypes: dict[str, str]


def export_file(path: str | Path, destination: str | Path, *, form: str | None = None, force: bool = False) -> Summary:
    """Write the arrays of an output in a form that other programs read.

    One process at a time writes to a destination. Memory is bounded: boxes of 16 MiB pass by. Digests are compared on
    the way. bfloat16, which none of these formats has, becomes float32; so does float16 in netCDF. No value changes.

    Parameters
    ----------
    path : path
        An output file of `ringmpi run`.
    destination : path
        A folder for .npy files and Zarr, a file for netCDF.
    form : "npy", "zarr", "netcdf" or None
        None: by the ending of `destination`: .nc, .zarr, or none for .npy files.
    force : bool
        Replace a destination, if it is an export and nothing else.

    Returns
    -------
    Summary

    Raises
    ------
    ConfigError
        If the suffix stands for no format.
    StorageError
        If the output is damaged or misses a part, or the destination exists, cannot be written, or is being written by
        another process.
    """
    path, destination = Path(path), Path(destination)
    form = form or _form_of(destination)
    with Results(path):  # it is an output, and whole
        pass
    _check_apart(path, destination)
    writer = WRITERS[form]
    _check_free(destination, writer, force)  # before anything is created beside it
    with storage_errors("write to the directory of", destination):
        prepare_directory(destination.parent)
    with only_run(destination), open_file(path) as file:
        _check_free(destination, writer, force)
        export = exported(path, file, widen_halves=form == NETCDF)
        _check_space(destination, export)
        if form == NETCDF:
            check_destination(destination, force=force)
            writer.write(destination, export)
        else:
            with _folder(destination) as temporary:
                writer.write(temporary, export)
        return _summary(destination, form, export)


def _form_of(destination: Path) -> str:
    form = BY_SUFFIX.get(destination.suffix)
    if form is None:
        raise ConfigError(
            f"{destination}: the suffix {destination.suffix} stands for no format; expected .nc for netCDF, .zarr "
            f"for Zarr, or none for a folder of .npy files. Rename it, or give --format."
        )
    return form


def _check_apart(path: Path, destination: Path) -> None:
    """Refuse to write over what is read."""
    source, target = path.resolve(), destination.resolve()
    if source.is_relative_to(target):
        raise StorageError(f"{destination} is or holds the output {path} itself. Choose another destination.")


def _check_free(destination: Path, writer: Writer, force: bool) -> None:
    """Refuse what is there, unless it is an export, all of it, and to be replaced."""
    if not destination.exists():
        return
    if not force:
        raise StorageError(f"{destination} exists and would be overwritten. Choose another name, or give --force.")
    names = writer.own_names(destination)
    if names is None:
        raise StorageError(
            f"{destination} is not an export of this format, so --force does not replace it. Move it away."
        )
    others = sorted({each.name for each in destination.iterdir()} - names) if destination.is_dir() else ()
    if others:
        raise StorageError(
            f"{destination} holds {others[0]}, which no export has written, so --force does not replace it. Move it "
            f"away."
        )


def _check_space(destination: Path, export: Exported) -> None:
    if (free := free_bytes(destination)) < export.nbytes:
        raise StorageError(
            f"the export to {destination} needs up to {export.nbytes:,} bytes, but {free:,} bytes are free there. Make "
            f"room or choose another directory."
        )


@contextmanager
def _folder(destination: Path) -> Iterator[Path]:
    """A folder to be filled that then gets its name for good, in the place of an older one; removed if that fails."""
    temporary, old = (destination.with_name(destination.name + suffix) for suffix in (TEMPORARY_SUFFIX, OLD_SUFFIX))
    with storage_errors("write", destination):
        for left in (temporary, old):
            if left.exists():
                raise StorageError(f"{left} is in the way: an unfinished export left it there. Remove it.")
        temporary.mkdir()
        try:
            yield temporary
            if destination.exists():
                destination.rename(old)
            temporary.rename(destination)
            sync(destination.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _summary(destination: Path, form: str, export: Exported) -> Summary:
    arrays = {each.name: dict(zip(each.dims, each.shape, strict=True)) for each in export.variables}
    return Summary(destination, form, arrays, {each.name: each.dtype.name for each in export.variables})
