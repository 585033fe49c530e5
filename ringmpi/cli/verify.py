"""`ringmpi verify`: count, recompute, say what was found. Needs no MPI."""

from __future__ import annotations

import json
from pathlib import Path

import click

CHECK_FAILED = 1


@click.command("verify", short_help="Check the output of a run: a certificate.")
@click.argument("out_h5", type=click.Path(path_type=Path))
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    metavar="N",
    help="Rows (query positions) to recompute in all heads. From the number there are upwards: all. 0: none.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="S",
    help="Which rows are sampled: the same seed takes the same rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the certificate as one JSON object to stdout.")
def verify_command(out_h5: Path, rows: int, seed: int, as_json: bool) -> int:
    """Check OUT.h5, which `ringmpi run` wrote, against its input: a certificate, one line a check.

    Pairs are counted, hashes compared, and sampled rows recomputed in wider precision straight from the input file;
    of gradients, as many rows of queries and as many keys.
    Ends with 0 when every check passes, with 1 when one fails.

    \b
    Example:
      ringmpi verify out.h5 --rows 256
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.analysis.verify import verify_file

    certificate = verify_file(out_h5, rows=rows, seed=seed)
    if as_json:
        click.echo(json.dumps(certificate.as_dict(), allow_nan=False))
    else:
        for line in certificate.lines():
            click.echo(line)
    return 0 if certificate.passed else CHECK_FAILED
