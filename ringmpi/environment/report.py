"""All facts of the environment in one report, made to be pasted in public: no user names, hosts or paths of a home."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringmpi import __version__
from ringmpi.environment import libraries, machine, missing, settings
from ringmpi.process.cgroup import limits

USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")


def environment_report() -> dict[str, Any]:
    """Facts by section; "missing" holds sentences. JSON-able. Takes about a second; programs that hang, 20 s."""
    allowed = limits()
    with ThreadPoolExecutor() as pool:
        asked = {
            "MPI": pool.submit(libraries.mpi),
            "launcher": pool.submit(libraries.launcher),
            "HDF5": pool.submit(libraries.hdf5),
            "GPU": pool.submit(libraries.gpus),
        }
        report: dict[str, Any] = {
            "system": machine.system(),
            "cores": machine.cores(allowed),
            "memory": machine.memory(allowed),
            "packages": libraries.packages(),
            "NumPy": libraries.numpy(),
            "native kernels": libraries.native_kernels(),
        } | {name: future.result() for name, future in asked.items()}
    found = [] if "error" in report["NumPy"] else libraries.backends(report["GPU"])
    report = {"ringmpi": {"version": __version__, "backends": found}} | report
    report |= {"Slurm": settings.slurm(os.environ), "variables": settings.variables(os.environ)}
    report["missing"] = missing.sentences(report)
    return dict(anonymous(report, os.environ))


def anonymous(value: Any, environment: Mapping[str, str]) -> Any:
    """The same with homes as "~" and user names in paths as "USER"."""
    if isinstance(value, dict):
        return {key: anonymous(entry, environment) for key, entry in value.items()}
    if isinstance(value, list):
        return [anonymous(entry, environment) for entry in value]
    if not isinstance(value, str):
        return value
    for home in sorted(_homes(environment), key=len, reverse=True):
        value = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", value)
    for name in _names(environment):
        value = re.sub(rf"(?<=/){re.escape(name)}(?=/|\W|$)", "USER", value)
    return value


def _names(environment: Mapping[str, str]) -> set[str]:
    names = {environment.get(name, "") for name in USER_VARIABLES}
    with suppress(KeyError):  # a container may run as a number without a name
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    return names - {""}


def _homes(environment: Mapping[str, str]) -> set[str]:
    homes = {environment.get("HOME", "")}
    with suppress(KeyError):
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    return {home.rstrip("/") for home in homes | {str(Path(home).resolve()) for home in homes if home}} - {""}
