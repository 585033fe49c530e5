"""The figures of performance.md and of a page for each machine: what measures them, and the tables that show them.

    python -m docs.measured MACHINE [NAME ...] [--rounds N] [--peer-python PEER=PATH ...]

runs the benchmarks (all, or those named; best on a machine that does nothing else), writes
docs/benchmarks/MACHINE/NAME.json and then the tables.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from docs.markdown import table
from docs.measured_benchmarks import BENCHMARKS
from ringmpi.bench.report import Report, read_report

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
MACHINES = ("amd-epyc", "intel-xeon")
WITHOUT_ROUNDS = ("exactness",)


def reported(machine: str, name: str) -> Report | None:
    """docs/benchmarks/MACHINE/NAME.json; None if it was not measured there."""
    path = FOLDER / machine / f"{name}.json"
    return read_report(path) if path.exists() else None


def page(machine: str) -> str:
    """All that was measured on a machine but exactness, which machines have in common."""
    return "\n\n".join(_section(machine, name) for name in BENCHMARKS if name != "exactness")


def _section(machine: str, name: str) -> str:
    benchmark = BENCHMARKS[name]
    title = f"## {benchmark.title}\n\n" if benchmark.title else ""
    return f"{title}{benchmark.about}\n\n{measured(machine, name)}"


def measured(machine: str, name: str) -> str:
    """What was found: command, machine, table."""
    command = f"`ringmpi bench {BENCHMARKS[name].command}`"
    report = reported(machine, name)
    if report is None:
        return f"{command}: not measured on this machine."
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
    """All benchmarks of the pages."""
    rows = ((f"`{name}`", f"`ringmpi bench {benchmark.command}`") for name, benchmark in BENCHMARKS.items())
    return table(("name", "command"), rows)


TABLES = {
    "benchmarks": commands,
    "measured-exactness": lambda: measured("intel-xeon", "exactness"),
} | {f"measured-{machine}": lambda machine=machine: page(machine) for machine in MACHINES}


def main() -> None:
    """Measure, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", choices=MACHINES)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--peer-python", action="append", default=[], metavar="PEER=PATH")
    asked = parser.parse_args()
    folder = FOLDER / asked.machine
    folder.mkdir(parents=True, exist_ok=True)
    for name in asked.names or BENCHMARKS:
        words = [*BENCHMARKS[name].command.split(), "--json", str(folder / f"{name}.json")]
        if asked.rounds and name not in WITHOUT_ROUNDS:
            words += ["--rounds", str(asked.rounds)]
        if words[0] in ("kernel", "ring", "exactness"):
            words += [word for peer in asked.peer_python for word in ("--peer-python", peer)]
        subprocess.run([sys.executable, "-m", "ringmpi", "bench", *words], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "docs.tables"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
