"""Every error message of ringmpi, read out of its source: what `raise SomeError(...)` says, values as {...}."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringmpi import errors


@dataclass(frozen=True)
class Message:
    """One place that raises an error.

    Attributes
    ----------
    text : str
        The message, every value in it as {...}.
    error : str
        Name of the class.
    exit_code : int
        What the command line ends with.
    path : str
        Of the module.
    """

    text: str
    error: str
    exit_code: int
    path: str


def messages(root: Path) -> list[Message]:
    """All messages below `root`/ringmpi that are written where they are raised, by class and module."""
    found = {m for path in (root / "ringmpi").rglob("*.py") for m in _of_module(path, str(path.relative_to(root)))}
    return sorted(found, key=lambda message: (message.error, message.path, message.text))


def _of_module(path: Path, name: str) -> Iterator[Message]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        kind = getattr(errors, called, None)
        if isinstance(kind, type) and (text := _text(node.args[0])):
            yield Message(text, called, kind.exit_code, name)


def _text(node: ast.expr) -> str:
    """The words of a string literal; empty where the message is made elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp):
        return _text(node.left) + (_text(node.right) or "{...}")
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    return ""
