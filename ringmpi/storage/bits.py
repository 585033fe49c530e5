"""Floating-point datasets as raw bits: no conversion by HDF5 (its own runs at 15 MB/s for bfloat16).

bfloat16 is stored as a 16-bit HDF5 float: 1 sign bit, 8 exponent bits with bias 127, 7 mantissa bits. Any HDF5 tool
reads it as numbers. Also read: uint16 datasets with the attribute ringmpi_dtype = "bfloat16". Positions that a run
records are int64, stored and read in the same way.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import SUPPORTED, bfloat16, check_dtype, native
from ringmpi.errors import StorageError
from ringmpi.storage.foreign import ForeignArray
from ringmpi.storage.layout import BFLOAT16_ATTRIBUTE
from ringmpi.storage.slabs import SLAB_BYTES, slab_extent, slabs

Bits = NDArray[np.unsignedinteger]
POSITION = np.dtype(np.int64)

_BFLOAT16_FIELDS = (15, 7, 8, 0, 7)  # sign position, exponent position and size, mantissa position and size
_BFLOAT16_BIAS = 127


def bfloat16_type() -> Any:
    """The HDF5 type of bfloat16, little-endian."""
    hdf5_type = h5py.h5t.IEEE_F16LE.copy()
    hdf5_type.set_fields(*_BFLOAT16_FIELDS)
    hdf5_type.set_ebias(_BFLOAT16_BIAS)
    return hdf5_type


def bits_dtype(dtype: np.dtype) -> np.dtype:
    """The little-endian unsigned integer as wide as `dtype`: what files of ringmpi store."""
    return np.dtype(f"<u{dtype.itemsize}")


def stored_float(dataset: Any) -> tuple[np.dtype, np.dtype]:
    """How the floating-point numbers of a dataset are stored.

    Returns
    -------
    bits : dtype
        Unsigned integer of their width, in the byte order of the file.
    value : dtype
        float16, bfloat16, float32 or float64, native.

    Raises
    ------
    StorageError
        If the dataset holds anything else.
    """
    if isinstance(dataset, ForeignArray):
        return dataset.stored_float()
    hdf5_type = dataset.id.get_type()
    if _is_bfloat16(dataset, hdf5_type):
        order = ">" if hdf5_type.get_order() == h5py.h5t.ORDER_BE else "<"
        return np.dtype(f"{order}u2"), bfloat16
    stored = np.dtype(dataset.dtype)
    if native(stored) in SUPPORTED and h5py.h5t.py_create(stored).equal(hdf5_type):
        return np.dtype(f"{stored.str[0]}u{stored.itemsize}"), native(stored)
    raise StorageError(
        f"dataset {dataset.name} of {dataset.file.filename} holds {_type_name(dataset)}; expected float16, bfloat16, "
        f"float32 or float64. Convert it, or name another dataset."
    )


def stored_number(dataset: Any) -> tuple[np.dtype, np.dtype]:
    """`stored_float` of a dataset that may hold int64 too: positions, which no input has."""
    if not isinstance(dataset, ForeignArray) and dataset.id.get_type().get_class() == h5py.h5t.INTEGER:
        stored = np.dtype(dataset.dtype)
        if native(stored) == POSITION:
            return np.dtype(f"{stored.str[0]}u{stored.itemsize}"), POSITION
    return stored_float(dataset)


def _is_bfloat16(dataset: Any, hdf5_type: Any) -> bool:
    if hdf5_type.get_class() == h5py.h5t.FLOAT and hdf5_type.get_size() == 2:
        return bool(hdf5_type.get_fields() == _BFLOAT16_FIELDS and hdf5_type.get_ebias() == _BFLOAT16_BIAS)
    marked = dataset.attrs.get(BFLOAT16_ATTRIBUTE, "")
    marked = marked.decode() if isinstance(marked, bytes) else str(marked)
    return native(dataset.dtype) == np.uint16 and marked == bfloat16.name


def _type_name(dataset: Any) -> str:
    if dataset.dtype.kind == "O":
        return "strings or objects"
    if dataset.dtype.kind == "f":
        return f"floating-point numbers of {dataset.id.get_type().get_precision()} bits in an uncommon form"
    return str(dataset.dtype)


def create_floats(file: Any, path: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A new contiguous little-endian dataset of a supported `dtype`, or int64. Every element must be written."""
    file.require_group(path.rpartition("/")[0] or "/")
    hdf5_type = bfloat16_type() if dtype == bfloat16 else h5py.h5t.py_create(dtype.newbyteorder("<"))
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(shape)
    h5py.h5d.create(file.id, path.encode(), hdf5_type, space, creation)
    return file[path]


def store_floats(file: Any, path: str, array: NDArray[Any]) -> None:
    """Write a whole array, of any strides and byte order, to a new dataset, slab by slab; also one of int64.

    Raises
    ------
    ShapeError
        If its dtype is not supported.
    """
    dtype = POSITION if native(array.dtype) == POSITION else check_dtype(path, array.dtype)
    dataset = create_floats(file, path, array.shape, dtype)
    bits = array.astype(dtype, copy=False).view(f"u{dtype.itemsize}")
    full = bits if bits.ndim == 4 else bits[..., None]
    extent = slab_extent(full.shape, max(1, full.shape[3]) * dtype.itemsize, SLAB_BYTES, (1, 1, 1))
    for slab in slabs(full.shape, extent):
        box = np.ascontiguousarray(full[slab.batch, slab.heads, slab.rows], bits_dtype(dtype))
        start, count = slab.box(full.shape[3])
        write_bits(dataset, start[: bits.ndim], box.reshape(count[: bits.ndim]))


def read_bits(dataset: Any, start: tuple[int, ...], count: tuple[int, ...], bits: np.dtype) -> Bits:
    """The box of `count` elements a axis at `start`, as raw bits in the byte order of the file (`stored_float`)."""
    if isinstance(dataset, ForeignArray):
        return dataset.read_bits(start, count)
    box = np.empty(count, bits)
    _select(dataset, start, count, dataset.id.read, box)
    return box


def write_bits(dataset: Any, start: tuple[int, ...], box: Bits) -> None:
    """Write a C-contiguous box of raw bits, in the byte order of the file."""
    _select(dataset, start, box.shape, dataset.id.write, box)


def _select(dataset: Any, start: tuple[int, ...], count: tuple[int, ...], transfer: Any, box: Bits) -> None:
    """Move one hyperslab, with the type of the file in memory too, so that HDF5 converts nothing."""
    space = dataset.id.get_space()
    space.select_hyperslab(start, count)
    transfer(h5py.h5s.create_simple(count), space, box, dataset.id.get_type())
