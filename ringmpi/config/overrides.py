"""`--set table.key=VALUE`: options of the command line, put over those of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ringmpi.config.checks import Location
from ringmpi.config.messages import printable
from ringmpi.config.toml_text import parse
from ringmpi.errors import ConfigError

# From (table, key), or (table,) where the file has none, to the override that it came from.
Origins: TypeAlias = dict[Location, str]

TOML_OPENINGS = ('"', "'", "[", "{")


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> tuple[Origins, list[str]]:
    """Put `overrides` into `document`, the last one of a key last; return where keys came from, and problems."""
    origins: Origins = {}
    problems: list[str] = []
    for override in overrides:
        name = f"--set {printable(override)}"
        path, separator, text = override.partition("=")
        table, _, key = path.strip().partition(".")
        if not (separator and table and key):
            problems.append(f"{name}: must be TABLE.KEY=VALUE; write for example --set attention.mask=full")
            continue
        try:
            value = _value(text.strip(), name)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        if table not in document:
            origins[table,] = name
        holder = document.setdefault(table, {})
        if isinstance(holder, dict):  # else the file itself is wrong here, and that is reported
            holder[key] = value
            origins[table, key] = name
    return origins, problems


def _value(text: str, name: str) -> Any:
    """`text` as a TOML value, else as a bare string. What opens a TOML string, list or table must be one."""
    try:
        document = parse(f"value = {text}", name)
    except ConfigError:
        document = {}
    if list(document) == ["value"]:
        return document["value"]
    if text.startswith(TOML_OPENINGS):
        raise ConfigError(f"{name}: the value is not TOML; close what it opens, and quote all of it for the shell")
    return text
