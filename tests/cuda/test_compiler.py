"""From source to machine code, and what is kept of it: by a compiler that writes what it was asked for."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ringmpi.backends.cuda import compiler, kernel_cache
from ringmpi.backends.cuda.compiler import KERNELS, OPTIONS, compile_kernel, sources, version
from ringmpi.backends.cuda.instances import every_instance
from ringmpi.backends.cuda.kernel_cache import cache_folder, cached_kernel
from ringmpi.errors import BackendError

KERNEL, OTHER = every_instance()[0], every_instance()[-1]


@dataclass
class FakeNvrtc:
    """The calls of cuda.bindings.nvrtc that are made; machine code is the name of the kernel and its options."""

    nvrtcResult: ClassVar = SimpleNamespace(NVRTC_SUCCESS=0)  # noqa: N815
    major: int = 13
    refuses: str = ""
    compiled: list = field(default_factory=list)
    log: bytes = (
        b"ptxas info    : 8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\nUsed 200 registers\0"
    )
    alive: int = 0

    def nvrtcVersion(self):  # noqa: N802
        return 0, self.major, 0

    def nvrtcGetErrorString(self, status):  # noqa: N802
        return 0, b"ERROR %d" % status

    def nvrtcCreateProgram(self, text, name, count, headers, names):  # noqa: N802
        assert count == len(headers) == len(names)
        assert text.split(b'"')[1] in names, "what is included is among the headers"
        self.alive += 1
        return 0, SimpleNamespace(name=b"")

    def nvrtcDestroyProgram(self, program):  # noqa: N802
        self.alive -= 1
        return (0,)

    def nvrtcAddNameExpression(self, program, name):  # noqa: N802
        program.name = name
        return (0,)

    def nvrtcCompileProgram(self, program, count, options):  # noqa: N802
        assert count == len(options)
        program.code = program.name + b"\0" + b" ".join(options)
        self.compiled.append(program.name)
        if self.refuses:
            self.log = self.refuses.encode()
        return (6 if self.refuses else 0,)

    def nvrtcGetLoweredName(self, program, name):  # noqa: N802
        return 0, b"_Z" + name

    def __getattr__(self, name):
        what = name.removeprefix("nvrtcGet").removesuffix("Size")
        if name == f"nvrtcGet{what}Size":
            return lambda program: (0, len(self._content(program, what)))

        def get(program, to):
            assert isinstance(to, bytearray), "NVRTC writes into it"
            to[:] = self._content(program, what)
            return (0,)

        return get

    def _content(self, program, what):
        return self.log if what == "ProgramLog" else what.encode() + b":" + program.code


@pytest.fixture
def nvrtc(monkeypatch):
    fake = FakeNvrtc()
    monkeypatch.setattr(compiler, "_nvrtc", lambda: fake)
    monkeypatch.setattr(kernel_cache, "_unwritable", set())
    yield fake
    assert not fake.alive, "programs are given back"


def test_machine_code_and_what_the_log_says_of_it(nvrtc):
    code, compiled = compile_kernel(KERNEL, "sm_90")
    assert code.startswith(b"CUBIN:" + KERNEL.name.encode())
    assert b"-arch=sm_90" in code
    assert all(option.encode() in code for option in OPTIONS)
    assert compiled == compiler.Compiled("_Z" + KERNEL.name, 200, 16 + 24, 8)
    assert compile_kernel(KERNEL, "sm_90", "ptx")[0].startswith(b"PTX:")


def test_a_refusal_names_the_kernel_the_gpu_and_the_version(nvrtc):
    nvrtc.refuses = "nvrtc: error: invalid value for --gpu-architecture (-arch)"
    with pytest.raises(BackendError, match=rf"13\.0 cannot compile {KERNEL.label} for sm_999.*invalid value"):
        compile_kernel(KERNEL, "sm_999")


def test_without_nvrtc_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendError, match=r"NVRTC.*pip install -e .\.\[cuda13\]"):
        version()


def test_kernels_are_compiled_once(nvrtc, tmp_path):
    path, compiled = cached_kernel(KERNEL, "sm_80", tmp_path)
    assert cached_kernel(KERNEL, "sm_80", tmp_path) == (path, compiled)
    assert len(nvrtc.compiled) == 1
    assert path.read_bytes() == compile_kernel(KERNEL, "sm_80")[0]
    assert path.suffix == ".cubin"


def test_what_decides_the_code_decides_where_it_is_kept(nvrtc, tmp_path, monkeypatch):
    cached_kernel(KERNEL, "sm_80", tmp_path)
    cached_kernel(KERNEL, "sm_90", tmp_path)
    cached_kernel(OTHER, "sm_80", tmp_path)
    nvrtc.major = 12
    cached_kernel(KERNEL, "sm_80", tmp_path)
    changed = {**sources(), "forward.cuh": b"// another kernel"}
    monkeypatch.setattr(kernel_cache, "sources", lambda: changed)
    cached_kernel(KERNEL, "sm_80", tmp_path)
    assert len(nvrtc.compiled) == 5


@pytest.mark.parametrize("suffix", ["cubin", "json"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:9] + b"?" + b[10:]])
def test_damaged_files_are_compiled_anew(nvrtc, tmp_path, suffix, damage):
    path, compiled = cached_kernel(KERNEL, "sm_80", tmp_path)
    whole = path.read_bytes()
    (victim,) = tmp_path.glob(f"*.{suffix}")
    victim.write_bytes(damage(victim.read_bytes()))
    again, found = cached_kernel(KERNEL, "sm_80", tmp_path)
    assert (again.read_bytes(), found) == (whole, compiled)
    assert len(nvrtc.compiled) == 2


def test_a_file_that_is_gone_is_compiled_anew(nvrtc, tmp_path):
    cached_kernel(KERNEL, "sm_80", tmp_path)[0].unlink()
    assert cached_kernel(KERNEL, "sm_80", tmp_path)[0].exists()


def test_a_file_appears_whole_or_not_at_all(nvrtc, tmp_path, monkeypatch):
    def interrupted(draft, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached_kernel(KERNEL, "sm_80", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_done_without_and_said_once(nvrtc, tmp_path, caplog):
    folder = tmp_path / "a file" / "kernels"
    folder.parent.write_text("in the way")
    with caplog.at_level(logging.WARNING, "ringmpi"):
        found = [cached_kernel(kernel, "sm_80", folder) for kernel in (KERNEL, OTHER, KERNEL)]
    assert [path.exists() for path, _ in found] == [True] * 3
    assert found[0] == found[2]
    assert len(nvrtc.compiled) == 2, "the temporary folder is a cache, too"
    (said,) = caplog.messages
    assert str(folder) in said
    assert "RINGMPI_CACHE" in said


def test_the_folder(tmp_path):
    assert cache_folder({"RINGMPI_CACHE": "/scratch/me", "XDG_CACHE_HOME": "/x"}).as_posix() == "/scratch/me/kernels"
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/home/me"}).as_posix() == "/x/ringmpi/kernels"
    assert cache_folder({"HOME": "/home/me"}).as_posix() == "/home/me/.cache/ringmpi/kernels"


SHARING = """
import contextlib
import sys
from pathlib import Path
from ringmpi.backends.cuda import compiler
from tests.cuda.test_compiler import FakeNvrtc, KERNEL, cached_kernel
compiler._nvrtc = FakeNvrtc
for _ in range(20):
    path, compiled = cached_kernel(KERNEL, "sm_80", Path(sys.argv[1]))
    with contextlib.suppress(FileNotFoundError):
        assert path.read_bytes().startswith(b"CUBIN:")
    path.unlink(missing_ok=True)
"""


def test_processes_may_share_a_folder(tmp_path):
    """Each takes away what the others have just written; none finds half a file."""
    command = [sys.executable, "-c", SHARING, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    (description,) = tmp_path.glob("*.json")
    assert json.loads(description.read_bytes())["registers"] == 200


def test_nvrtc_itself(tmp_path, monkeypatch, caplog):
    """Machine code for two kinds of GPU, kept, damaged, compiled anew to the same; without a folder, too."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC here; make gates installs it")
    monkeypatch.setattr(kernel_cache, "_unwritable", set())
    probe = SimpleNamespace(source="probe.cuh", name="ringmpi::probe<ringmpi::COPY>", label="probe-copy")
    path, compiled = cached_kernel(probe, "sm_80", tmp_path)
    code = path.read_bytes()
    assert code.startswith(b"\x7fELF")
    assert compiled.symbol.encode() in code
    assert 0 < compiled.registers <= 64
    assert cached_kernel(probe, "sm_90", tmp_path)[0].read_bytes() != code
    path.write_bytes(code[:1000])
    assert cached_kernel(probe, "sm_80", tmp_path)[0].read_bytes() == code
    (tmp_path / "file").touch()
    assert cached_kernel(probe, "sm_80", tmp_path / "file" / "kernels")[0].read_bytes() == code
    assert "RINGMPI_CACHE" in caplog.text
    with pytest.raises(BackendError, match="cannot compile probe-copy for sm_123.*says: "):
        compile_kernel(probe, "sm_123")


def test_all_sources_are_found_and_no_header_of_cuda_is_needed():
    assert {"forward.cuh", "backward.cuh", "primitives.cuh"} <= set(sources())
    own = set(sources()) | {"emulator.h"}
    for name, text in sources().items():
        included = [line.split('"')[1] for line in text.decode().splitlines() if line.startswith("#include")]
        assert set(included) <= own, f"{KERNELS / name} includes what is not there"
