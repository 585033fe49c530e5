"""`ringmpi inspect`: what is in a file. Needs no MPI."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from ringmpi.cli.streams import shown

DAMAGED = 1


@click.command("inspect", short_help="Show what is in a file: arrays, provenance, damage.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--check",
    is_flag=True,
    help="Read the arrays too: compare the digests of an output, read all of another file. Default: headers only.",
)
@click.option("--json", "as_json", is_flag=True, help="Write all of it as one JSON object to stdout.")
def inspect_command(file: Path, check: bool, as_json: bool) -> int:
    """Show what is in FILE: every array with shape, dtype, unit and meaning, where it comes from, and what is damaged.

    FILE may be an output of `ringmpi run`, the file of one shard, or an input: then the arrays are named that could
    be query, key and value. Any other HDF5 file is shown as it is. FILE may be a directory of checkpoints too, or one
    of its generations, or a manifest.

    \b
    Exit codes:
      0  nothing wrong was found
      1  the file is damaged: the last lines say how
      3  the file cannot be opened

    \b
    Example:
      ringmpi inspect out.h5 --check
      ringmpi inspect in.h5
      ringmpi inspect checkpoints
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.analysis.contents import examine
    from ringmpi.analysis.kept import directory_of, examine_checkpoints
    from ringmpi.cli import contents_view, kept_view
    from ringmpi.cli.printing import print_results

    if directory := directory_of(file):
        kept = examine_checkpoints(directory, check=check)
        with shown():
            if as_json:
                click.echo(json.dumps(kept_view.as_dict(kept), allow_nan=False))
            else:
                print_results(partial(kept_view.show, kept))
        return DAMAGED if any(kept.damage.values()) else 0
    contents = examine(file, check=check)
    with shown():
        if as_json:
            click.echo(json.dumps(contents_view.as_dict(contents), allow_nan=False))
        else:
            print_results(partial(contents_view.show, contents))
    return DAMAGED if contents.problems else 0
