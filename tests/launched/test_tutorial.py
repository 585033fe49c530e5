"""Pages as a reader would do them: their files are written, their commands run in order, their output compared."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import FENCE, ROOT

LIMIT_SECONDS = 90
BEFORE = ("make ", "source ", "mkdir ", "cd ")  # make demo has its own place in CI; the rest is where the test is
EXIT_CODE = re.compile(r"\s+# exit code (\d)$")


def words(line: str) -> str:
    """A line without what may differ between two runs: numbers, digests, space, and the backend that auto takes."""
    line = re.sub(r" \(node [^)]*\)", "", line)
    line = re.sub(r"blake2b [0-9a-f]+", "blake2b", line)
    line = re.sub(r"backend (native|numpy)", "backend", line)
    return " ".join(re.sub(r"[0-9.,]+", "#", line).split())


def exactly(line: str) -> str:
    """A line of what is computed from sizes alone, so that its numbers are the same everywhere."""
    return " ".join(line.split())


PAGES = {"docs/tutorial.md": words, "docs/how-to/plan.md": exactly, "docs/training.md": exactly}


def steps(page: str) -> list[tuple[str, str]]:
    """(kind, text) in the order of the page: a file to write ("file NAME"), commands, output."""
    found = []
    for block in FENCE.finditer((ROOT / page).read_text(encoding="utf-8")):
        title = re.search(r'"(.*)"', block[2] or "")
        if title or block[1] in ("console", "text"):
            found.append((f"file {title[1]}" if title else block[1], block[3]))
    return found


def run(command: str, launcher: list[str], place: Path) -> str:
    """Run one command with this Python; returns what it printed. It must end as the page says."""
    line, code = EXIT_CODE.sub("", command), EXIT_CODE.search(command)
    swap = {"mpirun": launcher, "python": [sys.executable]}
    arguments = [part for word in shlex.split(line) for part in swap.get(word, [word])]
    settings = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    settings |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    settings |= {"PYTHONUNBUFFERED": ""}  # else ranks write a line and its end apart, and others come between
    done = subprocess.run(
        arguments, cwd=place, env=settings, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == int(code[1] if code else 0), f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "compared"), PAGES.items())
def test_the_page_works_as_it_stands(mpirun, tmp_path, page, compared):
    if page == "docs/training.md":
        pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
    printed, ran = "", 0
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    (tmp_path / "data").symlink_to(ROOT / "data")
    for kind, text in steps(page):
        if kind == "console":
            commands = [line for line in text.splitlines() if not line.startswith(BEFORE)]
            printed = "\n".join(run(command, mpirun.command, tmp_path) for command in commands)
            ran += len(commands)
        elif kind == "text" and printed:
            seen = {compared(line) for line in printed.splitlines()}
            assert [line for line in text.splitlines() if compared(line) not in seen] == [], printed
        elif kind.startswith("file "):
            (tmp_path / kind.removeprefix("file ")).write_text(text, encoding="utf-8")
    assert ran


def test_every_file_of_the_tutorial_is_used_by_a_command():
    found = steps("docs/tutorial.md")
    commands = " ".join(text for kind, text in found if kind == "console")
    files = [kind.removeprefix("file ") for kind, _ in found if kind.startswith("file ")]
    assert files
    assert [name for name in files if name not in commands] == []
