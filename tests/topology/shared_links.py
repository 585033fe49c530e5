"""A network in which transfers at the same time share cables fairly: what measured rates are judged by."""

import numpy as np

SPINE = "spine"


class SharedLinks:
    """Hosts with a cable each to their leaf switch, leaves with a cable each to a spine; bytes/s in each direction."""

    def __init__(self, leaves, *, host_rate=25e6, uplink=25e6, slow=None):
        self.leaf_of = {host: leaf for leaf, hosts in enumerate(leaves) for host in hosts}
        self.capacity = {("host", host, way): host_rate for host in self.leaf_of for way in ("out", "in")}
        self.capacity |= {("leaf", leaf, way): uplink for leaf in range(len(leaves)) for way in ("out", "in")}
        for host, rate in (slow or {}).items():
            self.capacity |= {("host", host, way): rate for way in ("out", "in")}

    def way(self, a, b):
        """Cables from host a to host b."""
        inner = [("leaf", self.leaf_of[a], "out"), ("leaf", self.leaf_of[b], "in")]
        return [("host", a, "out"), *(inner if self.leaf_of[a] != self.leaf_of[b] else []), ("host", b, "in")]

    def rates(self, flows):
        """Max-min fair rates of transfers (a, b) at the same time: the tightest cable is shared out first."""
        left, rates = dict(self.capacity), {}
        open_flows = {flow: self.way(*flow) for flow in flows}
        while open_flows:
            users = {}
            for cables in open_flows.values():
                for cable in cables:
                    users[cable] = users.get(cable, 0) + 1
            tightest = min(users, key=lambda cable: left[cable] / users[cable])
            share = left[tightest] / users[tightest]
            for flow in [flow for flow, cables in open_flows.items() if tightest in cables]:
                rates[flow] = share
                for cable in open_flows.pop(flow):
                    left[cable] -= share
        return rates


def measured(network, hosts, rounds_of, rng, noise=0.0):
    """Median rate of each pair over tournaments, as if timed on `network`."""
    tables = []
    for rounds in rounds_of:
        table = np.zeros((len(hosts), len(hosts)))
        for pairs in rounds:
            found = network.rates([(hosts[a], hosts[b]) for a, b in pairs] + [(hosts[b], hosts[a]) for a, b in pairs])
            for a, b in pairs:
                rate = min(found[hosts[a], hosts[b]], found[hosts[b], hosts[a]])
                table[a, b] = table[b, a] = rate * (1 - noise * rng.random())
        tables.append(table)
    return np.median(tables, axis=0)
