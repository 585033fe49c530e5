"""`ringmpi verify`: count, recompute, say what was found. Needs no MPI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringmpi.cli.streams import shown
from ringmpi.errors import CHECK_FAILED

if TYPE_CHECKING:
    from ringmpi.analysis.certificate import Certificate

ROWS = "64"


def _check_rows(_context: click.Context, _parameter: click.Parameter, value: str) -> int | None:
    """A whole number >= 0, or the word "all", which becomes None."""
    if value == "all":
        return None
    if value.isascii() and value.isdecimal():
        return int(value)
    raise click.BadParameter(f"{value!r}; it must be a whole number >= 0, or all.")


@click.command("verify", short_help="Check the output of a run: a certificate.")
@click.argument("out_h5", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--rows",
    default=ROWS,
    show_default=True,
    callback=_check_rows,
    metavar="N|all",
    help="Rows (query positions) to recompute in all heads, spread over all ranks and positions. 0: none.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="S",
    help="Which rows are sampled: the same seed takes the same rows.",
)
@click.option(
    "--input",
    "input_path",
    type=click.Path(path_type=Path, readable=False),
    metavar="PATH",
    help="Where the input of the run is now. Default: where the run read it.",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, readable=False),
    metavar="CERT.json",
    help="Write the findings to a file with which others can repeat the check. Reads the whole input.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, readable=False),
    metavar="CERT.json",
    help="Repeat the check of a certificate, on the rows that it names.",
)
@click.option("--force", is_flag=True, help="Overwrite a certificate that exists. Default: refuse.")
@click.option("--json", "as_json", is_flag=True, help="Write all checks as one JSON object to stdout.")
@click.pass_context
def verify_command(context: click.Context, /, out_h5: Path, as_json: bool, **options: Any) -> int:
    """Check OUT.h5, which `ringmpi run` wrote, against its input: a certificate, one line per check.

    Pairs are counted, hashes compared, and sampled rows recomputed in wider precision straight from the input file;
    of gradients, as many rows of queries and as many keys.
    Ends with 0 when every check passes, with 1 when one fails.

    \b
    Example:
      ringmpi verify out.h5 --rows 256
      ringmpi verify out.h5 --rows all --certificate cert.json
      ringmpi verify out.h5 --against cert.json --input copy-of-in.h5
    """  # noqa: D301 - click wants the character \b itself
    _refuse_what_excludes(context, options)
    certificate = _verified(out_h5, options)
    with shown(options["certificate"] or ""):
        if as_json:
            click.echo(json.dumps(certificate.as_dict(), allow_nan=False))
        else:
            for line in certificate.lines():
                click.echo(line)
    return 0 if certificate.passed else CHECK_FAILED


def _refuse_what_excludes(context: click.Context, options: dict[str, Any]) -> None:
    """A certificate names its rows; and one command writes one, or checks one."""
    given = click.core.ParameterSource.COMMANDLINE
    for name in ("rows", "seed", "certificate") if options["against"] else ():
        if context.get_parameter_source(name) is given:
            raise click.UsageError(f"--against checks the rows that a certificate names; leave out --{name}.")
    if options["force"] and not options["certificate"]:
        raise click.UsageError("--force is for --certificate: nothing else is written.")


def _verified(out_h5: Path, options: dict[str, Any]) -> Certificate:
    if options["against"]:
        from ringmpi.analysis.certify import verify_against

        return verify_against(out_h5, options["against"], input_path=options["input_path"])
    choice = {"rows": options["rows"], "seed": options["seed"], "input_path": options["input_path"]}
    if not options["certificate"]:
        from ringmpi.analysis.verify import verify_file

        return verify_file(out_h5, **choice)
    from ringmpi.analysis.certify import certify_file
    from ringmpi.analysis.evidence import check_free, write_evidence
    from ringmpi.storage.lock import only_run

    with only_run(options["certificate"]):
        check_free(options["certificate"], force=options["force"])
        certificate, evidence = certify_file(out_h5, **choice)
        write_evidence(options["certificate"], evidence)
    return certificate
