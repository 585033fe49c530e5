"""Machines for the tests of placement, and rings that are best by trying all of them."""

import itertools
import math
from collections import Counter
from itertools import pairwise
from random import Random

from ringmpi.topology.cost import Cost
from ringmpi.topology.graph import Graph, Grid, Link, bundled

RATES = (1.0, 1.0, 2.0, 4.0)


def linked(pairs, *, hosts, switches=(), kind="fabric"):
    """A machine of plain cables, or of (a, b, rate) where rates differ."""
    return Graph(
        kind,
        hosts=tuple(hosts),
        switches=tuple(switches),
        links=bundled(Link(tuple(pair[:2]), *pair[2:]) for pair in pairs),
    )


def random_tree(random: Random, count: int) -> Graph:
    """Switches of any depth, a host on any of them, cables of three rates."""
    switches = [f"s{n}" for n in range(random.randint(1, 6))]
    hosts = [f"h{n}" for n in range(count)]
    pairs = [(switches[random.randrange(n)], switches[n], random.choice(RATES)) for n in range(1, len(switches))]
    pairs += [(host, random.choice(switches), random.choice(RATES)) for host in hosts]
    return linked(pairs, hosts=hosts, switches=switches, kind="tree")


def stretched_tree(random: Random, count: int) -> Graph:
    """Fourteen switches, nearly in a line, with hosts here and there."""
    switches = [f"s{n}" for n in range(14)]
    hosts = [f"h{n}" for n in range(count)]
    pairs = [(switches[max(0, n - random.randint(1, 3))], switches[n]) for n in range(1, 14)]
    pairs += [(host, random.choice(switches)) for host in hosts]
    return linked(pairs, hosts=hosts, switches=switches, kind="tree")


def random_fabric(random: Random, count: int) -> Graph:
    """A connected network with ways round; hosts on one or two switches, or linked to each other."""
    hosts = [f"h{n}" for n in range(count)]
    core = [f"s{n}" for n in range(random.randint(1, 6))] if random.random() < 0.6 else hosts
    pairs = [(core[random.randrange(n)], core[n]) for n in range(1, len(core))]
    pairs += [tuple(random.sample(core, 2)) for _ in range(random.randint(0, 5)) if len(core) > 1]
    if core is not hosts:
        pairs += [(host, switch) for host in hosts for switch in random.choices(core, k=random.choice((1, 1, 2)))]
    return linked(pairs, hosts=hosts, switches=core if core is not hosts else ())


def grid_machine(shape, wrap, *, hosts_a_place=0) -> Graph:
    """A torus or mesh of hosts, or of switches with hosts on them; without links where hosts have the coordinates."""
    places = list(itertools.product(*map(range, shape)))
    names = [f"{'s' if hosts_a_place else 'n'}{n}" for n in range(len(places))]
    grid = Grid("grid", tuple(shape), tuple(wrap), dict(zip(names, places, strict=True)))
    if not hosts_a_place:
        return Graph("torus", hosts=tuple(names), grids=(grid,))
    hosts = [f"h{n}" for n in range(len(names) * hosts_a_place)]
    pairs = [(host, names[n // hosts_a_place]) for n, host in enumerate(hosts)]
    at = dict(zip(places, names, strict=True))
    for place in places:
        for axis, size in enumerate(shape):
            up = (*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])
            if up > place or (wrap[axis] and size > 2):
                pairs.append((at[place], at[up]))
    machine = linked(pairs, hosts=hosts, switches=names, kind="torus")
    return Graph("torus", hosts=machine.hosts, switches=machine.switches, links=machine.links, grids=(grid,))


def fat_tree(leaves: int, hosts_a_leaf: int, spines: int) -> Graph:
    """Two levels of switches, every leaf linked to every spine."""
    hosts = [f"h{n}" for n in range(leaves * hosts_a_leaf)]
    pairs = [(host, f"leaf{n // hosts_a_leaf}") for n, host in enumerate(hosts)]
    pairs += [(f"leaf{leaf}", f"spine{spine}") for leaf in range(leaves) for spine in range(spines)]
    switches = [f"leaf{n}" for n in range(leaves)] + [f"spine{n}" for n in range(spines)]
    return linked(pairs, hosts=hosts, switches=switches)


def cost_of(routes, ring) -> Cost:
    """The cost of a ring by its definition."""
    return cost_over([routes.links(a, b) for a, b in pairwise((*ring, ring[0]))], routes.slowness)


def cost_over(ways, slowness) -> Cost:
    passed = [cable for way in ways for cable in way]
    congestion = max((count * slowness[cable] for cable, count in Counter(passed).items()), default=0.0)
    return Cost(congestion, max(map(len, ways)), len(passed))


def best_of_all(routes) -> Cost:
    """The least cost over all rings, both directions counted."""
    every = range(len(routes.hosts))
    ways = [[routes.links(a, b) for b in every] for a in every]
    rings = ((0, *ring, 0) for ring in itertools.permutations(every[1:]))
    return min(cost_over([ways[a][b] for a, b in pairwise(ring)], routes.slowness) for ring in rings)


def least_hops_and_dilation(table) -> tuple[int, int]:
    """The least sum and the least longest edge of rings, by dynamic programming over sets (Held and Karp 1962)."""
    count = len(table)
    sums = {(1, 0): 0}
    longest = {(1, 0): 0}
    for size in range(1, count):
        for chosen in itertools.combinations(range(1, count), size):
            members = 1 | sum(1 << city for city in chosen)
            for last in chosen:
                before = members & ~(1 << last)
                starts = [c for c in (0, *chosen) if (before, c) in sums and c != last]
                sums[members, last] = min(sums[before, c] + table[c][last] for c in starts)
                longest[members, last] = min(max(longest[before, c], table[c][last]) for c in starts)
    everyone = (1 << count) - 1
    ends = range(1, count)
    return (
        min(sums[everyone, c] + table[c][0] for c in ends),
        min(max(longest[everyone, c], table[c][0]) for c in ends),
    )


def distances_over_links(graph: Graph, hosts) -> list[list[int]]:
    """Links between hosts, by a search from each; hosts that hang on switches forward nothing."""
    everyone = set(graph.hosts)
    forwards = {v for v in graph.neighbours if v not in everyone or not everyone.isdisjoint(graph.neighbours[v])}

    def search(start):
        found, waiting = {start: 0}, [start]
        for vertex in waiting:
            for other in graph.neighbours[vertex] if vertex == start or vertex in forwards else ():
                if other not in found:
                    found[other] = found[vertex] + 1
                    waiting.append(other)
        return found

    return [[search(a).get(b, math.inf) for b in hosts] for a in hosts]
