"""Only regular files are read, by whatever reads text that a user names: nothing waits, nothing fills memory."""

import os

import pytest

from ringmpi import cli
from ringmpi.regular_file import regular_bytes

EVIDENCE = "cannot read {}: not a regular file. Give the path of a file, not of a pipe or a device."
TOPOLOGY = "{}: cannot be read: not a regular file; give the path of a readable file"
CONFIGURATION = "{}: not a regular file; expected a TOML file that can be read."
READERS = {
    "plan": (["plan", "{}", "--ranks", "2"], CONFIGURATION),
    "topology show": (["topology", "show", "{}"], TOPOLOGY),
    "topology place": (["topology", "place", "{}"], TOPOLOGY),
    "plan --topology": (
        ["plan", "--length", "1e4", "--machine", "h100-ndr", "--ranks", "2", "--hosts", "n[1-2]", "--topology", "{}"],
        TOPOLOGY,
    ),
    "verify --against": (["verify", "out.h5", "--against", "{}"], EVIDENCE),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_every_reader_of_text_refuses_it(reader, kind, tmp_path, capsys):
    arguments, message = READERS[reader]
    path = tmp_path / "pipe" if kind == "pipe" else "/dev/zero"
    if kind == "pipe":
        os.mkfifo(path)
    assert cli.exit_code([word.format(path) if "{}" in word else word for word in arguments]) in (2, 3)
    assert message.format(path) in capsys.readouterr().err


def test_a_larger_file_is_read_one_byte_further(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(9))
    assert [len(regular_bytes(path, most)) for most in (10, 9, 8)] == [9, 9, 9]
    assert len(regular_bytes(path, 3)) == 4


def test_memory_that_is_missing_without_a_reason_is_said_without_one(monkeypatch, capsys):
    def no_memory(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(cli.commands, "main", no_memory)
    assert cli.exit_code(["verify", "out.h5"]) == 3
    assert capsys.readouterr().err == (
        "ringmpi: error: not enough memory. Ask for less at once, or use a larger machine.\n"
    )
