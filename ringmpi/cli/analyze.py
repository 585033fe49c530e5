"""`ringmpi analyze`: a report on an output, to be read in a browser. Needs no MPI."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ringmpi.cli.streams import shown
from ringmpi.errors import CHECK_FAILED


@click.command("analyze", short_help="Write a report on the output of a run: a page, figures, tables.")
@click.argument("out_h5", type=click.Path(path_type=Path))
@click.argument("more_h5", type=click.Path(path_type=Path), nargs=-1, metavar="[MORE_H5]...")
@click.option(
    "-o",
    "--output",
    "directory",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Where to write it; created if missing. Files of an earlier report there are removed.",
)
@click.option(
    "--verify",
    "rows",
    type=click.IntRange(min=0),
    metavar="N",
    help="Verify OUT_H5 too, with N rows recomputed: the report then holds the certificate. Default: not verified.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the paths as one JSON object to stdout.")
def analyze_command(out_h5: Path, more_h5: tuple[Path, ...], directory: Path, rows: int | None, as_json: bool) -> int:
    """Write a report on OUT_H5, which `ringmpi run` wrote, into DIR.

    DIR/report.html is one page that opens from disk, without a network: the run, its exactness, what it attended to
    (where [record] was asked for), and what its ranks did. Its figures are beside it as SVG and PNG, its tables as CSV.
    With MORE_H5 all outputs are compared, and how the time scales with the ranks.
    Ends with 0; with 1 when --verify was given and a check fails.

    \b
    Example:
      ringmpi analyze out.h5 -o report
      ringmpi analyze out.h5 -o report --verify 64
      ringmpi analyze on1.h5 on2.h5 on4.h5 -o scaling
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.report.writing import write_report

    written = write_report([out_h5, *more_h5], directory, rows=rows)
    certificate = written.certificate
    with shown(written.page):
        if as_json:
            beside = [str(path) for path in written.beside]
            verified = None if certificate is None else certificate.passed
            answer = {
                "report": str(written.page),
                "files": beside,
                "missing": list(written.missing),
                "verified": verified,
            }
            click.echo(json.dumps(answer, allow_nan=False))
        else:
            for line in written.missing:
                click.echo(f"not in it: {line}")
            if certificate is not None:
                click.echo(certificate.lines()[-1])
            click.echo(f"{written.page} ({len(written.beside)} figures and tables beside it)")
    return 0 if certificate is None or certificate.passed else CHECK_FAILED
