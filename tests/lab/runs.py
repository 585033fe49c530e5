"""Runs of the lab's tests: a RUN.toml, and what its output tells."""

import sys
from pathlib import Path

import h5py

ROOT = Path(__file__).parents[2]
RINGMPI = (sys.executable, "-m", "ringmpi")


def write_run(folder: Path, *, mask="{window = [64, 0]}", options="") -> Path:
    """RUN.toml of a second's work, whose output is out.h5 beside it, of which rows are checked as the run ends."""
    path = folder / "run.toml"
    path.write_text(
        f'[input]\nfile = "{ROOT / "data/smollm2_kjv_2048.h5"}"\n'
        'query = "layer12/q"\nkey = "layer12/k"\nvalue = "layer12/v"\n'
        f"[attention]\nmask = {mask}\n"
        f'[output]\nfile = "{folder / "out.h5"}"\nverify_rows = 64\n{options}'
    )
    return path


def hosts_of(output: Path) -> list[str]:
    """The host of each rank of a run, by ring position."""
    with h5py.File(output) as file:
        return [host.decode() for host in file["provenance/hosts"][...]]
