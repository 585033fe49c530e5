import pytest

from ringmpi.topology.rails import along_rails


def rail_changes(ranks, order):
    """The edges between hosts of a ring that leave on another rail than they arrive on."""
    rail = {rank: number for of_host in ranks for number, rank in enumerate(of_host)}
    host = {rank: number for number, of_host in enumerate(ranks) for rank in of_host}
    edges = zip(order, [*order[1:], *order[:1]], strict=True)
    return sum(host[a] != host[b] and rail[a] != rail[b] for a, b in edges)


@pytest.mark.parametrize(("hosts", "changes"), [(2, 0), (3, 1), (4, 0), (7, 1), (8, 0)])
@pytest.mark.parametrize("rails", [2, 4, 8])
def test_edges_between_hosts_stay_on_a_rail(hosts, rails, changes):
    ranks = [list(range(host * rails, (host + 1) * rails)) for host in range(hosts)]
    order = along_rails(ranks)
    assert sorted(order) == list(range(hosts * rails))
    assert rail_changes(ranks, order) == changes
    assert rail_changes(ranks, sorted(order)) == hosts


def test_hosts_of_one_rank_change_nothing():
    assert along_rails([[0, 1], [2], [3, 4]]) == [0, 1, 2, 4, 3]
