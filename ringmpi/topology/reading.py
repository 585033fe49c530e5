"""Files that describe a machine, of any known format, read into one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ringmpi.errors import TopologyError
from ringmpi.regular_file import MOST_BYTES, regular_bytes
from ringmpi.topology.building import Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.joining import joined
from ringmpi.topology.readers import (
    coordinates,
    hwloc,
    iblinkinfo,
    ibnetdiscover,
    ibsim,
    netloc,
    netq,
    nvidia_smi,
    opensm,
    own_toml,
    slurm_address,
    slurm_conf,
    slurm_yaml,
    xnames,
)


@dataclass(frozen=True)
class Format:
    """One format: does a text look like it, and what does it say."""

    recognise: Callable[[Source], bool]
    read: Callable[[Source], Graph]


# In the order in which they are tried: what has the clearest mark comes first.
FORMATS = {
    "hwloc": Format(hwloc.recognise, hwloc.read),
    "netloc": Format(netloc.recognise, netloc.read),
    "netq": Format(netq.recognise, netq.read),
    "slurm-conf": Format(slurm_conf.recognise, slurm_conf.read),
    "slurm-yaml": Format(slurm_yaml.recognise, slurm_yaml.read),
    "slurm-address": Format(slurm_address.recognise, slurm_address.read),
    "ibnetdiscover": Format(ibnetdiscover.recognise, ibnetdiscover.read),
    "iblinkinfo": Format(iblinkinfo.recognise, iblinkinfo.read),
    "ibsim": Format(ibsim.recognise, ibsim.read),
    "nvidia-smi": Format(nvidia_smi.recognise, nvidia_smi.read),
    "toml": Format(own_toml.recognise, own_toml.read),
    "torus-2QoS": Format(opensm.recognise_torus, opensm.read_torus),
    "ftree-ca-order": Format(opensm.recognise_order, opensm.read_order),
    "guid-map": Format(opensm.recognise_map, opensm.read_map),
    "coordinates": Format(coordinates.recognise, coordinates.read),
    "xnames": Format(xnames.recognise, xnames.read),
}


def read(paths: Iterable[str | Path], form: str | None = None) -> Graph:
    """One machine out of one or more files.

    Parameters
    ----------
    paths : iterable of path
        The files: a network, and what adds to it (a map of GUIDs, what is inside hosts).
    form : str, optional
        A key of `FORMATS` for all of them; without it each file's content tells.

    Raises
    ------
    TopologyError
        If a file is missing, of no known format, or contradicts itself or another; with file and line.
    """
    return joined([(str(path), read_source(_opened(Path(path)), form)) for path in paths])


def read_source(source: Source, form: str | None = None) -> Graph:
    """What one text describes; `form` is a key of `FORMATS`."""
    if form is not None and form not in FORMATS:
        raise TopologyError(f"{source.name}: format {form!r} is unknown; choose one of {', '.join(FORMATS)}")
    chosen = form or next((name for name, known in FORMATS.items() if known.recognise(source)), None)
    if chosen is None:
        raise TopologyError(
            f"{source.name}: format not recognised; choose one of {', '.join(FORMATS)}, or "
            f"describe the machine in TOML (docs/topology.md)"
        )
    try:
        return FORMATS[chosen].read(source)
    except RecursionError:
        raise TopologyError(f"{source.name}: brackets nest too deeply for {chosen}; no machine needs that") from None


def _opened(path: Path) -> Source:
    try:
        content = regular_bytes(path)
    except OSError as error:
        reason = error.strerror or error
        raise TopologyError(f"{path}: cannot be read: {reason}; give the path of a readable file") from None
    if len(content) > MOST_BYTES:
        raise TopologyError(f"{path}: larger than {MOST_BYTES >> 20} MiB; no description of a machine is")
    return Source.of_bytes(str(path), content)
