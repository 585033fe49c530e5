"""The options that a run had, from its output file: plain values, also of options that this version does not know."""

from __future__ import annotations

import tomllib
from typing import Any

from ringmpi.errors import StorageError
from ringmpi.storage.results import Results


def options_of(results: Results) -> dict[str, Any]:
    """The resolved configuration as "table.key" -> value.

    Raises
    ------
    StorageError
        If the file has none that can be read.
    """
    try:
        tables = tomllib.loads(results.account.provenance.configuration)
    except tomllib.TOMLDecodeError as error:
        raise StorageError(
            f"{results.path}: the configuration in it is not valid TOML ({error}). It was changed; run again."
        ) from None
    named = ((name, table if isinstance(table, dict) else {"": table}) for name, table in tables.items())
    return {f"{name}.{key}".rstrip("."): value for name, table in named for key, value in table.items()}
