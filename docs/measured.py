"""The figures of performance.md: the benchmarks that make them, and the tables that show them.

    python -m docs.measured [NAME ...] [--rounds N] [--peer-python PEER=PATH ...]

runs the benchmarks (all, or those named; best on a machine that does nothing else), writes docs/benchmarks/NAME.json
and then the tables.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from docs.markdown import table
from ringmpi.bench.report import Report, read_report

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
COMMANDS = {
    "kernel": "kernel --shapes 8x4096x64,4x8192x128,8/2x4096x64 --threads 1,2 --contenders native,torch",
    "kernel-peers": "kernel --shapes 8x4096x64",
    "kernel-long": "kernel --shapes 1x32768x64 --mask causal --contenders native,torch",
    "kernel-backward": "kernel --shapes 8x4096x64,2x4096x128 --threads 1,2 --backward --contenders native,torch",
    "kernel-masks": "kernel --shapes 8x16384x64 --mask causal,window:511,documents:64 --contenders native",
    "kernel-storage": "kernel --shapes 8x4096x64 --dtype bfloat16 --backward --contenders native,torch",
    "hop": "hop",
    "ring": "ring --shapes 8x8192x64 --ranks 1,2 --peer torch",
    "ring-threads": "ring --shapes 8x8192x64 --ranks 2 --peer native --no-plan",
    "ring-grouped": "ring --shapes 8x4096x64,9/3x4096x64 --mask causal --peer torch",
    "ring-weak": "ring --shapes 8x2048x64 --scaling weak --forward",
    "io": "io",
    "exactness": "exactness",
}
WITHOUT_ROUNDS = ("exactness",)


def measured(name: str) -> str:
    """What docs/benchmarks/NAME.json says: command, machine, table."""
    path = FOLDER / f"{name}.json"
    command = f"`ringmpi bench {COMMANDS[name]}`"
    if not path.exists():
        return f"{command}: not measured yet."
    report = read_report(path)
    shown = _verdicts(report) if report.verdicts() else _figures(report)
    absent = "".join(f"\n\nNot measured: {peer}: {reason}" for peer, reason in report.absent.items())
    shared = "".join(f", {key} {value}" for key, value in report.shared().items())
    return f"{command}{shared}\n\n{_machine(report)}\n\n{shown}{absent}"


def _figures(report: Report) -> str:
    subjects, figures = report.subjects(), report.figures()
    rows = [
        [*(row.subject.get(name, "") for name in subjects), *(str(row.figures.get(name, "-")) for name in figures)]
        for row in report.rows
        if row.figures
    ]
    return table([*subjects, *figures], rows, right=range(len(subjects), len(subjects) + len(figures)))


def _verdicts(report: Report) -> str:
    names = list(dict.fromkeys(row.subject["contender"] for row in report.rows))
    rows = [
        [case, *(found.get(name, "-") for name in names), report.terms[case]]
        for case, found in report.verdicts().items()
    ]
    return table(["case", *names, "what is hard"], rows)


def _machine(report: Report) -> str:
    contenders = report.settings.get("contenders", {})
    versions = {name: about for name, about in contenders.items() if about}
    said = "; ".join(f"{name}: {', '.join(f'{k} {v}' for k, v in about.items())}" for name, about in versions.items())
    rounds = report.settings.get("rounds")
    return (
        f"{report.measured[:10]}, ringmpi {report.ringmpi}, {report.where()}"
        f"{f', {rounds} rounds' if rounds else ''}{f' ({said})' if said else ''}."
    )


def commands() -> str:
    """All benchmarks of the page."""
    return table(("name", "command"), ((f"`{name}`", f"`ringmpi bench {words}`") for name, words in COMMANDS.items()))


TABLES = {"benchmarks": commands} | {f"measured-{name}": lambda name=name: measured(name) for name in COMMANDS}


def main() -> None:
    """Measure, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *COMMANDS], metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--peer-python", action="append", default=[], metavar="PEER=PATH")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in asked.names or COMMANDS:
        words = [*COMMANDS[name].split(), "--json", str(FOLDER / f"{name}.json")]
        if asked.rounds and name not in WITHOUT_ROUNDS:
            words += ["--rounds", str(asked.rounds)]
        if words[0] in ("kernel", "ring", "exactness"):
            words += [word for peer in asked.peer_python for word in ("--peer-python", peer)]
        subprocess.run([sys.executable, "-m", "ringmpi", "bench", *words], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "docs.tables"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
