"""Random damage to checkpoints: each must be found and named, and the older generation offered.

A sample runs with the tests. The whole campaign, some seconds:

    python -m tests.campaigns.damage --damages 200 --seed 1

The last line is JSON; the exit code is 0 if nothing was missed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np

from ringmpi.core.sharding import Sharding
from ringmpi.storage import visibility
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import MANIFEST
from ringmpi.storage.rank_state import write_rank_state
from ringmpi.storage.validity import newest_valid, problems
from tests.storage.checkpoint_samples import make_state, save_generation
from tests.storage.samples import DTYPES

HEADER_BYTES = 2048  # of a file of HDF5: what is where
PAGE_BYTES = 4096


class Victim:
    """Two good generations of 2 to 5 ranks; the newer one is to be damaged, in one rank's file or in the manifest."""

    def __init__(self, random, folder):
        self.random, self.rng = random, np.random.default_rng(random.getrandbits(32))
        self.sharding = Sharding.zigzag(random.randint(20, 90), random.randint(2, 5))
        self.dtype = random.choice(DTYPES[2:])
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.older = save_generation(self.checkpoints, self.rng, self.sharding, dtype=self.dtype)
        self.newer = save_generation(self.checkpoints, self.rng, self.sharding, keep=self.older, dtype=self.dtype)
        self.rank = random.randrange(self.sharding.size)
        self.path = self.checkpoints.rank_path(self.newer, self.rank)
        self.manifest = self.path.with_name(MANIFEST)

    def flip(self, path, start, stop):
        data = bytearray(path.read_bytes())
        data[self.random.randrange(start, min(stop, len(data)))] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)

    def cut(self, path):
        path.write_bytes(path.read_bytes()[: self.random.randrange(path.stat().st_size)])


def one_bit_of_the_header(victim):
    victim.flip(victim.path, 0, HEADER_BYTES)
    return victim.path


def one_bit_of_the_data(victim):
    victim.flip(victim.path, HEADER_BYTES, victim.path.stat().st_size)
    return victim.path


def one_bit_of_the_manifest(victim):
    victim.flip(victim.manifest, 0, victim.manifest.stat().st_size)
    return victim.manifest


def a_lost_page(victim):
    """Zeros where data were, as after a power cut."""
    data = victim.path.read_bytes()
    pages = [at for at in range(0, len(data), PAGE_BYTES) if any(data[at : at + PAGE_BYTES])]
    start = victim.random.choice(pages)
    lost = len(data[start : start + PAGE_BYTES])
    victim.path.write_bytes(data[:start] + bytes(lost) + data[start + lost :])
    return victim.path


def a_file_cut_off(victim):
    victim.cut(victim.path)
    return victim.path


def a_manifest_cut_off(victim):
    victim.cut(victim.manifest)
    return victim.manifest


def bytes_appended(victim):
    path = victim.random.choice([victim.path, victim.manifest])
    path.write_bytes(path.read_bytes() + bytes(victim.random.randint(1, 999)))
    return path


def a_missing_file(victim):
    victim.path.unlink()
    return victim.path


def a_missing_manifest(victim):
    victim.manifest.unlink()
    return victim.manifest


def two_files_swapped(victim):
    other = victim.checkpoints.rank_path(victim.newer, (victim.rank + 1) % victim.sharding.size)
    aside = victim.path.with_name("aside")
    victim.path.rename(aside)
    other.rename(victim.path)
    aside.rename(other)
    return victim.path


def the_file_of_the_older_generation(victim):
    shutil.copy(victim.checkpoints.rank_path(victim.older, victim.rank), victim.path)
    return victim.path


def the_manifest_of_the_older_generation(victim):
    shutil.copy(victim.manifest.parent.with_name(f"generation-{victim.older:06d}") / MANIFEST, victim.manifest)
    return victim.manifest


def the_file_of_another_run(victim):
    """A good file of the same size and name, with other numbers."""
    state = make_state(victim.rng, victim.sharding, victim.rank, dtype=victim.dtype)
    write_rank_state(victim.path, state, {"cursor": np.arange(5)})
    return victim.path


def a_directory_in_its_place(victim):
    path = victim.random.choice([victim.path, victim.manifest])
    path.unlink()
    path.mkdir()
    return path


KINDS = (
    one_bit_of_the_header, one_bit_of_the_data, one_bit_of_the_manifest, a_lost_page, a_file_cut_off,
    a_manifest_cut_off, bytes_appended, a_missing_file, a_missing_manifest, two_files_swapped,
    the_file_of_the_older_generation, the_manifest_of_the_older_generation, the_file_of_another_run,
    a_directory_in_its_place,
)  # fmt: skip


def try_one(random, kind, folder):
    """What went wrong with one damage; nothing if it was found and named and the older generation offered."""
    victim = Victim(random, folder)
    chosen, said = newest_valid(victim.checkpoints.generations(), problems)
    if (chosen and chosen.number, said) != (victim.newer, []):
        return f"before any damage: {chosen}, {said}"
    path = kind(victim)
    chosen, said = newest_valid(victim.checkpoints.generations(), problems)
    if chosen is None or chosen.number != victim.older:
        return f"not found, or the older generation was not offered: {chosen}, {said}"
    if len(said) != 1 or f"generation {victim.newer} is passed over" not in said[0] or str(path) not in said[0]:
        return f"not named: {path} in {said}"
    return ""


def campaign(damages, seed):
    """Tries of each kind in turn, and what was missed."""
    random, tried, missed = Random(seed), Counter(), []
    with patch.object(visibility, "VISIBILITY_SECONDS", 0.0):
        for number in range(damages):
            kind = KINDS[number % len(KINDS)]
            with tempfile.TemporaryDirectory() as folder:
                problem = try_one(random, kind, Path(folder))
            tried[kind.__name__] += 1
            if problem:
                missed.append(f"{number}: {kind.__name__}: {problem}")
    return {"damages": damages, "seed": seed, "kinds": dict(tried), "missed": missed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = campaign(options.damages, options.seed)
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.exit(1 if found["missed"] else 0)


if __name__ == "__main__":
    main()
