"""From the mask of a configuration (config/masks.py, data) to the mask of the mathematics (core/masking.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ringmpi.config import masks
from ringmpi.core.masking import Mask

ReadVector: TypeAlias = Callable[[str], NDArray[Any]]


def build_mask(spec: masks.MaskSpec, read_vector: ReadVector) -> Mask:
    """The mask that a configuration asks for.

    Parameters
    ----------
    spec : MaskSpec
        RunConfig.attention.mask.
    read_vector : callable
        From the name of a dataset to its integers: [documents] for lengths, [n, 6] for slices.

    Returns
    -------
    Mask

    Raises
    ------
    MaskError
        If lengths or slices from a dataset are none.
    """
    build = partial(build_mask, read_vector=read_vector)
    match spec:
        case "full":
            return Mask.full()
        case "causal":
            return Mask.causal()
        case masks.CausalMask(causal=offset):
            return Mask.causal(offset)
        case masks.WindowMask(window=(left, right), offset=offset):
            return Mask.window(_bound(left), _bound(right), offset)
        case masks.DocumentMask(documents=documents):
            return _documents(documents, read_vector)
        case masks.KeyMask(keys=(start, stop)):
            return Mask.keys(start, stop)
        case masks.PrefixMask(prefix=n):
            return Mask.prefix(n)
        case masks.SinkMask(sinks=n):
            return Mask.sinks(n)
        case masks.AllMask(all=parts):
            return reduce(operator.and_, map(build, parts))
        case masks.AnyMask(any=parts):
            return reduce(operator.or_, map(build, parts))
        case masks.SliceMask(slices=dataset):
            return Mask.slices(read_vector(dataset))


def _bound(reach: masks.Reach) -> int | None:
    return None if reach == "all" else reach


def _documents(documents: masks.DocumentLengths, read_vector: ReadVector) -> Mask:
    def lengths(source: masks.Lengths) -> Any:
        return read_vector(source) if isinstance(source, str) else source

    keys = None if documents.key is None else lengths(documents.key)
    within = None if documents.within is None else build_mask(documents.within, read_vector)
    return Mask.documents(lengths(documents.query), keys, within)
