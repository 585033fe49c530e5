"""`ringmpi bench ring`: one problem on several numbers of ranks, beside the plan and beside a peer in one process.

A round starts a job for each number of ranks, one after the other, and then has the peer do the same: rounds are
interleaved although no two of them share the cores. In each job, and each time for the peer, a first pass warms up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

from ringmpi.bench.child import Child, NoAnswerError
from ringmpi.bench.job import Found, in_a_job, in_this_job
from ringmpi.bench.questions import Case
from ringmpi.bench.ring_ranks import on_ranks
from ringmpi.process.cores import own_cores

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward + backward"
Samples = dict[str, list[float]]  # by meter, a value a round


@dataclass(frozen=True)
class Wanted:
    """What is to be measured.

    cases     as they are on the most ranks
    ranks     counts, ascending
    threads   per rank
    scaling   "strong": the same case on all counts; "weak": as long as there are ranks
    peer      a name of peers.PEERS, or None
    pythons   name of a peer -> path of the Python that has it
    """

    cases: Sequence[Case]
    ranks: Sequence[int]
    threads: int = 1
    rounds: int = 9
    scaling: str = "strong"
    backward: bool = True
    sharding: str = "zigzag"
    backend: str = "auto"
    peer: str | None = None
    pythons: dict[str, str] = field(default_factory=dict)

    def cases_on(self, ranks: int) -> list[Case]:
        """The cases, as long as they are on so many ranks."""
        if self.scaling == "strong":
            return list(self.cases)
        return [replace(case, length=max(1, case.length * ranks // max(self.ranks))) for case in self.cases]

    def settings(self, ranks: int, rounds: int) -> Found:
        """What ring_ranks.py is told."""
        return {
            "cases": [asdict(case) for case in self.cases_on(ranks)],
            "rounds": rounds,
            "backward": self.backward,
            "sharding": self.sharding,
            "backend": self.backend,
        }

    def peer_threads(self, ranks: int) -> int:
        """Of the peer that stands beside so many ranks: as many as all of them, but not more than cores."""
        return min(ranks * self.threads, len(own_cores()))


@dataclass
class Measured:
    """Samples of all rounds.

    ranks      (ranks, number of the case, pass) -> Samples with "wall", "cpu", "waited", "bytes"
    peer       (threads, number of the case, pass) -> Samples with "wall", "cpu"
    bandwidth  (ranks, number of the case) -> bytes per second of a hop alone; none on one rank
    absent     peers that are not here, and why; with what they cannot do
    about      of the peer and of the job
    """

    ranks: dict[tuple[int, int, str], Samples] = field(default_factory=lambda: defaultdict(_no_samples))
    peer: dict[tuple[int, int, str], Samples] = field(default_factory=lambda: defaultdict(_no_samples))
    bandwidth: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    absent: dict[str, str] = field(default_factory=dict)
    about: Found = field(default_factory=dict)

    def add_job(self, ranks: int, found: Found) -> None:
        """What ring_ranks.py has found."""
        self.about = found["job"]
        for nth, passes in enumerate(found["cases"]):
            for name, samples in passes.items():
                _extend(self.ranks[ranks, nth, name], samples)
            if found["bandwidth"][nth] is not None:
                self.bandwidth[ranks, nth].append(found["bandwidth"][nth])

    def add_both(self) -> None:
        """The forward and the backward pass together, where there are both."""
        for table in (self.ranks, self.peer):
            for key, nth, name in list(table):
                if name == BACKWARD:
                    first, second = table[key, nth, FORWARD], table[key, nth, BACKWARD]
                    table[key, nth, BOTH] = {
                        meter: [a + b for a, b in zip(first[meter], second[meter], strict=True)] for meter in first
                    }


def measure_jobs(wanted: Wanted) -> Measured:
    """Measure in jobs that are started for it, and the peer beside them."""
    measured = Measured()
    with ExitStack() as stack:
        peers = _start_peers(wanted, stack, measured)
        for _ in range(wanted.rounds):
            for ranks in wanted.ranks:
                settings = wanted.settings(ranks, 1)
                measured.add_job(ranks, in_a_job("ringmpi.bench.ring_ranks", ranks, wanted.threads, settings))
            for peer in peers:
                _time_peer(wanted, peer, measured)
    measured.add_both()
    return measured


def measure_here(wanted: Wanted) -> tuple[Wanted, Measured]:
    """Measure on the ranks of this job, which are then what is wanted; samples on rank 0 alone. Collective."""
    found, measured = in_this_job(on_ranks, wanted.settings(max(wanted.ranks), wanted.rounds)), Measured()
    if found is None:
        return wanted, measured
    ranks = found["job"]["ranks"]
    measured.add_job(ranks, found)
    measured.add_both()
    return replace(wanted, ranks=[ranks], threads=found["job"]["threads a rank"], peer=None), measured


def _start_peers(wanted: Wanted, stack: ExitStack, measured: Measured) -> list[Child]:
    """The peer, once for each number of threads."""
    if wanted.peer is None:
        return []
    try:
        python = wanted.pythons.get(wanted.peer)
        counts = sorted({wanted.peer_threads(ranks) for ranks in wanted.ranks})
        peers = [stack.enter_context(Child(wanted.peer, threads, python)) for threads in counts]
        for peer in peers:
            peer.prepare(replace(wanted.cases[0], length=1))
        return peers
    except NoAnswerError as reason:
        measured.absent[wanted.peer] = str(reason)
        return []


def _time_peer(wanted: Wanted, peer: Child, measured: Measured) -> None:
    """One round of all cases. Weak scaling has the peer at the length that its threads stand beside."""
    ranks = max(ranks for ranks in wanted.ranks if wanted.peer_threads(ranks) == peer.threads)
    for nth, case in enumerate(wanted.cases_on(ranks)):
        for name in (FORWARD, BACKWARD) if wanted.backward else (FORWARD,):
            try:
                peer.prepare(replace(case, backward=name == BACKWARD))
            except NoAnswerError as reason:
                measured.absent[f"{peer.contender}, {case.shape} {case.mask} {name}"] = str(reason)
                continue
            peer.run()
            wall, cpu = peer.run()
            _extend(measured.peer[peer.threads, nth, name], {"wall": [wall], "cpu": [cpu]})


def _no_samples() -> Samples:
    return defaultdict(list)


def _extend(samples: Samples, more: Samples) -> None:
    for meter, values in more.items():
        samples[meter] += values
