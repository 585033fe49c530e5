"""The manifest of a checkpoint: what one generation consists of. It is written last, so a generation has it or is none.

A JSON file of two fields, on lines of their own: "blake2b", the digest of the text of the other, and "manifest". So no
byte of it can change unseen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ringmpi.errors import StorageError
from ringmpi.regular_file import regular_bytes
from ringmpi.storage.digest import new_digest
from ringmpi.storage.files import replace_text, storage_errors

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1

_TEXT = re.compile(r'\{"blake2b": "([0-9a-f]{64})",\n"manifest": (\{"schema_version": ?(\d+).*\})\}\n', re.DOTALL)


def _plain(facts: Any) -> Any:
    """What comes back from JSON, so that facts are equal before and after."""
    return json.loads(json.dumps(facts))


Facts: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_plain)]
Bounds: TypeAlias = tuple[int, int, int]  # start, stop, step
SliceRow: TypeAlias = tuple[int, int, int, int, int, int]  # core/slices.py


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class RankFile(_Record):
    """The file of one rank."""

    name: Annotated[str, Field(pattern=r"^rank-\d{5,}\.h5$", description="in the directory of the manifest")]
    bytes: Annotated[int, Field(ge=0, description="its size")]
    digest: Annotated[
        str, Field(pattern="^[0-9a-f]{64}$", description="BLAKE2b over those of its parts (storage/file_digest.py)")
    ]
    pairs: Annotated[int, Field(ge=0, description="pairs that the kernels counted for what is in it")]
    absorbed: Annotated[
        tuple[SliceRow, ...] | None,
        Field(description="slices of the mask whose pairs are in it; null where slices cannot say it"),
    ] = None
    ranges: Annotated[
        dict[str, tuple[Bounds, ...]], Field(description="positions of rows that are in it: start, stop, step")
    ] = {}


class Manifest(_Record):
    """One generation of a checkpoint."""

    schema_version: Annotated[int, Field(description="version of this layout")] = MANIFEST_VERSION
    generation: Annotated[int, Field(ge=1, description="its number; a later one is larger")]
    created: Annotated[str, Field(description="ISO 8601 time with zone, for people: nothing depends on clocks")]
    ringmpi: Annotated[str, Field(description="version of ringmpi")]
    identity: Annotated[Facts, Field(description="what is computed; a run that computes something else is refused")]
    layout: Annotated[Facts, Field(description="how it was spread; another layout computes the rest of the mask")]
    progress: Annotated[Facts, Field(description="how far the run was")]
    attempts: Annotated[tuple[Facts, ...], Field(description="runs that came to it, the last one last")]
    absorbed: Annotated[
        tuple[SliceRow, ...], Field(description="slices of the mask that earlier attempts had attended to")
    ] = ()
    files: Annotated[tuple[RankFile, ...], Field(min_length=1, description="of all ranks, by ring position")]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each fact in which two sets of facts differ."""
    present = _plain(dict(now))
    return [
        f"{name}: the checkpoint has {saved.get(name)!r}, this run has {present.get(name)!r}"
        for name in sorted({*saved, *present})
        if saved.get(name) != present.get(name)
    ]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of the generation in `folder`, whole or not at all; StorageError if it cannot be written."""
    body = manifest.model_dump_json()
    replace_text(folder / MANIFEST, f'{{"blake2b": "{_digest(body)}",\n"manifest": {body}}}\n')


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the generation in `folder`; StorageError if it is missing, damaged or of another version."""
    path = folder / MANIFEST
    with storage_errors("read", path):
        if not path.exists():
            raise StorageError(f"{path} is missing: this generation was not finished, or has lost it.")
        found = _TEXT.fullmatch(regular_bytes(path).decode(errors="replace"))
        if found is None or _digest(found[2]) != found[1]:
            raise StorageError(f"{path} is damaged: it is not a manifest, or its digest differs.")
        if int(found[3]) != MANIFEST_VERSION:
            raise StorageError(
                f"{path} has layout version {found[3]}; this ringmpi reads version {MANIFEST_VERSION}. Use the ringmpi "
                f"that wrote it, or start over with --force."
            )
        return Manifest.model_validate_json(found[2])


def _digest(body: str) -> str:
    digest = new_digest()
    digest.update(body.encode())
    return digest.hexdigest()
