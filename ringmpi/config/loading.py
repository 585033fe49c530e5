"""RUN.toml and overrides in, one RunConfig out, and back to text. All problems are reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from ringmpi.config.messages import assigned, location_text, nearest, printable, problem_of
from ringmpi.config.options import RunConfig
from ringmpi.config.overrides import Origins, apply_overrides
from ringmpi.config.pending import take_pending
from ringmpi.config.toml_text import decode, parse
from ringmpi.errors import ConfigError
from ringmpi.regular_file import regular_bytes

# A configuration is small. A larger file is something else, given by mistake.
LARGEST_FILE_BYTES = 1 << 20


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read RUN.toml.

    Parameters
    ----------
    path : path
        A TOML file in UTF-8, with or without byte order mark, LF or CRLF.
    overrides : sequence of str
        "table.key=VALUE", VALUE in TOML; what is no TOML is taken as a string. The last one of a key holds.

    Returns
    -------
    RunConfig

    Raises
    ------
    ConfigError
        With every problem found, a line each: the file or the override, the option, found, required, what to do.
    """
    path = Path(path)
    name = printable(str(path))
    document = parse(decode(_read(path, name), name), name)
    origins, problems = apply_overrides(document, overrides)
    config = _checked(document, name, origins, problems)
    _check_output(config, path, name)
    return config


def parse_config(text: str, name: str = "configuration", overrides: Sequence[str] = ()) -> RunConfig:
    """RunConfig of TOML text, such as `resolved` writes. Raises ConfigError; `name` stands before every problem."""
    document = parse(text, name)
    origins, problems = apply_overrides(document, overrides)
    return _checked(document, name, origins, problems)


def resolved(config: RunConfig) -> str:
    """The configuration with all defaults filled in, as TOML text that `parse_config` reads back to an equal one."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def _read(path: Path, name: str) -> bytes:
    try:
        content = regular_bytes(path, LARGEST_FILE_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file; expected a TOML file. {_neighbours(path)}") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(f"{name}: {reason.lower()}; expected a TOML file that can be read.") from None
    if len(content) > LARGEST_FILE_BYTES and decode(content[:8], name):
        limit = f"{LARGEST_FILE_BYTES >> 20} MiB"
        raise ConfigError(f"{name}: larger than {limit}; expected a TOML file. Put long lists into datasets.")
    return content


def _neighbours(path: Path) -> str:
    """Advice for a file that is not there: TOML files that are, in the same folder."""
    try:
        found = sorted(printable(str(file)) for file in path.parent.glob("*.toml"))
    except (OSError, ValueError):
        found = []
    if not found:
        return "Check the path and the working directory."
    return f"{nearest(printable(str(path)), found)}In that folder: {', '.join(found[:5])}."


def _checked(document: dict[str, Any], name: str, origins: Origins, problems: Sequence[str]) -> RunConfig:
    """The configuration, or one ConfigError with `problems` and all that is wrong in `document`."""
    found = [
        (location, f"{location_text(location, {})}{assigned(value)}: this version does not have it yet; {advice}")
        for location, value, advice in take_pending(document)
    ]
    try:
        config = RunConfig.model_validate(document)
    except ValidationError as error:
        found += [problem_of(detail, document) for detail in error.errors()]
    lines = [f"{origins.get(location[:2], name)}: {text}" for location, text in found]
    if problems or lines:
        raise ConfigError(*problems, *lines)
    return config


def _check_output(config: RunConfig, path: Path, name: str) -> None:
    """Refuse an output that would overwrite what the run reads, or that cannot be written in the way that is asked."""
    output = config.output.file
    if config.output.writer == "parallel" and config.output.layout == "virtual":
        raise ConfigError(
            f'{name}: [output] writer = "parallel" with layout = "virtual": a virtual output refers to the files of '
            f"the ranks, but here all ranks write one file; leave one of the two out"
        )
    for taken, what in ((config.input.file, "the [input] file"), (path, "this configuration")):
        if _same_file(output, taken):
            raise ConfigError(f'{name}: [output] file = "{printable(output)}": it is {what}; name another file')


def _same_file(a: str | Path, b: str | Path) -> bool:
    """Whether two paths lead to one file, whether it exists or not."""
    try:
        return Path(a).resolve() == Path(b).resolve()
    except (OSError, RuntimeError, UnicodeEncodeError):  # a loop of links, a name beyond the locale: opening it says so
        return Path(a) == Path(b)
