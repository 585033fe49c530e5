"""Opening, replacing and checking files: a failure is a StorageError, and no file is ever seen half written."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

import h5py

from ringmpi.errors import RingMpiError, StorageError
from ringmpi.regular_file import NO_REGULAR_FILE

TEMPORARY_SUFFIX = ".tmp"
ENOTSUPP = 524  # of Linux, from network file systems; errno does not name it
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, ENOTSUPP)  # of file systems without locks
# h5py, and NumPy and zipfile of damaged archives
WHAT_LIBRARIES_RAISE = (
    OSError,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    BadZipFile,
    TokenError,
)


@contextmanager
def storage_errors(action: str, path: Path, dataset: str = "") -> Iterator[None]:
    """Turn a failure of h5py or the file system into one StorageError with file, dataset and advice.

    Parameters
    ----------
    action : str
        What is being done, as in "cannot {action} FILE".
    path : Path
    dataset : str
        Path in the file, if one is concerned.

    Raises
    ------
    StorageError
        For what h5py and others raise of damaged files.
        Errors of ringmpi pass unchanged.
    """
    try:
        yield
    except RingMpiError:
        raise
    except (*WHAT_LIBRARIES_RAISE, RecursionError) as error:
        code = getattr(error, "errno", None) or _code_in(str(error))
        found = os.strerror(code) if code else " ".join(str(error).split())
        where = f", dataset {dataset}" if dataset else ""
        raise StorageError(f"cannot {action} {path}{where}: {found}. {_advice(code, found, path)}") from error


def _code_in(text: str) -> int | None:
    """The error number that HDF5 gives in its text where h5py does not."""
    number = re.search(r"errno = (\d+)", text)
    return int(number[1]) if number else None


def _advice(code: int | None, found: str, path: Path) -> str:
    """What to do about an error."""
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"{free_bytes(path):,} bytes are free there; make room or choose another directory."
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Change its permissions or choose another place."
    if "unable to lock" in found or code in (errno.EAGAIN, errno.ENOLCK, ENOTSUPP):
        return (
            "Another process has it open for writing, or its file system has no locks: wait for that process to end, "
            "or set HDF5_USE_FILE_LOCKING=FALSE."
        )
    if code == errno.ENOENT:
        return "Check the path; relative paths start at the working directory."
    if code == errno.EISDIR:
        return "Give the path of a file, not of a directory."
    if code and code != errno.EIO:
        return "Check the path and the limits of its file system."
    if found == NO_REGULAR_FILE:
        return "Give the path of a file, not of a pipe or a device."
    if "truncated" in found:
        return "The file was cut off while it was written or copied; write or copy it again."
    if "surrogates not allowed" in found:
        return "Its name is not valid UTF-8: rename it."
    if "codec can't encode" in found:
        return "Its name cannot be encoded in this locale: set LC_ALL=C.UTF-8, or PYTHONUTF8=1, for all ranks."
    if "filter" in found or "plugin" in found:
        return "Its compression needs a plugin: set HDF5_PLUGIN_PATH to it, or rewrite the file (h5repack -f GZIP=1)."
    if "signature" in found:
        return "It is not an HDF5 file, or its beginning is damaged; give an HDF5 file (h5dump -H shows one)."
    return "The file may be damaged (h5dump shows whether it can be read), or the disk may be failing."


def free_bytes(path: Path) -> int:
    """Free bytes of the file system that holds `path` or will hold it."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def open_file(path: Path) -> h5py.File:
    """`path` open for reading; StorageError says what is wrong with the file and what to do."""
    if path.exists() and not path.is_file():
        raise StorageError(f"{path} is not a regular file. Name an HDF5 file.")
    with storage_errors("open", path):
        try:
            return h5py.File(path, "r", locking="best-effort")
        except OSError as error:
            if error.errno not in NO_LOCKS:  # best effort is for ENOSYS alone
                raise
            return h5py.File(path, "r", locking=False)


def sync(path: Path) -> None:
    """Have the system put a file, or the names in a directory, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(
    path: Path,
    *,
    finished: Callable[[Path], object] | None = None,
    begun: bool = False,
    sync_directory: bool = True,
) -> Iterator[h5py.File]:
    """A new HDF5 file, open for writing, that appears at `path` whole or not at all.

    It is written as `path` + ".tmp", closed, fsynced, renamed, and the directory fsynced. After an exception inside,
    `path` is as it was, and the temporary file is gone.

    Parameters
    ----------
    path : path
    finished : callable, optional
        Called with the temporary file once it is complete, while the system puts it on the disk.
    begun : bool
        The temporary file is there already, closed, and is to be completed.
    sync_directory : bool
        False: whoever writes the last of many files into the directory has the system put all their names on the disk.

    Raises
    ------
    StorageError
        If it cannot be written; a full disk is named with the bytes that are free.
    """
    with _appearing(path, sync_directory=sync_directory) as temporary:
        file = _writable(temporary, begun=begun)
        try:
            yield file
            file.flush()  # what fails at close is no exception any more, but noise or a crash
            file.close()
        except BaseException:
            _discard(file)
            raise
        if finished is None:
            sync(temporary)
        else:
            with ThreadPoolExecutor(1) as beside:
                synced = beside.submit(sync, temporary)
                finished(temporary)
                synced.result()


def replace_text(path: Path, text: str) -> None:
    """Write a text file that appears at `path` whole or not at all; StorageError if it cannot be written."""
    with _appearing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)


@contextmanager
def _appearing(path: Path, *, sync_directory: bool = True) -> Iterator[Path]:
    """A temporary file, to be written and fsynced, that then gets its name for good; removed after an exception."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with storage_errors("write", path):
            yield temporary
            temporary.replace(path)
            if sync_directory:
                sync(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _writable(path: Path, *, begun: bool) -> h5py.File:
    """A new HDF5 file, or one that was begun. Numbers are written when HDF5 gets them, not when it closes a dataset.

    By default it keeps small writes back (in a sieve buffer), and h5py cannot raise where a dataset is closed: on a
    full disk the error would be lost, and the process die of it later.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)
    access.set_file_locking(False, True)  # nobody else knows a temporary file, and some file systems have no locks
    if begun:
        return h5py.File(h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDWR, fapl=access))
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access))


def _discard(file: h5py.File) -> None:
    """Close a file that nobody will read, even where the disk is full.

    HDF5 cannot close what it cannot write, and would complain about it at every later chance: let it write to nowhere.
    """
    with suppress(OSError, RuntimeError, ValueError):
        if file:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, file.id.get_vfd_handle())
            os.close(nowhere)
            file.close()


def prepare_directory(path: Path) -> None:
    """Create a directory where it is missing, and try whether a file can be written there; OSError where not."""
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path) as probe:
        probe.write(b"0")


def check_destination(path: str | Path, *, force: bool = False, bytes_needed: int = 0) -> None:
    """Find out before the work whether its result can be written. Creates the directory of `path` where it is missing.

    Parameters
    ----------
    path : path
        Of the output file.
    force : bool
        Accept that `path` exists; it will be replaced.
    bytes_needed : int
        Bytes that must be free on its file system (`merge_bytes` gives them). 0: not checked.

    Raises
    ------
    StorageError
        If `path` exists (and not `force`), is not a regular file, its directory cannot be created or written to,
        or too few bytes are free.
    """
    path = Path(path)
    with storage_errors("write to the directory of", path):
        if path.exists() and not path.is_file():
            raise StorageError(f"output {path} is a directory or device. Give the path of a file.")
        if path.exists() and not force:
            raise StorageError(f"output {path} exists and would be overwritten. Choose another file, or give --force.")
        prepare_directory(path.parent)
    if free_bytes(path) < bytes_needed:
        raise StorageError(
            f"output {path} needs {bytes_needed:,} bytes (all that the run will have there at once), but "
            f"{free_bytes(path):,} bytes are free there. Make room or choose another directory."
        )
