"""Compiled kernels, kept for the next process: machine code beside a description of it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from ringmpi.backends.cuda.compiler import OPTIONS, Compiled, compile_kernel, sources, version
from ringmpi.backends.cuda.device import Kernel
from ringmpi.process.cache_home import cache_home

log = logging.getLogger("ringmpi")
DIGEST = 24  # characters of a digest in the name of a file


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where compiled kernels are kept."""
    return cache_home(environment) / "kernels"


def cached_kernel(kernel: Kernel, architecture: str, folder: Path | None = None) -> tuple[Path, Compiled]:
    """The file with the machine code of one kernel, compiled where no process has yet.

    Many processes may share the folder. A file appears whole or not at all; a description is a digest of sources,
    options and the version of NVRTC, and names the machine code by a digest of its content: what is damaged, or was
    made from other sources, is compiled again.

    Parameters
    ----------
    kernel : Kernel
    architecture : str
        "sm_80", "sm_90": compute capability 8.0, 9.0.
    folder : Path, optional
        Else `cache_folder()`. Where it cannot be written, a temporary folder of this process takes its place.

    Raises
    ------
    BackendError
        If NVRTC is not installed, or refuses.
    """
    folder = cache_folder() if folder is None else folder
    about = _description(kernel, architecture)
    found = _kept(folder / about) or (_kept(_temporary() / about) if folder in _unwritable else None)
    if found is not None:
        return found
    code, compiled = compile_kernel(kernel, architecture)
    name = f"{kernel.label}-{architecture}-{_digest(code)}.cubin"
    try:
        return _keep(folder, name, code, about, compiled), compiled
    except OSError as error:
        if folder not in _unwritable:
            _unwritable.add(folder)
            log.warning(
                "compiled kernels are not kept, each process compiles its own: %s: %s. Set RINGMPI_CACHE "
                "to a writable folder.",
                folder,
                error.strerror or error,
            )
    return _keep(_temporary(), name, code, about, compiled), compiled


_unwritable: set[Path] = set()


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ringmpi-kernels-")  # removed when this process ends


def _temporary() -> Path:
    return Path(_temporary_folder().name)


def _description(kernel: Kernel, architecture: str) -> str:
    """The name of the file that says what there is."""
    said = json.dumps([kernel.source, kernel.name, architecture, OPTIONS, version()]).encode()
    return f"{kernel.label}-{architecture}-{_digest(said + b''.join(sources().values()))}.json"


def _kept(about: Path) -> tuple[Path, Compiled] | None:
    """What a description speaks of, if both are there and whole."""
    try:
        said = json.loads(about.read_bytes())
        path = about.with_name(said.pop("file"))
        whole = path.stem.endswith(_digest(path.read_bytes()))
        return (path, Compiled(**said)) if whole else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _keep(folder: Path, name: str, code: bytes, about: str, compiled: Compiled) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / name, code)
    _write(folder / about, json.dumps({"file": name, **asdict(compiled)}).encode())
    return folder / name


def _write(path: Path, content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # gone also where there is no room
        draft = Path(folder) / path.name
        draft.write_bytes(content)
        draft.replace(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST]
