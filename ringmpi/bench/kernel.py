"""`ringmpi bench kernel`: attention on one process, beside its peers and what the processor can do at all.

Work is 4 heads pairs head_dim flops, with the pairs that the mask allows, and 2.5 times that for a backward pass alone.
What counts is CPU time (waiting for a core that others use does not count), and ratios that are formed round by round.
Contenders on a GPU have their arrays there; what counts is wall time, from an idle GPU until it is idle again. They
stand beside each other, and beside nothing that a processor can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ringmpi.bench.child import Child, NoAnswerError
from ringmpi.bench.figures import Figure, figure, rate, ratio
from ringmpi.bench.machine import machine
from ringmpi.bench.peers import CEILINGS, ON_GPU, OWN
from ringmpi.bench.peers.own import pairs_of
from ringmpi.bench.questions import Case
from ringmpi.bench.report import Report, Row

SHORTEST_SECONDS = 0.02  # shorter runs are repeated inside a sample
NOTES = {
    "sgemm": "NumPy's float32 matrix product, 2048 x 2048 x 2048",
    "fma": "from registers, by the native library",
    "exp": "NumPy, elements in place of flops",
    "exp2": "the native library's, elements in place of flops",
}
TERMS = {
    "GF/s": "flops over CPU seconds of all threads: what one busy core reaches",
    "wall": "seconds of a run",
    "of sgemm": "GF/s over those of NumPy's float32 matrix product, 2048 x 2048 x 2048",
    "of FMA": "GF/s over those of fused multiply-adds from registers",
    "CPU ratio": "CPU seconds over those of ringmpi's first backend in the same round: above 1, ringmpi is faster",
    "TF/s": "on a GPU: flops over wall seconds, its arrays there, from an idle GPU until it is idle again",
    "wall ratio": "the same of wall seconds; on a GPU over those of ringmpi there",
}


@dataclass
class Timed:
    """A contender at a case: seconds of each round, or why there are none."""

    child: Child | None
    amount: float
    note: str = ""
    times: int = 1
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """One round. A contender that fails in one has no figures."""
        if self.child is None:
            return
        try:
            wall, cpu = self.child.run(self.times)
        except NoAnswerError as reason:
            self.child, self.note, self.wall, self.cpu = None, f"failed: {reason}", [], []
            return
        self.wall.append(wall)
        self.cpu.append(cpu)

    def warm_up(self) -> None:
        """Run once, and find how often a sample has to run."""
        if self.child is not None:
            wall, _ = self.child.run()
            self.times = max(1, int(SHORTEST_SECONDS / max(wall, 1e-6)))


def bench_kernel(
    cases: Sequence[Case],
    threads: Sequence[int],
    contenders: Sequence[str],
    *,
    rounds: int,
    pythons: dict[str, str],
) -> Report:
    """Time the cases.

    Parameters
    ----------
    cases : sequence of Case
    threads : sequence of int
        Each contender is started again for each of these; those on a GPU once.
    contenders : sequence of str
        Of peers.OWN and peers.PEERS; beside those on processors the ceilings come along.
    rounds : int
    pythons : dict
        Name of a peer -> path of the Python that has it.
    """
    facts, rows = machine(), list[Row]()
    absent, about = dict[str, str](), dict[str, Any]()
    for count in threads:
        with ExitStack() as stack:
            children = {}
            for name in _taking_part(contenders, first=count == threads[0]):
                try:
                    children[name] = stack.enter_context(Child(name, count, pythons.get(name)))
                except NoAnswerError as reason:
                    absent[name] = str(reason)
            for case in cases:
                timed = _measured(children, case, rounds, absent)
                rows += _rows(timed, case, count)
            about |= {name: child.about for name, child in children.items() if child.about}
    return Report(
        bench="kernel",
        main="TF/s" if set(contenders) <= set(ON_GPU) else "GF/s",
        settings={"rounds": rounds, "contenders": about},
        terms=TERMS,
        machine=facts,
        rows=rows,
        absent=absent,
    )


def _taking_part(contenders: Sequence[str], *, first: bool) -> list[str]:
    """At a number of threads. `first`: it is the first one."""
    on_processors = [name for name in contenders if name not in ON_GPU]
    on_gpu = [name for name in contenders if name in ON_GPU and first]
    return [*on_gpu, *on_processors, *(CEILINGS if on_processors else ())]


def _measured(children: dict[str, Child], case: Case, rounds: int, absent: dict[str, str]) -> dict[str, Timed]:
    """All contenders at a case; those that are found missing are put into `absent`."""
    timed = {}
    for name in [name for name in children if name not in absent]:
        try:
            amount = children[name].prepare(case) or case.flops(pairs_of(case))
            timed[name] = Timed(children[name], amount)
            timed[name].warm_up()
        except NoAnswerError as reason:
            timed[name] = Timed(None, 0, str(reason))
            if reason.kind == "absent" or name in CEILINGS:
                absent[name] = timed.pop(name).note
    for nth in range(rounds):
        names = list(timed)
        for name in names[nth % len(names) :] + names[: nth % len(names)]:  # nobody always runs after the same one
            timed[name].sample()
    return timed


def _rows(timed: dict[str, Timed], case: Case, threads: int) -> Iterator[Row]:
    subject = {
        "shape": case.shape,
        "mask": case.mask,
        "dtype": case.dtype,
        "pass": "backward" if case.backward else "forward",
        "threads": str(threads),
    }
    firsts = {on_gpu: _first_own(timed, on_gpu=on_gpu) for on_gpu in (False, True)}
    ceilings = {name: _rate(timed[name], name) for name in CEILINGS if name in timed and timed[name].wall}
    for name, one in timed.items():
        on_gpu = name in ON_GPU
        figures = {}
        if one.wall:
            figures = _gpu_figures(one, firsts[True]) if on_gpu else _figures(name, one, ceilings, firsts[False])
        where = {"threads": "GPU"} if on_gpu else {}
        note = one.note or NOTES.get(name, "")
        yield Row(subject=subject | where | {"contender": _label(name)}, figures=figures, note=note)


def _first_own(timed: dict[str, Timed], *, on_gpu: bool) -> Timed | None:
    """The first backend of ringmpi there."""
    return next(
        (timed[name] for name in OWN if name in timed and timed[name].wall and (name in ON_GPU) is on_gpu), None
    )


def _label(name: str) -> str:
    return f"ringmpi {name}" if name in OWN else name


def _rate(one: Timed, name: str) -> Figure:
    return rate(one.amount / 1e9, figure("s", one.cpu), "Gelem/s" if name.startswith("exp") else "GF/s")


def _figures(name: str, one: Timed, ceilings: dict[str, Figure], first: Timed | None) -> dict[str, Figure]:
    """By the names in TERMS."""
    found = {"GF/s": _rate(one, name), "wall": figure("s", one.wall)}
    if name not in CEILINGS:
        shares = {"of sgemm": "sgemm", "of FMA": "fma"}
        found |= {word: ratio(found["GF/s"], ceilings[top]) for word, top in shares.items() if top in ceilings}
        if first is not None and one is not first:
            found["CPU ratio"] = ratio(figure("s", one.cpu), figure("s", first.cpu))
            found["wall ratio"] = ratio(found["wall"], figure("s", first.wall))
    return found


def _gpu_figures(one: Timed, first: Timed | None) -> dict[str, Figure]:
    """The same of a contender on a GPU: what the processor does, or could do, is no measure of it."""
    wall = figure("s", one.wall)
    found = {"TF/s": rate(one.amount / 1e12, wall, "TF/s"), "wall": wall}
    if first is not None and one is not first:
        found["wall ratio"] = ratio(wall, figure("s", first.wall))
    return found
