"""From kernels/*.cuh to machine code for a GPU, by NVRTC: no GPU and no CUDA toolkit is needed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ringmpi.backends.cuda.instances import Instance
from ringmpi.errors import BackendError

KERNELS = Path(__file__).parent / "kernels"
OPTIONS = ("-std=c++17", "-default-device", "-fmad=false", "-lineinfo", "--ptxas-options=-v")
HOW_TO_GET = 'Install it: pip install "ringmpi[cuda13]" (or cuda12, as the driver is).'


@dataclass(frozen=True)
class Compiled:
    """One kernel for one kind of GPU.

    Attributes
    ----------
    symbol : str
        Its name in the machine code.
    registers : int
        Of a thread.
    spilled : int
        Bytes of a thread that did not fit into registers, stores and loads.
    stack : int
        Bytes of local memory of a thread.
    """

    symbol: str
    registers: int
    spilled: int
    stack: int


@cache
def sources() -> dict[str, bytes]:
    """The text of each kernel file, by its name."""
    return {path.name: path.read_bytes() for path in sorted(KERNELS.glob("*.cuh"))}


def compile_kernel(instance: Instance, architecture: str, kind: str = "cubin") -> tuple[bytes, Compiled]:
    """Machine code, or PTX, of one instance.

    Parameters
    ----------
    instance : Instance
    architecture : str
        "sm_80", "sm_90": compute capability 8.0, 9.0.
    kind : str
        "cubin" or "ptx".

    Raises
    ------
    BackendError
        If NVRTC is not installed, or refuses.
    """
    nvrtc = _nvrtc()
    names, texts = zip(*((name.encode(), text) for name, text in sources().items()), strict=True)
    including = f'#include "{instance.source}"\n'
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(including.encode(), b"ringmpi.cu", len(names), list(texts), list(names))
    )
    try:
        _checked(nvrtc, nvrtc.nvrtcAddNameExpression(program, instance.name.encode()))
        options = [f"-arch={architecture}".encode(), *(option.encode() for option in OPTIONS)]
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        log = _output(nvrtc, "ProgramLog", program).decode(errors="replace").strip("\0\n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"NVRTC refuses {instance.label} for {architecture}: {log[:2000]}")
        symbol = _checked(nvrtc, nvrtc.nvrtcGetLoweredName(program, instance.name.encode())).decode()
        code = _output(nvrtc, "CUBIN" if kind == "cubin" else "PTX", program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return code, Compiled(symbol, *(_number(log, pattern) for pattern in _LOG_PATTERNS))


def cached_kernel(instance: Instance, architecture: str, folder: Path) -> tuple[Path, Compiled]:
    """The file with the machine code of one instance, compiled where no process has yet.

    Its name is a digest of the sources, the options and the version of NVRTC. Many processes may share `folder`: a file
    appears whole or not at all.

    Raises
    ------
    BackendError
        As `compile_kernel`; OSError where `folder` cannot be written.
    """
    version = _checked(_nvrtc(), _nvrtc().nvrtcVersion())
    said = json.dumps([instance.name, architecture, OPTIONS, version]).encode()
    digest = hashlib.sha256(said + b"".join(sources().values())).hexdigest()[:24]
    code, about = folder / f"{instance.label}-{architecture}-{digest}.cubin", folder / f"{digest}.json"
    if not (code.exists() and about.exists()):
        machine_code, compiled = compile_kernel(instance, architecture)
        folder.mkdir(parents=True, exist_ok=True)
        _write(code, machine_code)
        _write(about, json.dumps(asdict(compiled)).encode())
    return code, Compiled(**json.loads(about.read_bytes()))


_LOG_PATTERNS = (r"Used (\d+) registers", r"(\d+) bytes spill", r"(\d+) bytes stack frame")


def _number(log: str, pattern: str) -> int:
    return sum(map(int, re.findall(pattern, log)))


def _write(path: Path, content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(content)
    Path(part.name).replace(path)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise BackendError(f"the compiler of CUDA kernels (NVRTC) is not here: {error}. {HOW_TO_GET}") from error
    return nvrtc


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(f"NVRTC fails: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}. {HOW_TO_GET}")
    return result[1] if len(result) > 1 else None


def _output(nvrtc: Any, what: str, program: Any) -> bytes:
    """The log, PTX or machine code of a program; into a bytearray, since NVRTC writes where it is pointed to."""
    size = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    content = bytearray(size)
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, content))
    return bytes(content)
