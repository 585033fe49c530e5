"""From bytes to the tables of a TOML document; what is no TOML becomes one ConfigError."""

from __future__ import annotations

import codecs
import tomllib
from typing import Any

from ringmpi.config.messages import printable
from ringmpi.errors import ConfigError

DEEPEST_NESTING = 40
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def decode(content: bytes, name: str) -> str:
    """Text of a file's bytes: UTF-8, with or without byte order mark. `name` stands before the problem."""
    if content.startswith(HDF5_SIGNATURE):
        raise ConfigError(f"{name}: an HDF5 file; expected a TOML file. Name this one in it, as [input] file.")
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{content[error.start]:02x} in line {line}"
        raise ConfigError(f"{name}: {byte} is not UTF-8, which TOML requires. Save the file as UTF-8.") from None


def parse(text: str, name: str) -> dict[str, Any]:
    """Tables of TOML text, nested at most DEEPEST_NESTING deep, so that whatever walks them may recurse."""
    too_deep = f"{name}: lists and tables nested deeper than {DEEPEST_NESTING}; no option needs that. Flatten it."
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(too_deep) from None
    except ValueError as error:
        reason = _reason(error)
        raise ConfigError(
            f"{name}: not TOML: {reason}; expected [table] and key = value lines, with strings in double quotes."
        ) from None
    if _is_deep(document):
        raise ConfigError(too_deep)
    return document


def _reason(error: ValueError) -> str:
    """What tomllib found, as part of a sentence. The one error that is not its own is Python's limit of digits."""
    text = printable(str(error)) if isinstance(error, tomllib.TOMLDecodeError) else "a number has too many digits"
    return text[:1].lower() + text[1:]


def _is_deep(document: dict[str, Any]) -> bool:
    """Whether containers nest deeper than DEEPEST_NESTING; level by level, since dotted keys nest without limit."""
    level: list[Any] = [document]
    for _ in range(DEEPEST_NESTING):
        containers = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for container in containers for item in container if isinstance(item, dict | list)]
    return bool(level)
