from random import Random

import numpy as np
import pytest

from ringmpi.topology.local_search import Tour
from ringmpi.topology.spanning_tree import clusters_bound, shortest_tree, walk_within_three
from tests.topology.machines import least_hops_and_dilation


def points(random, count):
    return [(random.randint(0, 6), random.randint(0, 6)) for _ in range(count)]


def table_between(places):
    return [[abs(a - c) + abs(b - d) for c, d in places] for a, b in places]


def tour_over(table, random):
    near = [sorted((c for c in range(len(table)) if c != a), key=row.__getitem__) for a, row in enumerate(table)]
    return Tour(random.sample(range(len(table)), len(table)), table, near)


@pytest.mark.parametrize("seed", range(40))
def test_a_move_shortens_the_tour_and_keeps_all_cities(seed):
    random = Random(seed)
    tour = tour_over(table_between(points(random, 12)), random)
    for _ in range(200):
        before = tour.length
        city = random.randrange(12)
        touched = tour._improve_at(city)
        assert (tour.length < before) == bool(touched)
        assert sorted(tour.order) == list(range(12))
        assert [tour.order[place] for place in tour._at] == list(range(12))


def test_small_tours_are_nearly_always_the_shortest():
    random = Random(0)
    best = 0
    for _ in range(100):
        table = table_between(points(random, 8))
        tour = tour_over(table, random)
        tour.improve(range(8))
        best += tour.length == least_hops_and_dilation(table)[0]
    assert best >= 95


@pytest.mark.parametrize("seed", range(20))
def test_a_kick_keeps_all_cities(seed):
    random = Random(seed)
    tour = tour_over(table_between(points(random, 4 + seed * 5)), random)
    before = tour.length
    cut = tour.kick(random)
    assert sorted(tour.order) == list(range(4 + seed * 5))
    tour.improve(cut)
    assert tour.length <= before + 1000
    assert [tour.order[place] for place in tour._at] == list(range(4 + seed * 5))


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_of_a_tree_never_goes_further_than_three_edges(seed):
    random = Random(seed)
    count = random.randint(1, 40)
    above = [-1] + [random.randrange(city) for city in range(1, count)]
    table = np.full((count, count), 10**6)
    for city, parent in enumerate(above[1:], start=1):
        table[city, parent] = table[parent, city] = 1
    for via in range(count):
        table = np.minimum(table, table[:, via, None] + table[via])
    np.fill_diagonal(table, 0)
    walk = walk_within_three(shortest_tree(table.__getitem__, count))
    assert sorted(walk) == list(range(count))
    assert table[walk, np.roll(walk, -1)].max() <= 3


def test_a_tree_is_shortest_and_goes_through_a_cluster_before_the_next():
    table = table_between([(0, 0), (9, 0), (1, 0), (10, 0), (0, 1)])
    tree = shortest_tree(lambda city: np.array(table[city]), 5)
    assert tree.order == [0, 2, 4, 1, 3]
    assert tree.lengths == [1, 1, 8, 1]
    assert clusters_bound(tree.lengths) == 5 + 7 * 2
