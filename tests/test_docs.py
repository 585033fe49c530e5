"""What the documents show works: Python blocks run, TOML loads, commands and files that are named exist."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringmpi.cli import commands
from ringmpi.config import parse_config

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_ONLY = {"text"}  # drawings and output
ELSEWHERE = {"module", "cd", "git", "sudo", "export"}  # commands of the reader's machine, nothing of ours


def blocks(document: Path) -> list[tuple[str, str]]:
    """(language, text) of each block, empty lines in front: line numbers in errors are those of the document."""
    text = document.read_text(encoding="utf-8")
    return [(found[1], "\n" * text[: found.start(2)].count("\n") + found[2]) for found in FENCE.finditer(text)]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_subcommand(words: list[str]) -> None:
    """All options that are shown exist: click refuses unknown ones before anything runs."""
    subcommand = commands.commands[words[0]]
    known = {name for parameter in subcommand.params for name in parameter.opts}
    assert {word.split("=")[0] for word in words[1:] if word.startswith("--")} <= known, words
    assert CliRunner().invoke(commands, [words[0], "--help"]).exit_code == 0


def check_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if not words or words[0] in ELSEWHERE:
        return
    for word in words:
        if re.match(r"(jobs|data|tests|docs|ringmpi)/", word):
            assert (ROOT / word).exists(), f"{word} does not exist: {line}"
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert set(targets) <= make_targets(), line
    elif "ringmpi" in words:
        check_subcommand(words[words.index("ringmpi") + 1 :])
    else:
        assert (ROOT / words[0]).is_file() or words[0] == "sbatch", f"neither ours nor known: {line}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if any("torch" in text for language, text in blocks(document) if language == "python"):
        pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
    namespace = {}  # of the whole document: a later block may use what an earlier one made
    for language, text in blocks(document):
        if language == "python":
            exec(compile(text, document.name, "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_configurations_load(document):
    for language, text in blocks(document):
        if language == "toml":
            parse_config(text, document.name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document):
    for language, text in blocks(document):
        if language == "console":
            for line in text.replace("\\\n", " ").splitlines():
                check_command(line.removeprefix("$ "))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_is_of_a_kind_that_is_checked(document):
    languages = {language for language, _ in blocks(document)}
    assert languages <= {"python", "toml", "console"} | SHOWN_ONLY
    fences = len(re.findall(r"^\s*```", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert fences == 2 * len(blocks(document)), "a block is indented or not closed, so nothing checks it"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document):
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    named = re.findall(r"`((?:ringmpi|jobs|data|tests|docs)/[\w./-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "line", ["make tea", "ringmpi dance", "ringmpi run x.toml --frce", "jobs/none.sh 4", "rm -rf x"]
)
def test_a_command_that_does_not_exist_is_seen(line):
    with pytest.raises((AssertionError, KeyError)):
        check_command(line)
