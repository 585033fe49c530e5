"""What the documents show works: Python blocks run, TOML loads, commands and files that are named exist."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from docs.draw_ring import picture
from docs.measured_benchmarks import BENCHMARKS
from docs.tables import MARKED, MASKS, TABLES, mask_of, mask_of_toml, refreshed
from ringmpi.cli import commands
from ringmpi.config import parse_config

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r'^```(\S*)( title="[\w./-]+")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SHOWN_ONLY = {"text"}  # drawings and output
ELSEWHERE = {"module", "cd", "mkdir", "source", "git", "sudo", "export"}  # of the reader's machine, nothing of ours
LAUNCHERS = {"mpirun", "python"}  # in an active environment
# `path.py:name`: a function, class, method or field.
NAMED_IN_CODE = re.compile(r"`((?:ringmpi|tests|docs)/[\w/]+\.py):([\w.]+)`")
TROUBLESHOOTING = ROOT / "docs/troubleshooting.md"


def blocks(document: Path) -> list[tuple[str, str]]:
    """(language, text) of each block without a title, empty lines in front: line numbers are those of the document.

    A block with a title is a file, which tests/launched/test_tutorial.py writes and runs.
    """
    text = document.read_text(encoding="utf-8")
    lines = [text[: found.start(3)].count("\n") for found in FENCE.finditer(text)]
    found_blocks = zip(lines, FENCE.finditer(text), strict=True)
    return [(found[1], "\n" * line + found[3]) for line, found in found_blocks if not found[2]]


def all_blocks(document: Path) -> list[re.Match[str]]:
    return list(FENCE.finditer(document.read_text(encoding="utf-8")))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_subcommand(words: list[str]) -> None:
    """All options that are shown exist: click refuses unknown ones before anything runs."""
    subcommand, names = commands, []
    while isinstance(subcommand, click.Group):
        names.append(words[len(names)])
        subcommand = subcommand.commands[names[-1]]
    known = {name for parameter in subcommand.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words[len(names) :] if word.startswith("--")} <= known, words
    assert CliRunner().invoke(commands, [*names, "--help"]).exit_code == 0


def check_python(words: list[str]) -> None:
    """What Python is given is a module of ours, a file of the tutorial, or one line of code."""
    after = words[next(n for n, word in enumerate(words) if word.endswith("python")) + 1 :]
    if after[0] == "-m":
        module = ROOT / after[1].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), words
    elif after[0] == "-c":
        compile(after[1], "command", "exec")
    else:
        assert any(block[2] == f' title="{after[0]}"' for page in DOCUMENTS for block in all_blocks(page)), words


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
    elif words[0].split("/")[-1] in LAUNCHERS:
        check_python(words)
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
    languages = {block[1] for block in all_blocks(document)}
    assert languages <= {"python", "toml", "console"} | SHOWN_ONLY
    fences = len(re.findall(r"^\s*```", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert fences == 2 * len(all_blocks(document)), "a block is indented or not closed, so nothing checks it"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document):
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    named = re.findall(r"`((?:ringmpi|jobs|data|tests|docs)/[\w./-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "line",
    [
        "make tea",
        "ringmpi dance",
        "ringmpi bench dance",
        "ringmpi bench kernel --shape 1x1x1",
        "ringmpi run x.toml --frce",
        "jobs/none.sh 4",
        "rm -rf x",
        "python nothing.py",
        "mpirun -n 3 python -m docs.nothing",
    ],
)
def test_a_command_that_does_not_exist_is_seen(line):
    with pytest.raises((AssertionError, KeyError)):
        check_command(line)


@pytest.mark.parametrize("words", [benchmark.command for benchmark in BENCHMARKS.values()])
def test_benchmarks_that_are_named_exist(words):
    check_subcommand(["bench", *words.split()])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_the_code_exist(document):
    text = document.read_text(encoding="utf-8")
    assert [found[0] for found in NAMED_IN_CODE.finditer(text) if not is_defined(ROOT / found[1], found[2])] == []


def is_defined(module: Path, name: str) -> bool:
    """Whether a module defines a name, such as `Partial`, `Partial.row_max` or `merge`."""
    body: list[ast.stmt] = ast.parse(module.read_text(encoding="utf-8")).body if module.exists() else []
    for part in name.split("."):
        holders = [statement for statement in body if part in names_of(statement)]
        if not holders:
            return False
        body = getattr(holders[0], "body", [])
    return True


def names_of(statement: ast.stmt) -> set[str]:
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return {getattr(statement, "name", "")} | {getattr(target, "id", "") for target in targets}


def test_a_name_that_does_not_exist_is_seen():
    module = ROOT / "ringmpi/core/partial.py"
    assert is_defined(module, "merge")
    assert is_defined(module, "Partial.row_max")
    assert not is_defined(module, "mix")
    assert not is_defined(module, "Partial.row_min")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_up_to_date(document):
    text = document.read_text(encoding="utf-8")
    assert text == refreshed(text), "run: python -m docs.tables"
    assert text.count("<!-- table:") == len(MARKED.findall(text)), "a table without an end"


def test_every_table_is_used():
    used = {found[0] for page in DOCUMENTS for found in MARKED.findall(page.read_text(encoding="utf-8"))}
    assert used == set(TABLES)


def test_the_picture_of_the_ring_is_what_its_script_draws():
    assert (ROOT / "docs/ring.svg").read_text(encoding="ascii") == picture(), "run: python -m docs.draw_ring"


@pytest.mark.parametrize(("python", "toml", "queries", "keys"), MASKS, ids=lambda value: str(value)[:40])
def test_masks_are_the_same_in_python_and_toml(python, toml, queries, keys):
    vectors = {"my_slices": [[0, 4, 0, 4, 0, 0], [4, 8, 2, 8, -3, -1]]}
    mask, other = mask_of(python), mask_of_toml(toml, vectors)
    assert (mask.allowed(queries, keys) == other.allowed(queries, keys)).all()


def said_in_the_code() -> str:
    """All strings of the package, in the order of the source: the words of f-strings, with nothing for values."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "ringmpi").rglob("*.py"))]
    strings = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return "\0".join(string for string in strings if isinstance(string, str))


def test_messages_that_are_explained_are_those_of_the_code():
    explained = re.findall(r"^### `(.*)`$", TROUBLESHOOTING.read_text(encoding="utf-8"), re.MULTILINE)
    said = said_in_the_code()
    fragments = [part.strip(" .:;)") for message in explained for part in message.split("...")]
    assert len(explained) > 20
    assert [part for part in fragments if part not in said] == []


def test_pages_are_ascii_and_on_the_site():
    pages = [page for page in DOCUMENTS if page.parent != ROOT]
    site = (ROOT / "mkdocs.yml").read_text(encoding="ascii")
    for page in pages:
        assert page.read_text(encoding="utf-8").isascii(), page
        assert f" {page.relative_to(ROOT / 'docs')}\n" in site, f"{page} is not in the nav of mkdocs.yml"
