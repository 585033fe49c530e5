"""From kernels/*.cuh to machine code for a GPU, by NVRTC: no GPU and no CUDA toolkit is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ringmpi.backends.cuda.device import Kernel
from ringmpi.errors import BackendError

KERNELS = Path(__file__).parent / "kernels"
OPTIONS = ("-std=c++17", "-default-device", "-fmad=false", "-lineinfo", "--ptxas-options=-v")
HOW_TO_GET = (
    'pip install -e ".[cuda13]" in the folder of pyproject.toml, or .[cuda12] if nvidia-smi shows a driver for CUDA 12'
)


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


def version() -> tuple[int, int]:
    """Of NVRTC; BackendError if it is not installed."""
    nvrtc = _nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    _checked(nvrtc, (status,))
    return major, minor


def compile_kernel(kernel: Kernel, architecture: str, kind: str = "cubin") -> tuple[bytes, Compiled]:
    """Machine code, or PTX, of one kernel.

    Parameters
    ----------
    kernel : Kernel
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
    including = f'#include "{kernel.source}"\n'
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(including.encode(), b"ringmpi.cu", len(names), list(texts), list(names))
    )
    try:
        return _built(nvrtc, program, kernel, architecture, kind)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _built(nvrtc: Any, program: Any, kernel: Kernel, architecture: str, kind: str) -> tuple[bytes, Compiled]:
    _checked(nvrtc, nvrtc.nvrtcAddNameExpression(program, kernel.name.encode()))
    options = [f"-arch={architecture}".encode(), *(option.encode() for option in OPTIONS)]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    log = _output(nvrtc, "ProgramLog", program).decode(errors="replace").strip("\0\n")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(
            f"NVRTC {'.'.join(map(str, version()))} cannot compile {kernel.label} for {architecture}. If that GPU is "
            f"too new for it, install a newer NVRTC. It says: {log[:2000]}"
        )
    symbol = _checked(nvrtc, nvrtc.nvrtcGetLoweredName(program, kernel.name.encode())).decode()
    code = _output(nvrtc, "CUBIN" if kind == "cubin" else "PTX", program)
    return code, Compiled(symbol, *(_number(log, pattern) for pattern in _LOG_PATTERNS))


_LOG_PATTERNS = (r"Used (\d+) registers", r"(\d+) bytes spill", r"(\d+) bytes stack frame")


def _number(log: str, pattern: str) -> int:
    return sum(map(int, re.findall(pattern, log)))


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"the compiler of CUDA kernels (NVRTC) is missing: {error}. Install it: {HOW_TO_GET}."
        ) from error
    return nvrtc


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(
            f"NVRTC failed: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}. Reinstall it: {HOW_TO_GET}."
        )
    return result[1] if len(result) > 1 else None


def _output(nvrtc: Any, what: str, program: Any) -> bytes:
    """The log, PTX or machine code of a program.

    Into a bytearray: NVRTC writes where it is pointed to, and a short `bytes` may be one that all Python shares.
    """
    size = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    content = bytearray(size)
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, content))
    return bytes(content)
