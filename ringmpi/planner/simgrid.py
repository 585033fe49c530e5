"""SimGrid's `smpirun`, if it is installed, on the files of planner/replay.py."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ringmpi.core.problem import Problem
from ringmpi.errors import ConfigError, StorageError
from ringmpi.planner.balance import PassTables
from ringmpi.planner.network import Network
from ringmpi.planner.orders import forecast
from ringmpi.planner.replay import HEAVY, HOSTS, PLATFORM, TRACE, write_platform, write_trace

LONGEST = 3600.0  # seconds of one replay
# Cables move what the topology says: without the corrections for TCP over Ethernet that are the defaults of SMPI.
SETTINGS = {
    "network/model": "CM02",
    "network/crosstraffic": "0",
    "network/TCP-gamma": "0",
    "network/bandwidth-factor": "1",
    "network/latency-factor": "1",
    "network/weight-S": f"{HEAVY:g}",
    "smpi/bw-factor": "0:1",
    "smpi/lat-factor": "0:1",
}
SAID = re.compile(r"Simulation time ([0-9.e+-]+)")


@dataclass(frozen=True)
class Comparison:
    """Seconds of the same ring steps in one order: as predicted, and as SimGrid has them."""

    predicted: float
    simulated: float


def compare(
    folder: Path, problem: Problem, tables: PassTables, network: Network, orders: dict[str, tuple[int, ...]]
) -> dict[str, Comparison]:
    """Write the pass that `tables` count into `folder`, replay it in each order, and hold it against the prediction.

    Raises
    ------
    ConfigError
        If `smpirun` is not installed (the files are there then), or does not do what it should.
    StorageError
        If the files cannot be written.
    """
    try:
        write_trace(folder, problem, tables)
        for name, ranks in orders.items():
            write_platform(folder / name, problem, network, ranks)
    except OSError as error:
        raise StorageError(
            f"cannot write to {folder}: {(error.strerror or str(error)).lower()}. Name another folder."
        ) from None
    if shutil.which("smpirun") is None:
        raise ConfigError(
            f"smpirun is not installed, so nothing is simulated; what it reads is in {folder}. It comes with SimGrid: "
            f"`apt-get install libsimgrid-dev` on Debian and Ubuntu, else https://simgrid.org. Then run this again."
        )
    return {
        name: Comparison(forecast(problem, tables, network, ranks).times.total, _replay(folder / name, problem.size))
        for name, ranks in orders.items()
    }


def _replay(folder: Path, ranks: int) -> float:
    """Simulated seconds. The program gets no path: `smpirun` is a shell script, and paths may hold blanks."""
    settings = [f"--cfg={name}:{value}" for name, value in SETTINGS.items()]
    machine = ["-platform", PLATFORM, "-hostfile", HOSTS]
    command = ["smpirun", "-np", str(ranks), *machine, *settings, "-replay", f"../{TRACE}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"smpirun took more than {LONGEST:,.0f} s on {folder}. Give fewer --simulate-steps, or fewer ranks."
        ) from None
    said = done.stdout + done.stderr
    found = SAID.findall(said)
    if done.returncode or not found:
        raise ConfigError(f"smpirun failed on {folder}, exit code {done.returncode}; it says: {said.strip()[-500:]}")
    return float(found[-1])
