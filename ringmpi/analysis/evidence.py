"""What a certificate file says: all that somebody else needs to check an output again, field by field.

A JSON object of "schema", "schema_version", "blake2b" and "certificate" (`Evidence`). The digest is over the text of
the latter with sorted keys and without blanks (`canonical`), so that it may be indented again without a change:

    hashlib.blake2b(json.dumps(c, sort_keys=True, separators=(",", ":")).encode(), digest_size=32).hexdigest()

All of it but `issued` follows from the output, the input and the choice of rows, so all of it can be found again.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ringmpi.config.messages import printable
from ringmpi.core.whole_numbers import LARGEST_POSITION
from ringmpi.errors import StorageError
from ringmpi.regular_file import MOST_BYTES, regular_bytes
from ringmpi.storage.digest import new_digest
from ringmpi.storage.files import replace_text, storage_errors

CERTIFICATE_SCHEMA = "ringmpi-certificate"
CERTIFICATE_VERSION = 1
SAMPLE_RULE = "one at random in each of as many equal parts of the shards of all ranks, laid end to end"
DEEPEST = 32  # lists and objects in each other
SHOWN = 60  # characters of what is not as it must be

_NUMBERS = re.compile(r"\[\n([-+.,\deE\s]*)\]")  # a list of numbers, one a line: they are put on one

Position: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST_POSITION)]
Positions: TypeAlias = tuple[Position, ...] | Literal["all"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ArrayFacts(_Record):
    """One array of the output or of the input."""

    dataset: Annotated[str, Field(description="its path in the file")]
    shape: Annotated[tuple[int, ...], Field(description="as stored")]
    dtype: Annotated[str, Field(description="of the values; bfloat16 by its name")]
    blake2b: Annotated[str, Field(description="digest of its bits: 32 bytes, C order, little-endian")]


class Sample(_Record):
    """Which rows were recomputed."""

    rule: Annotated[str, Field(description="how they were chosen")] = SAMPLE_RULE
    seed: Annotated[int, Field(ge=0, description="of the choice")]
    positions: Annotated[Positions, Field(description='query positions, ascending, or "all"')]
    keys: Annotated[Positions, Field(description='key positions whose gradients were recomputed, or "all"')] = ()


class Quantity(_Record):
    """How recomputed rows of one array compare with the file, in all heads."""

    rows: Annotated[int, Field(ge=0, description="rows recomputed")]
    worst_ratio: Annotated[float, Field(description="largest error / permitted error; at most 1 where all is right")]
    worst_error: Annotated[float, Field(description="the error there, in the units of the array")]
    permitted_error: Annotated[float, Field(description="what the tolerance permits there (core/tolerance.py)")]
    worst_at: Annotated[
        tuple[int, ...],
        Field(
            description="batch, head, position, and channel, key block (of a map) or rank of the weight (of top keys)"
        ),
    ]
    wrong_rows: Annotated[int, Field(ge=0, description="rows beyond the tolerance")]


class Evidence(_Record):
    """What a certificate says."""

    verdict: Annotated[Literal["verified", "not verified"], Field(description="whether every check passed")]
    output: Annotated[dict[str, ArrayFacts], Field(description="arrays of the output, by their paths")]
    input: Annotated[dict[str, ArrayFacts], Field(description="arrays of the input, by their names in RUN.toml")]
    run: Annotated[
        dict[str, Any],
        Field(description="what the output says of its run: versions, configuration, times, hosts, input, ring"),
    ]
    question: Annotated[
        dict[str, Any], Field(description="what was asked, resolved: mask, scale, softcap, dropout, dtype, arrays")
    ]
    pairs: Annotated[dict[str, int], Field(description="pairs of the mask, asked, attended, of every pass")]
    sample: Annotated[Sample, Field(description="rows that were recomputed")]
    quantities: Annotated[dict[str, Quantity], Field(description="how they compare, by array")]
    checks: Annotated[dict[str, bool], Field(description="every check by its name, and whether it passed")]
    findings: Annotated[dict[str, str], Field(description="what failed, in words")]
    issued: Annotated[
        dict[str, str], Field(description="when, on which host, with which versions; nothing else depends on it")
    ]


def canonical(facts: Any) -> str:
    """The text of facts that digests are made of."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def facts_of(evidence: Evidence) -> dict[str, Any]:
    """Evidence as JSON has it: numbers that are not finite as text."""
    facts: dict[str, Any] = json.loads(evidence.model_dump_json())
    return facts


def check_free(path: Path, *, force: bool = False) -> None:
    """StorageError if a file is there already, unless it is a certificate, and `force`: asked before the work."""
    if not path.exists() or (force and _is_certificate(path)):
        return
    if force:
        raise StorageError(
            f"{path} exists and is not a ringmpi certificate, so --force does not replace it. Choose another file, or "
            f"move it away."
        )
    raise StorageError(
        f"certificate {path} exists and would be overwritten. To check against it, give --against; otherwise choose "
        f"another file, or give --force."
    )


def _is_certificate(path: Path) -> bool:
    """Whether a file is one, of any version; also one that was changed."""
    try:
        return path.is_file() and _document(path).get("schema") == CERTIFICATE_SCHEMA
    except StorageError:
        return False


def write_evidence(path: Path, evidence: Evidence) -> None:
    """Write a certificate file, whole or not at all; StorageError if it cannot be written."""
    facts = facts_of(evidence)
    head = {"schema": CERTIFICATE_SCHEMA, "schema_version": CERTIFICATE_VERSION, "blake2b": facts_digest(facts)}
    text = json.dumps(head | {"certificate": facts}, indent=1, allow_nan=False)
    replace_text(path, _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def read_evidence(path: Path) -> tuple[Evidence, bool]:
    """Read a certificate file.

    Returns
    -------
    evidence : Evidence
    whole : bool
        Whether its digest is right: False where something in it was changed.

    Raises
    ------
    StorageError
        If it is missing, no certificate, or of another version.
    """
    found = _document(path)
    if found.get("schema") != CERTIFICATE_SCHEMA:
        raise StorageError(
            f"{path} is not a ringmpi certificate. Give the file that ringmpi verify --certificate has written."
        )
    if (version := found.get("schema_version")) != CERTIFICATE_VERSION:
        raise StorageError(
            f"{path} has layout version {printable(repr(version))[:SHOWN]}; this ringmpi reads version "
            f"{CERTIFICATE_VERSION}. Use the ringmpi that wrote it."
        )
    facts = found.get("certificate")
    if problem := _not_plain(facts):
        raise StorageError(f"{path} was changed: its field certificate has {problem}, which no certificate has.")
    try:
        return Evidence.model_validate(facts), facts_digest(facts) == found.get("blake2b")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = printable(".".join(map(str, first["loc"])) or "certificate")[:SHOWN]
        raise StorageError(
            f"{path} was changed: its field {where} is not what a certificate has ({first['msg']})."
        ) from None


def _document(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is something else. StorageError if it cannot be read."""
    with storage_errors("read", path):
        text = regular_bytes(path)
    if len(text) > MOST_BYTES:  # a list of ten million positions is smaller
        raise StorageError(f"{path} is larger than {MOST_BYTES >> 20} MiB: not a certificate. Give its JSON file.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _not_plain(facts: Any) -> str:
    """What in facts no certificate can have, in words; empty where there is nothing."""
    waiting = [(facts, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST:
            return f"lists nested more than {DEEPEST} deep"
        if isinstance(value, float) and not math.isfinite(value):
            return "a number that JSON does not have"
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            return "text that is not Unicode"
        inside = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(each, depth + 1) for each in inside if isinstance(each, str | float | list | dict)]
    return ""


def facts_digest(facts: Any) -> str:
    """Digest of the text of facts, 64 hexadecimal digits."""
    digest = new_digest()
    digest.update(canonical(facts).encode())
    return digest.hexdigest()
