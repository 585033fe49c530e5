"""Simulated InfiniBand fabrics (ibsim) that the real tools look at: what ibnetdiscover and opensm say of them.

Debian: ibsim-utils, opensm, infiniband-diags.
"""

import itertools
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from glob import glob
from pathlib import Path

from tests.lab.cluster import until

NEEDED = ("ibsim", "opensm", "ibnetdiscover", "iblinkinfo")
SHIM = "/usr/lib/*/umad2sim/libumad2sim.so"
START_SECONDS = 20


def why_not() -> str | None:
    """Why no fabric can be simulated here; None if one can."""
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    missing += [] if glob(SHIM) else ["libumad2sim.so"]  # noqa: PTH207 - a pattern with folders
    return f"needs {', '.join(missing)} (Debian: ibsim-utils, opensm, infiniband-diags)" if missing else None


def fat_tree(hosts: int, leaves: int, spines: int) -> str:
    """A net file of ibsim: `hosts` on each leaf switch, one cable from each leaf to each spine."""
    nodes = {f"spine{s}": ("Switch", leaves, {}) for s in range(spines)}
    nodes |= {f"leaf{j}": ("Switch", hosts + spines, {}) for j in range(leaves)}
    nodes |= {f"n{h:02}": ("Hca", 1, {}) for h in range(hosts * leaves)}
    for j, h in itertools.product(range(leaves), range(hosts)):
        _cable(nodes, f"leaf{j}", 1 + h, f"n{j * hosts + h:02}", 1)
    for j, s in itertools.product(range(leaves), range(spines)):
        _cable(nodes, f"leaf{j}", 1 + hosts + s, f"spine{s}", 1 + j)
    return _net(nodes)


def torus(*shape: int) -> str:
    """A net file of ibsim: a host on each switch; ports 1 and 2 go down and up the first dimension, and so on."""
    places = list(itertools.product(*map(range, shape)))
    names = {place: f"sw-{'-'.join(map(str, place))}" for place in places}
    ports = 2 * len(shape) + 1
    nodes = {names[place]: ("Switch", ports, {}) for place in places}
    nodes |= {f"n{n:02}": ("Hca", 1, {}) for n in range(len(places))}
    for n, place in enumerate(places):
        _cable(nodes, names[place], ports, f"n{n:02}", 1)
        for axis, size in enumerate(shape):
            up = (*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])
            if size > 2 or place[axis] == 0:
                _cable(nodes, names[place], 2 * axis + 2, names[up], 2 * axis + 1)
    return _net(nodes)


def _cable(nodes: dict, a: str, a_port: int, b: str, b_port: int) -> None:
    nodes[a][2][a_port] = (b, b_port)
    nodes[b][2][b_port] = (a, a_port)


def _net(nodes: dict) -> str:
    lines = []
    for name, (kind, ports, cables) in nodes.items():
        lines += [f'{kind}\t{ports}\t"{name}"', *(f'[{p}]\t"{o}"[{q}]' for p, (o, q) in sorted(cables.items())), ""]
    return "\n".join(lines)


class Fabric:
    """A fabric that is up, with opensm as its master; `host` is where tools run."""

    def __init__(self, folder: Path, host: str):
        self.folder = folder
        shim = glob(SHIM)[0]  # noqa: PTH207
        files = {"OSM_TMP_DIR": str(folder), "OSM_CACHE_DIR": str(folder)}
        path = f"{os.environ['PATH']}:/usr/sbin"
        self.environment = os.environ | files | {"LD_PRELOAD": shim, "SIM_HOST": host, "PATH": path}

    def say(self, *command: str) -> str:
        """What a tool prints."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout


@contextmanager
def simulated(net: str, folder: Path, *, engine: str, host: str = "n00"):
    """ibsim with a net file, and opensm with a routing engine, for as long as the block lasts: one at a time."""
    (folder / "fabric.net").write_text(net)
    fabric = Fabric(folder, host)
    plain = {name: value for name, value in fabric.environment.items() if name != "LD_PRELOAD"}
    programs = []
    try:
        programs.append(_started(["ibsim", "-s", "-n", "fabric.net"], folder / "ibsim.out", plain))
        time.sleep(1)
        manager = ["opensm", "-R", engine, "-f", "opensm.log"]
        programs.append(_started(manager, folder / "opensm.out", fabric.environment))
        until((folder / "opensm-subnet.lst").exists, "opensm is not up", START_SECONDS)  # after its first sweep
        yield fabric
    finally:
        for program in reversed(programs):
            program.kill()  # opensm outlives a TERM
            program.wait()


def _started(command: list[str], output: Path, environment: dict[str, str]) -> subprocess.Popen:
    with output.open("w") as file:
        return subprocess.Popen(
            command, env=environment, cwd=output.parent, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
