"""The fabrics of the scaling study, as graphs: one cable moves as much as another, in each direction."""

from __future__ import annotations

from math import prod

from ringmpi.topology.building import Builder, box_places
from ringmpi.topology.graph import Graph, Grid


def torus(*shape: int) -> Graph:
    """A torus of hosts, the first dimension fastest in their numbers."""
    builder = Builder()
    hosts = [builder.host(f"n{number}", "torus") for number in range(prod(shape))]
    builder.grid(Grid("torus", shape, (True,) * len(shape), dict(zip(hosts, box_places(shape), strict=True))))
    return builder.graph("torus")


def fat_tree(pods: int, leaves: int, hosts: int, *, up: int) -> Graph:
    """Three levels: `hosts` under a leaf, `leaves` in a pod, and from each leaf `up` cables up, to a switch each.

    Each switch of a pod has as many cables up as down, `leaves`, to four core switches of its own.
    """
    builder = Builder()
    core = min(4, leaves)
    for plane in range(up):
        for nth in range(core):
            builder.switch(f"core{plane}.{nth}", "fat tree")
        for pod in range(pods):
            builder.switch(f"pod{pod}.{plane}", "fat tree")
            for nth in range(core):
                builder.link(f"pod{pod}.{plane}", f"core{plane}.{nth}", capacity=leaves / core, cables=leaves // core)
    for leaf in range(pods * leaves):
        builder.switch(f"leaf{leaf}", "fat tree")
        for plane in range(up):
            builder.link(f"leaf{leaf}", f"pod{leaf // leaves}.{plane}")
        for host in range(leaf * hosts, (leaf + 1) * hosts):
            builder.link(builder.host(f"n{host}", "fat tree"), f"leaf{leaf}")
    return builder.graph("fabric")


def dragonfly(groups: int, routers: int, hosts: int, *, cables: int) -> Graph:
    """Groups of routers that are all linked to each other; between any two groups `cables`, dealt out over routers."""
    builder = Builder()
    for router in range(groups * routers):
        builder.switch(f"r{router}", "dragonfly")
        for host in range(router * hosts, (router + 1) * hosts):
            builder.link(builder.host(f"n{host}", "dragonfly"), f"r{router}")
    for group in range(groups):
        members = range(group * routers, (group + 1) * routers)
        for a in members:
            for b in range(a + 1, members.stop):
                builder.link(f"r{a}", f"r{b}")
        for other in range(group + 1, groups):
            for cable in range(cables):
                a = ((other - 1) * cables + cable) % routers  # the ports of a group, dealt out in turn
                b = (group * cables + cable) % routers
                builder.link(f"r{group * routers + a}", f"r{other * routers + b}")
    return builder.graph("fabric")


def dragonfly_of_nodes(groups: int, routers: int, nodes: int, *, cables: int, a_node: int, ports: int) -> Graph:
    """A dragonfly whose hosts are nodes of `a_node` ranks; their `ports` go to as many routers side by side.

    Inside a node each rank has a link that moves twice what a cable of the fabric does. `routers` is a multiple of
    `ports`.
    """
    fabric, builder = dragonfly(groups, routers, nodes, cables=cables), Builder()
    for switch in (*fabric.switches, *fabric.hosts):
        builder.switch(switch, "dragonfly of nodes")
    hosts = set(fabric.hosts)
    for link in fabric.links:
        node = next((end for end in link.ends if end in hosts), None)
        if node is None:
            builder.link(*link.ends, capacity=link.capacity, cables=link.cables)
            continue
        first = int(node[1:]) // nodes // ports * ports
        for port in range(ports):
            builder.link(node, f"r{first + port}")
        for rank in range(a_node):
            builder.link(builder.host(f"{node}.{rank}", "dragonfly of nodes"), node, capacity=2.0)
    return builder.graph("fabric")
