"""An output file that holds no rows itself: it shows those in the shard files, which stay beside it, as one array.

Nothing is written twice. The price: the shard files and the output file must stay together. Each output has parts of
its own (named by its digest), so that a later run replaces a whole result by another whole result. HDF5 fills what is
missing; the fill value is NaN, so that nobody takes it for a result, and ringmpi refuses the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ringmpi.core.dtypes import bfloat16
from ringmpi.storage.account import Account
from ringmpi.storage.bits import bfloat16_type
from ringmpi.storage.digest import new_digest
from ringmpi.storage.files import check_destination, storage_errors
from ringmpi.storage.layout import DIGEST_ATTRIBUTE, OUTPUT
from ringmpi.storage.merge import Shapes, Whole, open_shards, whole_arrays, write_output
from ringmpi.storage.shards import DIGITS, ShardFile
from ringmpi.storage.slabs import SLAB_BYTES, Axes

DIGEST_DIGITS = 8


def part_path(destination: str | Path, digest: str, rank: int) -> Path:
    """Where the rows of a rank stay, for an output with this digest of /output."""
    destination = Path(destination)
    return destination.with_name(f"{destination.name}.part-{digest[:DIGEST_DIGITS]}-{rank:0{DIGITS}d}")


def link_shards(
    parts: Sequence[str | Path],
    destination: str | Path,
    *,
    shapes: Shapes,
    account: Account,
    force: bool = False,
    slab_bytes: int = SLAB_BYTES,
) -> None:
    """Make an output file that shows the shard files as one array, and keep them. Called by one rank.

    Parameters and errors are those of `merge_shards`. All rows are read once, for the digests.
    """
    destination = Path(destination)
    check_destination(destination, force=force)
    shards = open_shards(parts, shapes, account)
    digests = {array.name: _digest(array, slab_bytes) for array in whole_arrays(shards, shapes)}
    kept = [part_path(destination, digests[OUTPUT], rank) for rank in range(len(shards))]
    with storage_errors("rename the shard files of", destination):
        for shard, path in zip(shards, kept, strict=True):
            shard.path.replace(path)

    def linked(file: Any, array: Whole) -> Any:
        dataset = _create(file, array, kept)
        dataset.attrs[DIGEST_ATTRIBUTE] = digests[array.name]
        return dataset

    write_output(destination, shards, shapes, account, linked)
    remove_parts(destination, kept=kept)


def remove_parts(destination: str | Path, *, kept: Sequence[Path] = ()) -> None:
    """Remove the parts of earlier outputs at `destination`, as far as they can be removed."""
    destination = Path(destination)
    pattern = re.compile(re.escape(destination.name) + rf"\.part-[0-9a-f]{{{DIGEST_DIGITS}}}-\d{{{DIGITS},}}")
    names = {path.name for path in kept}
    with suppress(OSError):
        for path in list(destination.parent.iterdir()):
            if pattern.fullmatch(path.name) and path.name not in names:
                path.unlink()


def _digest(array: Whole, slab_bytes: int) -> str:
    digest = new_digest()
    for _, box in array.slabs(slab_bytes):
        digest.update(box.data)
    return digest.hexdigest()


def _create(file: Any, array: Whole, kept: Sequence[Path]) -> Any:
    """The virtual dataset; its sources are named without directory, and found beside it."""
    is_bfloat16 = array.dtype == bfloat16
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_fill_value(_no_result(np.dtype(np.float32) if is_bfloat16 else array.dtype))
    for shard, path in zip(array.shards, kept, strict=True):
        for target, source in _selections(array, shard):
            creation.set_virtual(target, os.fsencode(path.name), array.name.encode(), source)
    hdf5_type = bfloat16_type() if is_bfloat16 else h5py.h5t.py_create(array.dtype.newbyteorder("<"))
    space = h5py.h5s.create_simple(array.shape)
    file.require_group(array.name.rpartition("/")[0] or "/")
    h5py.h5d.create(file.id, array.name.encode(), hdf5_type, space, creation)
    return file[array.name]


def _no_result(dtype: np.dtype) -> np.ndarray:
    """What nobody takes for a result: NaN; among positions the least number, as -1 is a key that is not there."""
    return np.array(np.nan if dtype.kind == "f" else np.iinfo(dtype).min, dtype)


def _selections(array: Whole, shard: ShardFile) -> Iterator[tuple[Any, Any]]:
    """For each range of a shard: where its rows are seen, and where they lie in the shard file."""
    in_shard, held = Axes(has_batch=True, has_dim=array.axes.has_dim), shard.arrays[array.name]
    seen, lying = array.axes.full(array.shape), in_shard.stored(held.shape)
    done = 0
    for positions in filter(len, held.ranges):
        count = (*seen[:2], len(positions), seen[3])
        target, source = h5py.h5s.create_simple(array.shape), h5py.h5s.create_simple(lying)
        start, stride = array.axes.stored((0, 0, positions.start, 0)), array.axes.stored((1, 1, positions.step, 1))
        target.select_hyperslab(start, array.axes.stored(count), stride)
        source.select_hyperslab(in_shard.stored((0, 0, done, 0)), in_shard.stored(count))
        done += len(positions)
        yield target, source
