"""What is packed is what there is, whatever an earlier build has left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_a_second_build_holds_neither_removed_modules_nor_old_kernels(tmp_path):
    """Kernels that cannot be built are left out: those of the build before are made from other sources."""
    pytest.importorskip("setuptools", "77")  # as pyproject.toml asks; pip brings it to builds, not to environments
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "ringmpi", tmp_path / "ringmpi", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    no_compiler = os.environ | {"CC": "false", "CXX": "false"}

    def build():
        command = [sys.executable, "setup.py", "--quiet", "build"]
        subprocess.run(command, cwd=tmp_path, env=no_compiler, check=True, capture_output=True, timeout=100)
        (folder,) = (tmp_path / "build").glob("lib*")
        return folder / "ringmpi", {path.name for path in folder.rglob("*") if path.is_file()}

    package, first = build()
    assert {"ring_loop.py", "py.typed", "forward.cuh", "report.css"} <= first
    for old in ("removed.py", "backends/native/_native_portable.abi3.so"):
        (package / old).touch()
    assert build()[1] == first
