"""The output file written by all ranks at once, with parallel HDF5: no shard files, and no number is written twice.

First all ranks write the arrays into the temporary file, then one adds what describes them and gives it its name.
HDF5 wants every rank to make the same collective calls: a rank with fewer rows than others joins with none, and one
whose write has failed goes on to the end before it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import StorageError
from ringmpi.storage.account import Account
from ringmpi.storage.bits import Bits, bits_dtype, create_floats
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.files import TEMPORARY_SUFFIX, WHAT_LIBRARIES_RAISE, replacing, storage_errors
from ringmpi.storage.layout import DIGEST_ATTRIBUTE, dataset_layout
from ringmpi.storage.merge import Shapes, write_facts
from ringmpi.storage.rank_state import StateArray
from ringmpi.storage.slabs import SLAB_BYTES, Axes, Slab, slab_extent, slabs
from ringmpi.storage.source import result_source

FAILURES = (*WHAT_LIBRARIES_RAISE, MemoryError)


def check_parallel() -> None:
    """Raise StorageError unless h5py is built with MPI."""
    if not h5py.get_config().mpi:
        raise StorageError(
            f'[output] writer = "parallel" needs an h5py that is built with MPI; h5py {h5py.__version__} here is not. '
            f'Leave it out for "serial", or build h5py with HDF5_MPI=ON against the MPI library of mpi4py.'
        )


def write_together(
    destination: str | Path,
    comm: Any,
    arrays: Mapping[str, StateArray],
    *,
    shapes: Shapes,
    slab_bytes: int = SLAB_BYTES,
) -> None:
    """Write the arrays of an output file, each rank its rows; `complete_output` makes it one. Collective.

    Parameters
    ----------
    destination : path
        The file is left under its temporary name.
    comm : mpi4py communicator
        Of all ranks.
    arrays : mapping
        The rows of this rank, with their positions, by name.
    shapes : mapping
        Of the whole arrays as they are to be stored, by name: `layout.result_shapes`.
    slab_bytes : int
        Bound on the bytes of one write of a rank. A single row is never cut.

    Raises
    ------
    StorageError
        On the ranks that could not write. The temporary file is gone.
    """
    destination = Path(destination)
    temporary = destination.with_name(destination.name + TEMPORARY_SUFFIX)
    failure: Exception | None = None
    try:
        with storage_errors("write", destination):
            # In no `with` of its own: all ranks must close it at once, and one that is interrupted comes there alone.
            file = h5py.File(temporary, "w", driver="mpio", comm=comm)
            failed = [_write(file, name, arrays[name], shape, comm, slab_bytes) for name, shape in shapes.items()]
            file.flush()
            file.close()
            if error := next(filter(None, failed), None):
                raise error
    except (StorageError, MemoryError) as error:
        failure = error
    if any(comm.allgather(failure is not None)) and comm.rank == 0:
        with suppress(OSError):
            temporary.unlink()
    if failure is not None:
        raise failure


def _write(
    file: Any, name: str, held: StateArray, shape: tuple[int, ...], comm: Any, slab_bytes: int
) -> Exception | None:
    """Write the rows of this rank into a new dataset of `shape`; what went wrong first."""
    dataset = create_floats(file, name, shape, held.array.dtype)
    together = h5py.h5p.create(h5py.h5p.DATASET_XFER)
    together.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
    pieces = list(_pieces(held, slab_bytes))
    axes = Axes(has_batch=len(shape) == held.array.ndim, has_dim=held.array.ndim == 4)
    wrong = None
    for turn in range(max(comm.allgather(len(pieces)))):
        box = None
        try:
            if turn < len(pieces):
                box = _selected(dataset, axes, held.array, *pieces[turn])
        except FAILURES as error:
            wrong = wrong or error
        try:
            dataset.id.write(*(box or _nothing(dataset, held.array)), dataset.id.get_type(), together)
        except FAILURES as error:
            wrong = wrong or error
    return wrong


def _pieces(held: StateArray, slab_bytes: int) -> Iterator[tuple[range, Slab]]:
    """The rows of a rank cut up: some of its positions, and where they lie in its array."""
    batch, heads, _, *dim = held.array.shape
    row_bytes = max(1, *dim, 1) * held.array.itemsize
    before = 0
    for positions in held.ranges:
        shape = (batch, heads, len(positions))
        for slab in slabs(shape, slab_extent(shape, row_bytes, slab_bytes, (1, 1, 1))):
            rows = slice(before + slab.rows.start, before + slab.rows.stop)
            yield positions[slab.rows], Slab(slab.batch, slab.heads, rows)
        before += len(positions)


def _selected(dataset: Any, axes: Axes, array: NDArray[Any], positions: range, slab: Slab) -> tuple[Any, Any, Bits]:
    """Spaces in memory and in the file of some rows, and their bits."""
    box = np.ascontiguousarray(array[slab.batch, slab.heads, slab.rows]).view(f"u{array.itemsize}")
    count = axes.stored((*box.shape, 1)[:4])
    start = axes.stored((slab.batch.start, slab.heads.start, positions.start, 0))
    there = dataset.id.get_space()
    there.select_hyperslab(start, count, axes.stored((1, 1, positions.step, 1)))
    return h5py.h5s.create_simple(count), there, box.astype(bits_dtype(array.dtype), copy=False)


def _nothing(dataset: Any, array: NDArray[Any]) -> tuple[Any, Any, Bits]:
    """The same of no rows, with which a rank joins a write of others."""
    here, there = h5py.h5s.create_simple((1,)), dataset.id.get_space()
    here.select_none()
    there.select_none()
    return here, there, np.empty(1, bits_dtype(array.dtype))


def complete_output(
    destination: str | Path, shapes: Shapes, positions: Mapping[str, Sequence[Sequence[range]]], account: Account
) -> None:
    """Make what `write_together` has left an output file. Called by one rank; reads the arrays once, for the digests.

    Parameters
    ----------
    destination : path
    shapes, account : as in `merge_shards`
    positions : as in `write_facts`

    Raises
    ------
    StorageError
        If it cannot be read or written.
    """
    destination = Path(destination)
    with replacing(destination, begun=True) as file:
        for name in shapes:
            dataset = file[name]
            dataset.attrs[DIGEST_ATTRIBUTE] = dataset_digest(result_source(destination, dataset))
            dataset_layout(name).describe(dataset)
        write_facts(file, positions, account)
