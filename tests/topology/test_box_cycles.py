import itertools
from math import prod

import pytest

from ringmpi.topology.box_cycles import closed_walk

LARGEST = {1: 9, 2: 7, 3: 5, 4: 3}


def steps_of(walk, shape, wrap):
    """Links of each step, by the shorter way round where a dimension is wrapped."""
    apart = [[abs(x - y) for x, y in zip(a, b, strict=True)] for a, b in zip(walk, [*walk[1:], walk[0]], strict=True)]
    rounds = [size if wraps else 2 * size for size, wraps in zip(shape, wrap, strict=True)]
    return [sum(min(d, size - d) for d, size in zip(each, rounds, strict=True)) for each in apart]


def best_steps(shape, wrap):
    """Hops and longest step of the best closed walk."""
    count = prod(shape)
    long = [size for size in shape if size > 1]
    cyclic = any(size > 2 and wraps for size, wraps in zip(shape, wrap, strict=True))
    if count < 3 or cyclic or (len(long) > 1 and count % 2 == 0):
        return (count, 1) if count > 1 else (0, 0)
    return (2 * (count - 1), 2) if len(long) == 1 else (count + 1, 2)


@pytest.mark.parametrize("dimensions", LARGEST)
def test_every_box_and_torus_has_the_best_closed_walk(dimensions):
    for shape in itertools.product(range(1, LARGEST[dimensions] + 1), repeat=dimensions):
        for wrap in itertools.product((False, True), repeat=dimensions):
            walk = closed_walk(shape, wrap)
            steps = steps_of(walk, shape, wrap)
            assert sorted(walk) == list(itertools.product(*map(range, shape)))
            assert (sum(steps), max(steps)) == best_steps(shape, wrap), (shape, wrap)


@pytest.mark.parametrize("shape", list(itertools.product((3, 5, 7), repeat=3)))
def test_tori_of_odd_sizes_are_walked_link_by_link(shape):
    walk = closed_walk(shape, (True, True, True))
    assert len(set(walk)) == prod(shape)
    assert set(steps_of(walk, shape, (True, True, True))) == {1}
