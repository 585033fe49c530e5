"""From what pydantic found to one line a problem: where, what was found, what is required, what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic_core import ErrorDetails

from ringmpi.config.checks import REQUIREMENT_BROKEN, Location, Options
from ringmpi.config.masks import MODEL_OF_TAG, NAME_TAG
from ringmpi.config.options import RunConfig

SHOWN_CHARACTERS = 60
SHOWN_BITS = 128
KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a truth value"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "a table"),
)


def problem_of(error: ErrorDetails, document: dict[str, Any]) -> tuple[Location, str]:
    """Location and text of one error of pydantic about `document`."""
    location = tuple(part for part in error["loc"] if part not in MODEL_OF_TAG and part != NAME_TAG)
    found = error["input"]
    if error["type"] == "extra_forbidden":
        return location, _unknown(error["loc"], found, document)
    if error["type"] == "missing":
        return location, _missing(error["loc"])
    where = location_text(location, document)
    if error["type"] == REQUIREMENT_BROKEN:
        context = error["ctx"]
        kind = f" ({kind_of(found)})" if context["wrong_type"] else ""
        return location, f"{where} = {shown(found)}{kind}: must be {context['requirement']}; {context['advice']}"
    keys = ", ".join(_model_at(error["loc"]).model_fields)
    return location, f"{where} = {shown(found)} ({kind_of(found)}): must be a table; it takes {keys}"


def location_text(location: Location, document: dict[str, Any]) -> str:
    """`[table] key.key[2]`; a key outside every table as it stands."""
    table, *rest = location
    if not rest:
        return f"[{_name(table)}]" if isinstance(document.get(str(table), {}), dict) else _name(table)
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in rest)
    return f"[{_name(table)}] {path.removeprefix('.')}"


def shown(value: Any) -> str:
    """A value as it would stand in TOML, on one line, cut where it is long."""
    text = printable(_toml(value))
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def assigned(value: Any) -> str:
    """` = value` for an option; nothing for a table, whose name says enough."""
    return "" if isinstance(value, dict) else f" = {shown(value)}"


def kind_of(value: Any) -> str:
    """What sort of TOML value this is, in words."""
    return next((kind for type_, kind in KINDS if isinstance(value, type_)), "a date or time")


def printable(text: str) -> str:
    """`text` with everything escaped that would break a line or hide in a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...? `, or nothing where no known word is near."""
    near = get_close_matches(word.lower(), list(known), 1)
    return f"did you mean {near[0]}? " if near else ""


def _toml(value: Any) -> str:
    """Enough of a TOML writer for messages."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > SHOWN_BITS:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value[:SHOWN_CHARACTERS])}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_name(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    return str(value)


def _name(part: int | str) -> str:
    """A key as TOML writes it: bare where it may be."""
    text = str(part)
    bare = text.isascii() and text.replace("-", "").replace("_", "").isalnum()
    return text if bare else printable(json.dumps(text, ensure_ascii=False))


def _unknown(parts: Location, found: Any, document: dict[str, Any]) -> str:
    """An unknown table or key, with the nearest known one."""
    name, holder = str(parts[-1]), parts[:-1]
    where = location_text(tuple(part for part in parts if part not in MODEL_OF_TAG), document)
    known = list(_model_at(holder).model_fields)
    if not holder:
        tables = ", ".join(f"[{table}]" for table in known)
        near = nearest(name, known) if isinstance(found, dict) else ""
        what = "table" if isinstance(found, dict) else "key outside the tables"
        return f"{where}: unknown {what}; {_elsewhere(name, '') or near}this version has {tables}"
    advice = nearest(name, known) or (_elsewhere(name, str(holder[0])) if len(holder) == 1 else "")
    return f"{where}: unknown key; {advice}known here: {', '.join(known)}"


def _elsewhere(name: str, table: str) -> str:
    """Where a key belongs that stands in the wrong table."""
    homes = [home for home in RunConfig.model_fields if home != table and name in _model_at((home,)).model_fields]
    return f"{name} belongs to {' or '.join(f'[{home}]' for home in homes)}; " if homes else ""


def _missing(parts: Location) -> str:
    """A table or key that has no default."""
    if len(parts) == 1:
        fields = _model_at(parts).model_fields
        required = ", ".join(name for name, field in fields.items() if field.is_required())
        return f"[{parts[0]}] is missing: it has no default; add the table with {required}"
    location = tuple(part for part in parts if part not in MODEL_OF_TAG)
    return f"{location_text(location, {})} is missing: it has no default; add {location[-1]} = ..."


def _model_at(parts: Location) -> type[Options]:
    """The model that describes the table at a location of pydantic."""
    model: type[Options] = RunConfig
    for part in parts:
        if part in MODEL_OF_TAG:
            model = MODEL_OF_TAG[str(part)]
        elif part in model.model_fields:
            annotation = model.model_fields[str(part)].annotation
            tables = (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
            model = next((kind for kind in tables if issubclass(kind, Options)), model)
    return model
