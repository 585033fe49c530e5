"""The machine as this process may use it: system, processor, cores, NUMA nodes, memory."""

from __future__ import annotations

import os
import platform
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringmpi.process.cgroup import Limits, kernel_text

GIB = 2.0**30


def system() -> dict[str, Any]:
    """Operating system, C library, processor."""
    name = platform.system()
    with suppress(OSError):
        name = platform.freedesktop_os_release().get("PRETTY_NAME", name)
    return {
        "system": f"{name}, {platform.system()} {platform.release()}, {platform.machine()}",
        "C library": " ".join(filter(None, platform.libc_ver())) or "unknown",
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
    }


def cores(limits: Limits, root: Path = Path("/"), allowed: set[int] | None = None) -> dict[str, Any]:
    """CPUs that this process may run on, and how they lie.

    Parameters
    ----------
    limits : Limits
    root : path
        Where /proc and /sys lie.
    allowed : set of int, optional
        CPU numbers; default: the affinity of this process, which a cpuset narrows too.
    """
    if allowed is None:
        affinity = hasattr(os, "sched_getaffinity")
        allowed = set(os.sched_getaffinity(0)) if affinity else set(range(os.cpu_count() or 1))
    return {
        "processor": _processor(root),
        "CPUs of the machine": os.cpu_count(),
        "CPUs allowed": len(allowed),
        "CPU numbers allowed": ranges_text(allowed),
        "cores allowed": _cores(root, allowed),
        "CPU time allowed by cgroups": limits.cpus,
        "NUMA nodes": _numa_nodes(root, allowed),
        "cgroup versions": list(limits.versions),
    }


def memory(limits: Limits, root: Path = Path("/")) -> dict[str, Any]:
    """GiB there are, are free, and are allowed."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", kernel_text(root / "proc/meminfo"), re.MULTILINE))
    in_gib = {name: round(int(found[name]) * 1024 / GIB, 1) for name in ("MemTotal", "MemAvailable") if name in found}
    limit = None if limits.memory_bytes is None else round(limits.memory_bytes / GIB, 1)
    return {
        "GiB of the machine": in_gib.get("MemTotal"),
        "GiB available": in_gib.get("MemAvailable"),
        "GiB allowed by cgroups": limit,
        "GiB of address space allowed": _address_space(),
    }


def ranges_text(numbers: set[int]) -> str:
    """{0, 1, 2, 8} as "0-2,8"."""
    starts = [n for n in sorted(numbers) if n - 1 not in numbers]
    ends = [n for n in sorted(numbers) if n + 1 not in numbers]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def numbers_of(text: str) -> set[int]:
    """The reverse: what the kernel writes as "0-2,8"."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _processor(root: Path) -> str:
    text = kernel_text(root / "proc/cpuinfo")
    named = re.search(r"^(?:model name|cpu|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    if named:
        return named[1].strip()
    codes = [re.search(rf"^CPU {code}\s*:\s*(\S+)$", text, re.MULTILINE) for code in ("implementer", "part")]
    if all(codes):
        return f"implementer {codes[0][1]}, part {codes[1][1]}" if codes[0] and codes[1] else "unknown"
    return platform.processor() or "unknown"


def _cores(root: Path, allowed: set[int]) -> int | None:
    """Cores that the allowed CPUs (hardware threads) belong to; None where the kernel does not say."""
    folder = root / "sys/devices/system/cpu"
    siblings = {kernel_text(folder / f"cpu{cpu}/topology/thread_siblings_list").strip() for cpu in allowed}
    return None if "" in siblings else len(siblings)


def _numa_nodes(root: Path, allowed: set[int]) -> dict[str, str]:
    """Allowed CPUs of each NUMA node that has any, by its number."""
    nodes = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        if here := numbers_of(kernel_text(folder / "cpulist")) & allowed:
            nodes[folder.name[4:]] = ranges_text(here)
    return nodes


def _address_space() -> float | None:
    """The limit of `ulimit -v` in GiB; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else round(soft / GIB, 1)
