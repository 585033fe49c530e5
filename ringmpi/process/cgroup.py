"""What control groups leave to this process: batch systems and containers limit CPUs and memory by them.

Both versions: in version 1 each controller has a tree of its own, in version 2 there is one tree. A limit may be set on
any level from the root to the group of the process, so the smallest on the way counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True)
class Limits:
    """None where there is no limit.

    Attributes
    ----------
    cpus : float or None
        CPU time per second of wall time.
    memory_bytes : int or None
    versions : tuple of int
        Of the control groups that were found.
    """

    cpus: float | None
    memory_bytes: int | None
    versions: tuple[int, ...]


def limits(root: Path = Path("/")) -> Limits:
    """The limits of this process. `root`: where /proc and /sys lie."""
    groups = [(version, folder) for version, leaf in _groups(root) for folder in leaf]
    cpus = [quota for version, folder in groups if (quota := _cpus(version, folder)) is not None]
    memory = [most for version, folder in groups if (most := _memory(version, folder)) is not None]
    return Limits(
        cpus=min(cpus, default=None),
        memory_bytes=min(memory, default=None),
        versions=tuple(sorted({version for version, _ in groups})),
    )


def _groups(root: Path) -> Iterator[tuple[int, list[Path]]]:
    """Version and folders, from the group of the process to the root of its tree."""
    mounts = list(_mounts(root))
    for line in kernel_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        version = 1 if controllers else 2
        for mounted, top, point in mounts:
            if mounted == ("cgroup" if version == 1 else "cgroup2") and _serves(point, controllers):
                yield version, _upwards(root / point.strip("/"), group, top)


def _mounts(root: Path) -> Iterator[tuple[str, str, str]]:
    """File system type, the group that is mounted, and where."""
    for line in kernel_text(root / "proc/self/mountinfo").splitlines():
        fields, _, after = line.partition(" - ")
        if after.startswith("cgroup"):
            _, _, _, top, point, *_ = fields.split(" ")
            yield after.split(" ")[0], top, point


def _serves(point: str, controllers: str) -> bool:
    """Whether a mount of version 1 is that of these controllers ("cpu,cpuacct"); there is but one of version 2."""
    return not controllers or Path(point).name in {controllers, *controllers.split(",")}


def _upwards(point: Path, group: str, top: str) -> list[Path]:
    """Folders of a group and of those above it. In a container the group may lie outside of what is mounted."""
    inside = group.removeprefix(top.rstrip("/")).strip("/")
    leaf = point / inside
    if not leaf.is_dir() or ".." in Path(inside).parts:
        leaf = point
    return [leaf, *(folder for folder in leaf.parents if folder.is_relative_to(point))]


def _cpus(version: int, folder: Path) -> float | None:
    if version == 2:
        quota, _, period = kernel_text(folder / "cpu.max").strip().partition(" ")
    else:
        quota, period = (kernel_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory(version: int, folder: Path) -> int | None:
    text = kernel_text(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).strip()
    return int(text) if text.isdigit() and int(text) < NO_LIMIT_BYTES else None


def kernel_text(path: Path) -> str:
    """What the kernel says in a file of /proc or /sys; empty where there is no such file."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
