"""Measured networks, kept for the next job on the same hosts: a file each, of our own format, that anyone may read."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ringmpi.errors import TopologyError
from ringmpi.process.cache_home import cache_home
from ringmpi.topology.building import some
from ringmpi.topology.graph import Graph
from ringmpi.topology.measured import as_toml
from ringmpi.topology.natural_order import natural_order
from ringmpi.topology.reading import read

KEPT_SECONDS = 7 * 24 * 3600.0
DIGEST_BYTES = 8


def cache_file(hosts: Iterable[str], environment: Mapping[str, str]) -> Path:
    """Where the network of these hosts is kept."""
    names = natural_order(set(hosts))
    digest = hashlib.blake2b("\n".join(names).encode(), digest_size=DIGEST_BYTES).hexdigest()
    return cache_home(environment) / f"links-{digest}.toml"


def kept_graph(path: Path, hosts: Iterable[str]) -> Graph | None:
    """What was measured between these hosts in the last seven days; None if nothing was, or it cannot be used."""
    try:
        if not 0 <= time.time() - path.stat().st_mtime < KEPT_SECONDS:
            return None
        graph = read([path], "toml")
    except (OSError, TopologyError):
        return None
    return graph if set(graph.hosts) == set(hosts) else None


def keep_graph(path: Path, graph: Graph) -> str:
    """Keep it; returns why that failed, or nothing. A job does without."""
    remark = f"Measured by ringmpi between {len(graph.hosts)} hosts: {some(graph.hosts)}. Read again for 7 days."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # gone also where there is no room
            draft = Path(folder) / path.name
            draft.write_text(as_toml(graph, [remark]), encoding="utf-8")
            draft.replace(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""
