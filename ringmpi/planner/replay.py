"""A pass for SimGrid's `smpirun -replay`: the machine, where each rank is, and what each does in every ring step.

The same counts, routes and rates as in the prediction go in; SimGrid shares every cable fairly among the messages that
pass it at a time, and lets each start when both ends have come to it. Source: Casanova et al., Journal of Parallel and
Distributed Computing 74 (2014); the formats are those of SimGrid 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ringmpi.core.problem import Problem
from ringmpi.planner.balance import PassTables
from ringmpi.planner.network import Ints, Network
from ringmpi.planner.roofline import arriving_by_step, flops_a_pair, senders

PLATFORM, HOSTS, TRACE = "platform.xml", "hosts", "trace"
HEAVY = 1e9  # `network/weight-S`, against which latency does not count
HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="machine" routing="Full">
"""
TAIL = "</zone></platform>\n"


@dataclass(frozen=True)
class Message:
    """What comes to a rank: from whom, how much, when it leaves and before which step it must have landed."""

    source: int
    target: int
    nbytes: int
    sent_at: int
    due: int
    tag: int


def first_steps(tables: PassTables, steps: int) -> PassTables:
    """The same pass, ended after so many ring steps."""
    back = None if tables.bytes_back is None else tables.bytes_back[:, :steps]
    return replace(
        tables,
        pairs=tables.pairs[:, :steps],
        bytes_due=tables.bytes_due[:, :steps],
        pieces_due=tables.pieces_due[:steps],
        bytes_back=back,
    )


def write_trace(folder: Path, problem: Problem, tables: PassTables) -> Path:
    """Write what each rank does, one file per rank, and the list of these files, whose path is returned.

    The order of the ranks on the machine does not change it. The list is for a program that starts in a folder below.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[list[str]] = [[f"{rank} init"] for rank in range(problem.size)]
    leaving: dict[int, list[Message]] = {}
    due: dict[int, list[Message]] = {}
    for message in _messages(problem, tables):
        leaving.setdefault(message.sent_at, []).append(message)
        due.setdefault(message.due, []).append(message)
    flops = tables.pairs * flops_a_pair(problem.heads)
    for step in range(tables.steps):
        for each in leaving.get(step, ()):
            lines[each.target].append(f"{each.target} irecv {each.source} {each.tag} {each.nbytes} 6")
            lines[each.source].append(f"{each.source} isend {each.target} {each.tag} {each.nbytes} 6")
        for rank in np.flatnonzero(flops[:, step]).tolist():
            lines[rank].append(f"{rank} compute {flops[rank, step]}")
        for each in due.get(step + 1, ()):
            lines[each.target].append(f"{each.target} wait {each.source} {each.target} {each.tag}")
            lines[each.source].append(f"{each.source} wait {each.source} {each.target} {each.tag}")
    names = [f"rank{rank}.txt" for rank in range(problem.size)]
    for rank, name in enumerate(names):
        (folder / name).write_text("\n".join([*lines[rank], f"{rank} finalize", ""]), encoding="ascii")
    (folder / TRACE).write_text("".join(f"../{name}\n" for name in names), encoding="ascii")
    return folder / TRACE


def _messages(problem: Problem, tables: PassTables) -> Iterator[Message]:
    directions = len(problem.schedule.directions)
    for due, _, arriving in arriving_by_step(tables, directions):
        sent_at, ways = senders(problem, due)
        for nth, ((source, target), nbytes) in enumerate(zip(ways, arriving, strict=True)):
            comes = np.flatnonzero(nbytes[target])
            for a, b, size in zip(
                source[comes].tolist(), target[comes].tolist(), nbytes[target][comes].tolist(), strict=True
            ):
                yield Message(a, b, size, sent_at, due, directions * due + nth)


def write_platform(folder: Path, problem: Problem, network: Network, ranks: tuple[int, ...]) -> None:
    """Write the machine with the routes that the ranks use in this order, and the host of each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    ring = network.launch[list(ranks)]
    (folder / HOSTS).write_text("".join(f"h{host}\n" for host in ring.tolist()), encoding="ascii")
    speed, cores = network.rates.flops, int(np.bincount(ring).max())
    pairs = _pairs(problem, ring)
    routes = [network.routes.links(a, b) for a, b in pairs]
    with (folder / PLATFORM).open("w", encoding="ascii") as file:
        file.write(HEAD)
        file.writelines(f'<host id="h{host}" speed="{speed!r}f" core="{cores}"/>\n' for host in np.unique(ring))
        file.writelines(_links(network, routes))
        for (a, b), links in zip(pairs, _even(network, routes), strict=True):
            passed = "".join(f'<link_ctn id="{link}"/>' for link in links)
            file.write(f'<route src="h{a}" dst="h{b}" symmetrical="NO">{passed}</route>\n')
        file.write(TAIL)


def _links(network: Network, routes: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """Every cable in each direction, what stands for the inside of hosts, and what makes routes equally heavy."""
    seconds = network.seconds_a_byte()
    for cable in sorted({cable for route in routes for cable in route}):
        yield _link(f"c{cable}", float(1 / seconds[cable]), network.latency)
    yield _link("inside", network.rates.bandwidth, network.latency, "FATPIPE")
    yield _link("even", network.fastest, 0.0, "FATPIPE")


def _link(name: str, bandwidth: float, latency: float, policy: str = "SHARED") -> str:
    return f'<link id="{name}" bandwidth="{bandwidth!r}Bps" latency="{latency!r}s" sharing_policy="{policy}"/>\n'


def _even(network: Network, routes: Sequence[tuple[int, ...]]) -> Iterator[list[str]]:
    """The links of each route, and behind them as many that all share, at no time, as make routes equally heavy.

    SimGrid gives long routes a smaller share of a cable, as TCP does. Fabrics with credits give equal ones. With a
    large `network/weight-S` the weight of a route is the sum of 1 / bandwidth over its links: these sums are made
    equal.
    """
    seconds = network.seconds_a_byte() * network.fastest
    weights = [float(seconds[list(one)].sum()) if one else network.fastest / network.rates.bandwidth for one in routes]
    for route, weight in zip(routes, weights, strict=True):
        yield [*([f"c{cable}" for cable in route] or ["inside"]), *["even"] * round(max(weights) - weight)]


def _pairs(problem: Problem, ring: Ints) -> list[tuple[int, int]]:
    """Between which hosts anything may travel, each pair once."""
    size, schedule = len(ring), problem.schedule
    apart = schedule.directions if schedule.hand_to_hand else range(1, size)
    found = {pair for step in apart for pair in zip(np.roll(ring, step).tolist(), ring.tolist(), strict=True)}
    return sorted(found)
