"""The pictures and figures of gallery.md: the attention of a real model's layers over a real book, recorded exactly.

    python -m docs.gallery PATH [--ranks N] [--publish]

PATH is an HDF5 file with groups such as `layer12`, each with q, k and v (data/README.md says where they come from).
Every layer is a run of `ringmpi run` with [record] (of one rank, or of N under mpirun). Outputs, pictures and figures
go to build/gallery; with --publish pictures go to docs/, figures to docs/benchmarks/gallery.json and into the tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tomli_w
from PIL import Image

from docs.markdown import table
from ringmpi import analysis
from ringmpi.plotting import LIGHT, dress, new_figure

ROOT = Path(__file__).parent.parent
DOCS, RUNS = ROOT / "docs", ROOT / "build" / "gallery"
FILE = DOCS / "benchmarks" / "gallery.json"
RECORD = {"rows": True, "sinks": 4, "map_block": 64, "received": True}
COLUMNS, SIDE = 3, 2.1  # pictures of heads beside each other; inches of each
DECADES = 4
DOTS = 72  # an inch
PROFILES = ("entropy", "sinks")


def run(path: Path, layer: str, ranks: int) -> Path:
    """Attend to a layer of `path` and record it; the output."""
    output = RUNS / f"{layer}.h5"
    names = {name: f"{layer}/{name[0]}" for name in ("query", "key", "value")}
    settings = {
        "input": {"file": str(path)} | names,
        "attention": {"mask": "causal", "scale": 0.125},
        "ring": {"sharding": "zigzag"},
        "record": RECORD,
        "output": {"file": str(output)},
    }
    RUNS.mkdir(parents=True, exist_ok=True)
    configuration = RUNS / f"{layer}.toml"
    configuration.write_text(tomli_w.dumps(settings), encoding="utf-8")
    launcher = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, "-m", "ringmpi", "run", str(configuration), "--force"]
    subprocess.run(command, check=True, cwd=ROOT)
    return output


def layers_of(path: Path) -> list[str]:
    """The groups of a file that have q, k and v, by name."""
    with h5py.File(path) as file:
        return sorted(name for name, group in file.items() if isinstance(group, h5py.Group) and {*"qkv"} <= {*group})


# ---- pictures


def draw_maps(layer: str, output: Path, folder: Path) -> None:
    """The attention maps of all heads of a layer, colours as in its neighbours."""
    found = analysis.recorded_map(output)
    heads, rows = len(found.heads), -(-len(found.heads) // COLUMNS)
    figure = new_figure(COLUMNS * SIDE + 0.6, rows * SIDE + 0.5)
    grid = figure.subplots(rows, COLUMNS, sharex=True, sharey=True).reshape(-1)
    end = int(found.key_edges[-1])
    shown = np.log10(np.maximum(found.weights, 10.0**-DECADES))
    shown = np.ma.masked_where(found.weights <= 0, shown)
    for head, axes in enumerate(grid):
        if head >= heads:
            axes.set_visible(False)
            continue
        image = axes.imshow(
            shown[head], extent=(0, end, end, 0), vmin=-DECADES, vmax=0, cmap=LIGHT.colormap, interpolation="nearest"
        )
        axes.set_title(found.heads[head], fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_xticks([0, end // 2, end])
        axes.set_yticks([0, end // 2, end])
    figure.supxlabel("position of the key", fontsize=9)
    figure.supylabel("position of the query", fontsize=9)
    bar = figure.colorbar(image, ax=list(grid), fraction=0.03, pad=0.02, ticks=range(-DECADES, 1))
    bar.ax.set_yticklabels([f"{10.0**n:g}" for n in range(-DECADES, 1)], fontsize=8)
    bar.set_label(f"weight of {found.block} keys", fontsize=9)
    save(figure, folder / f"gallery-map-{layer}.png")


def draw_profiles(name: str, outputs: Mapping[str, Path], folder: Path) -> None:
    """A quantity over position, a panel a layer: every head, and their mean."""
    figure = new_figure(7.2, 2.7)
    grid = figure.subplots(1, len(outputs), sharey=True, squeeze=False)[0]
    function: Callable[..., analysis.Profile] = getattr(analysis, name)
    for axes, (layer, output) in zip(grid, outputs.items(), strict=True):
        found = function(output, bins=64)
        middles = (found.edges[:-1] + found.edges[1:]) / 2
        axes.plot(middles, found.mean.T, color=LIGHT.muted, linewidth=0.8, alpha=0.7)
        axes.plot(middles, found.mean.mean(0), color=LIGHT.accent, linewidth=2)
        dress(axes, LIGHT, x="position of the query", y=found.label if axes is grid[0] else "", grid="y")
        axes.set_title(in_words(layer), fontsize=9)
        axes.margins(x=0)
        axes.tick_params(labelsize=8)
    grid[0].set_ylim(bottom=0)  # of all: they share it
    save(figure, folder / f"gallery-{name}.png")


def save(figure: Any, path: Path) -> None:
    """On white, since pages may be dark; in 256 colours, for small files."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=2 * DOTS, facecolor="white")
    with Image.open(buffer) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


# ---- figures


def figures(output: Path) -> dict[str, Any]:
    """Of one layer, by head: means over all rows, and the key that receives most."""
    found = {name: getattr(analysis, name)(output).overall.tolist() for name in ("entropy", "distance", "sinks")}
    weights = analysis.recorded_map(output).weights
    near = [float(np.diagonal(head).mean() + np.diagonal(head, -1).mean()) for head in weights]
    with h5py.File(output) as file:
        received = file["record/received"][...].astype("f8")
    return found | {
        "near": near,
        "received_most": received.argmax(1).tolist(),
        "received_share": (received.max(1) / received.sum(1)).tolist(),
        "tokens": received.shape[1],
    }


def results() -> dict[str, Any]:
    """What docs/benchmarks/gallery.json holds."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def heads() -> str:
    """A line per head and layer."""
    rows = [
        (
            in_words(layer),
            head,
            f"{found['entropy'][head]:.2f}",
            f"{np.exp(found['entropy'][head]):,.0f}",
            f"{found['distance'][head]:,.0f}",
            f"{100 * found['sinks'][head]:.1f}",
            f"{100 * found['near'][head]:.1f}",
            f"{found['received_most'][head]:,} ({100 * found['received_share'][head]:.1f} %)",
        )
        for layer, found in results().items()
        for head in range(len(found["entropy"]))
    ]
    head = (
        "layer",
        "head",
        "entropy, nats",
        "exp of it",
        "distance",
        "first 4 keys, %",
        "same block and the one before, %",
    )
    return table((*head, "key that receives most"), rows, right=range(1, 8))


def layers() -> str:
    """A line a layer: mean over heads, and the range."""
    rows = []
    for layer, found in results().items():
        cells = [_range(found["entropy"], "{:.2f}"), _range(found["distance"], "{:,.0f}")]
        cells += [_range([100 * share for share in found[name]], "{:.1f}") for name in ("sinks", "near")]
        rows.append((in_words(layer), *cells))
    head = ("layer", "entropy, nats", "distance, positions", "first 4 keys, %", "same block and the one before, %")
    return table(head, rows, right=range(1, 5))


def _range(values: list[float], form: str) -> str:
    """Mean, and the smallest and largest."""
    low, mean, high = (form.format(value) for value in (min(values), float(np.mean(values)), max(values)))
    return f"{mean} ({low} to {high})"


def in_words(layer: str) -> str:
    """The name of a layer: "layer 12"."""
    return f"layer {int(layer.removeprefix('layer'))}"


def shown(name: str) -> str:
    """A table, or that there are no figures yet."""
    return MADE[name]() if FILE.exists() else "Not computed yet: `python -m docs.gallery PATH --publish`."


MADE: dict[str, Callable[[], str]] = {"layers": layers, "heads": heads}
TABLES = {f"gallery-{name}": lambda name=name: shown(name) for name in MADE}


def made(outputs: Mapping[str, Path], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Draw everything into a folder; the figures of each layer."""
    for layer, output in outputs.items():
        draw_maps(layer, output, folder)
        yield layer, figures(output)
    for name in PROFILES:
        draw_profiles(name, outputs, folder)


def main() -> None:
    """Run, draw, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("path", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    path = arguments.path.absolute()
    outputs = {layer: run(path, layer, arguments.ranks) for layer in layers_of(path)}
    folder, file = (DOCS, FILE) if arguments.publish else (RUNS, RUNS / "gallery.json")
    file.write_text(json.dumps(dict(made(outputs, folder)), indent=1) + "\n", encoding="utf-8")
    if arguments.publish:
        subprocess.run([sys.executable, "-m", "docs.tables"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
