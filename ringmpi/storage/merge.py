"""From the shard files of all ranks to one output file, in bounded memory, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.errors import StorageError
from ringmpi.storage.account import Account
from ringmpi.storage.bits import POSITION, Bits, bits_dtype, create_floats, write_bits
from ringmpi.storage.digest import DigestBeside
from ringmpi.storage.files import check_destination, open_file, replacing
from ringmpi.storage.layout import (
    DIGEST_ATTRIBUTE,
    GRAD_KEY,
    KEY_SHARDS,
    OUTPUT,
    SCHEMA,
    SCHEMA_ATTRIBUTE,
    SCHEMA_VERSION,
    SHARDS,
    VERSION_ATTRIBUTE,
    dataset_layout,
    has_dim,
)
from ringmpi.storage.provenance import write_account, write_shards
from ringmpi.storage.record_layout import TOP_KEY
from ringmpi.storage.shards import ShardFile, open_shard
from ringmpi.storage.slabs import SLAB_BYTES, Axes, Slab, as_slice, rows_within, slab_extent, slabs
from ringmpi.storage.source import result_source

COVER_WINDOW = 1 << 20
OVERHEAD_BYTES = 1 << 20


Shapes = Mapping[str, tuple[int, ...]]  # of the arrays as they are to be stored, by name (`layout.result_shapes`)


def merge_bytes(shapes: Shapes, dtype: np.dtype, *, copies: int = 2) -> int:
    """Bytes that must be free: for shard files and merged file together, unless `copies` of all arrays is 1.

    dtype : that of /output
    """
    sizes = (int(np.prod(shape, dtype=object)) * dtype_of(name, dtype).itemsize for name, shape in shapes.items())
    return copies * sum(sizes) + OVERHEAD_BYTES


def dtype_of(name: str, dtype: np.dtype) -> np.dtype:
    """The dtype of an array of a result whose /output has `dtype`."""
    if name == TOP_KEY:
        return POSITION
    return dtype if has_dim(name) else accumulate_dtype(dtype)


def merge_shards(
    parts: Sequence[str | Path],
    destination: str | Path,
    *,
    shapes: Shapes,
    account: Account,
    force: bool = False,
    slab_bytes: int = SLAB_BYTES,
) -> None:
    """Merge shard files into one output file (layout.py), then remove them. Called by one rank, once all have written.

    The destination appears whole or not at all (`replacing`). If anything fails, the parts stay.

    Parameters
    ----------
    parts : sequence of path
        Shard files by ring position.
    destination : path
    shapes : mapping
        Of the arrays as they are to be stored, by name: `layout.result_shapes`.
    account : Account
    force : bool
        Replace an existing destination.
    slab_bytes : int
        Bound on the memory of slabs, bytes: two of half of it are held at a time.

    Raises
    ------
    StorageError
        If the destination exists (and not `force`), a part is missing or damaged, parts disagree, they do not hold
        every position exactly once, or a file cannot be read or written.
    """
    destination = Path(destination)
    check_destination(destination, force=force)
    shards = open_shards(parts, shapes, account)

    def merged(file: Any, array: Whole) -> Any:
        dataset = create_floats(file, array.name, array.shape, array.dtype)
        with DigestBeside() as digest:
            for start, box in array.slabs(slab_bytes // 2):
                digest.update(box)
                write_bits(dataset, start, box)
            dataset.attrs[DIGEST_ATTRIBUTE] = digest.hexdigest()
        return dataset

    write_output(destination, shards, shapes, account, merged)
    for shard in shards:
        with suppress(OSError):
            shard.path.unlink()


def open_shards(parts: Sequence[str | Path], shapes: Shapes, account: Account) -> list[ShardFile]:
    """Open all shard files; StorageError unless together they hold every row of arrays of these shapes once."""
    shards = [open_shard(path) for path in parts]
    _check_agreement(shards, shapes, account)
    for name in filter(shapes.__contains__, (OUTPUT, GRAD_KEY)):
        check_cover([shard.arrays[name].ranges for shard in shards], shapes[name][-2])
    return shards


def write_output(
    destination: Path,
    shards: Sequence[ShardFile],
    shapes: Shapes,
    account: Account,
    store: Callable[[Any, Whole], Any],
) -> None:
    """Write an output file, whole or not at all. `store(file, array)` makes the dataset of an array."""
    with replacing(destination) as file:
        for array in whole_arrays(shards, shapes):
            dataset_layout(array.name).describe(store(file, array))
        held = (OUTPUT, GRAD_KEY) if GRAD_KEY in shapes else (OUTPUT,)
        write_facts(file, {name: [shard.arrays[name].ranges for shard in shards] for name in held}, account)


def write_facts(file: Any, positions: Mapping[str, Sequence[Sequence[range]]], account: Account) -> None:
    """Write all of an output file but its arrays.

    Parameters
    ----------
    file : HDF5 file
    positions : mapping
        Of the rows of /output, and of /grad_key where it is there: for each rank, its ranges.
    account : Account
    """
    file.attrs[SCHEMA_ATTRIBUTE] = SCHEMA
    file.attrs[VERSION_ATTRIBUTE] = np.int64(SCHEMA_VERSION)
    for table, name in ((SHARDS, OUTPUT), (KEY_SHARDS, GRAD_KEY)):
        if name in positions:
            write_shards(file, table, positions[name])
    write_account(file, account)


@dataclass(frozen=True)
class Whole:
    """An array of the output that lies in shard files: all of it, as it is to be seen.

    Attributes
    ----------
    name : str
        /output, /log_sum_exp, a gradient, or what is recorded of rows.
    shape : tuple of int
        As stored.
    dtype : dtype
    axes : Axes
    shards : sequence of ShardFile
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    axes: Axes
    shards: Sequence[ShardFile]

    def slabs(self, slab_bytes: int) -> Iterator[tuple[tuple[int, ...], Bits]]:
        """Start and little-endian bits of boxes that follow each other in C order; start and box on the stored axes."""
        full, bits = self.axes.full(self.shape), bits_dtype(self.dtype)
        extent = slab_extent(full, max(1, full[3]) * bits.itemsize, slab_bytes, (1, 1, 1))
        for slab in slabs(full, extent):
            start, count = slab.box(full[3])
            box = np.empty(count, bits)
            for shard in self.shards:
                _gather(box, slab, shard, self.name)
            yield self.axes.stored(start), box.reshape(self.axes.stored(count))


def whole_arrays(shards: Sequence[ShardFile], shapes: Shapes) -> Iterator[Whole]:
    """All arrays of a result."""
    for name, shape in shapes.items():
        axes = Axes(has_batch=len(shapes[OUTPUT]) == 4, has_dim=has_dim(name))
        yield Whole(name, shape, shards[0].arrays[name].dtype, axes, shards)


def _check_agreement(shards: Sequence[ShardFile], shapes: Shapes, account: Account) -> None:
    """Refuse shard files of other arrays, heads, dims or dtypes than the destination, or of another number of ranks."""
    ranks = len(account.provenance.hosts)
    if len(shards) != ranks or not shards:
        raise StorageError(f"{len(shards)} shard files for {ranks} ranks; one of each rank is needed.")
    dtype = shards[0].arrays[OUTPUT].dtype
    needed = [_one_row(name, shape, dtype_of(name, dtype), shapes) for name, shape in shapes.items()]
    for shard in shards:
        found = [(name, held.shape[0], held.shape[1], held.shape[3], held.dtype) for name, held in shard.arrays.items()]
        if found != needed:
            raise StorageError(
                f"{shard.path} holds (batch, heads, dim, dtype) of {_text(found)}; expected {_text(needed)}. Run again."
            )


def _one_row(name: str, shape: tuple[int, ...], dtype: np.dtype, shapes: Shapes) -> tuple[Any, ...]:
    """Name, batch, heads, dim and dtype of an array that is to be stored."""
    batch, heads, _, dim = Axes(has_batch=len(shapes[OUTPUT]) == 4, has_dim=has_dim(name)).full(shape)
    return name, batch, heads, dim, dtype


def _text(arrays: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(f"{name} ({', '.join(map(str, facts))})" for name, *facts in arrays)


def check_cover(shards: Sequence[Sequence[range]], length: int) -> None:
    """Raise StorageError unless `shards` hold every position below `length` exactly once."""
    ranges = [(rank, positions) for rank, shard in enumerate(shards) for positions in shard if positions]
    for rank, positions in ranges:
        if positions.step < 1 or positions.start < 0 or positions[-1] >= length:
            raise StorageError(
                f"the shard of rank {rank} has {positions}; positions lie in 0 to {length - 1}. Run again."
            )
    for start in range(0, length, COVER_WINDOW):
        stop = min(start + COVER_WINDOW, length)
        times = np.zeros(stop - start, np.int32)
        for part, _ in rows_within((positions for _, positions in ranges), slice(start, stop)):
            times[as_slice(part, start)] += 1
        wrong = np.flatnonzero(times != 1)
        if len(wrong):
            raise StorageError(
                f"position {start + wrong[0]} is in {times[wrong[0]]} of the {len(shards)} shards; expected every "
                f"position below {length} in exactly one. No output was written; run again."
            )


def _gather(box: Bits, slab: Slab, shard: ShardFile, name: str) -> None:
    """Put those rows of a slab that one shard file has where they belong."""
    held = rows_within(shard.arrays[name].ranges, slab.rows)
    if held:
        origin = slab.rows.start
        maps = [(local, range(part.start - origin, part.stop - origin, part.step)) for part, local in held]
        with open_file(shard.path) as file:
            result_source(shard.path, file[name]).copy_rows(maps, box, (slab.batch, slab.heads))
