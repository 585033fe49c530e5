"""Commands that can be typed again."""

import sys

import pytest

from ringmpi.process.command import as_typed, program


@pytest.mark.parametrize(
    ("first", "typed"),
    [
        ("/a folder/clone/ringmpi/__main__.py", "ringmpi"),
        ("ringmpi/__main__.py", "ringmpi"),
        ("/venv/bin/ringmpi", "/venv/bin/ringmpi"),
        ("/other/__main__.py", "/other/__main__.py"),
        ("", "''"),
    ],
)
def test_a_command_does_not_show_where_python_found_it(first, typed):
    assert as_typed([first, "run", "my run.toml"]) == f"{typed} run 'my run.toml'"


@pytest.mark.parametrize(
    ("python", "path", "words"),
    [
        ("/venv/bin/python3", "/venv/bin", "python -m ringmpi"),
        ("/venv/bin/python", "/elsewhere", "/venv/bin/python -m ringmpi"),
        ("{here}/.venv/bin/python", "", ".venv/bin/python -m ringmpi"),
        ("/my venv/bin/python", "", "'/my venv/bin/python' -m ringmpi"),
    ],
)
def test_what_starts_it_here(monkeypatch, tmp_path, python, path, words):
    """The environment that is active, or else its path, from here where it lies below."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", python.format(here=tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: f"{path}/{name}" if path == "/venv/bin" else None)
    assert program() == words
