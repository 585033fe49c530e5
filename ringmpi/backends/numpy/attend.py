"""The NumPy backend: for each tile two products by BLAS, and the softmax in place between them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ringmpi.backends.base import CALL_SECONDS, Poll
from ringmpi.backends.memory import HOST, Memory
from ringmpi.backends.numpy.backward import BackwardCall
from ringmpi.backends.numpy.blas import blas_cores, one_blas_thread
from ringmpi.backends.numpy.forward import ForwardCall
from ringmpi.backends.numpy.pace import PERIOD_SECONDS, paced
from ringmpi.backends.numpy.scores import Scratch
from ringmpi.backends.numpy.tiles import Tile, key_tiles
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Array, Partial, carried_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape, head_shape
from ringmpi.core.work import Work

PRODUCT_FLOPS_PER_SECOND = 80e9  # in float32; float64 takes twice as long, as its exponentials do
SOFTMAX_SECONDS_PER_SCORE = 1.5e-9


def open_backend(*, threads: int, local_rank: int) -> NumpyBackend:
    """The backend on so many cores; which of the ranks on its node this one is has no meaning here."""
    return NumpyBackend(threads=threads)


class NumpyBackend:
    """Block attention on CPU cores with NumPy; backends/base.py has the contract.

    Key heads are dealt to threads, each with its own scratch (a few arrays of about tile_rows x tile_keys numbers,
    whatever the lengths) and with BLAS held to one thread: a BLAS that splits the small products of a tile over threads
    of its own gains nothing, and on a busy machine they wait for each other (measured: 20 times slower). The number of
    threads changes no bit.

    Parameters
    ----------
    tile_rows, tile_keys : int
        Largest tile. 256 x 1024 float32 scores are 1 MiB and stay in a second-level cache.
    threads : int
        At most as many are used as there are key heads.
    """

    name: ClassVar[str] = "numpy"
    memory: ClassVar[Memory] = HOST
    reproducible: ClassVar[bool] = False  # BLAS takes other ways for other numbers of rows
    records: ClassVar[bool] = True

    def __init__(self, *, tile_rows: int = 256, tile_keys: int = 1024, threads: int = 1) -> None:
        self.tile_rows = tile_rows
        self.tile_keys = tile_keys
        self.arithmetic = f"NumPy {np.__version__} {blas_cores()}"
        self._scratch = [Scratch() for _ in range(threads)]
        self._others = ThreadPoolExecutor(max(threads - 1, 1))  # starts no thread before it has work

    def call_budget(self, heads: HeadShape, dtype: np.dtype) -> int:
        """Rows x keys that take one core about 0.3 s over all heads."""
        flops, numbers = 2 * (heads.head_dim + heads.value_dim), accumulate_dtype(dtype).itemsize / 4
        seconds = heads.query_slabs * numbers * (flops / PRODUCT_FLOPS_PER_SECOND + SOFTMAX_SECONDS_PER_SCORE)
        return max(int(CALL_SECONDS / seconds), 1)

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        work: Work,
        scoring: Scoring,
        *,
        finite: bool = True,
        into: Partial | None = None,
        poll: Poll | None = None,
    ) -> tuple[Partial, int]:
        """Attend queries to the keys that `work` names: see `ringmpi.backends.base.Backend.attend`."""
        heads = head_shape(q.shape, k.shape, v.shape)
        carried = carried_partial(into, heads, q.shape[2], q.dtype)
        return carried, self._run(ForwardCall(heads, q, k, v, scoring, finite, carried), work, poll)

    def attend_backward(
        self,
        q: Array,
        k: Array,
        v: Array,
        saved: Saved,
        work: Work,
        scoring: Scoring,
        *,
        into: Gradients,
        finite: bool = True,
        poll: Poll | None = None,
    ) -> int:
        """Add the gradients of what `work` names: see `ringmpi.backends.base.Backend.attend_backward`."""
        heads = head_shape(q.shape, k.shape, v.shape)
        return self._run(BackwardCall(heads, q, k, v, scoring, finite, saved, into), work, poll)

    def _run(self, call: ForwardCall | BackwardCall, work: Work, poll: Poll | None) -> int:
        """All tiles of `work`; the pairs that they attended to. This thread works on a share too, and alone polls."""
        edges = np.linspace(0, call.heads.key_heads, min(len(self._scratch), call.heads.key_heads) + 1).astype(int)
        mine, *others = [slice(start, stop) for start, stop in pairwise(edges.tolist())]
        often = paced(poll)
        with one_blas_thread(), self._shared(call, work, others) as running:
            attended = self._run_share(call, work, mine, self._scratch[0], often)
            while wait(running, PERIOD_SECONDS).not_done:
                often()
            return attended + sum(share.result() for share in running)

    @contextmanager
    def _shared(self, call: ForwardCall | BackwardCall, work: Work, shares: list[slice]) -> Iterator[list[Future[int]]]:
        """Shares that other threads work on; at the end, whatever happens, they are done."""
        running = [
            self._others.submit(self._run_share, call, work, share, scratch, paced(None))
            for share, scratch in zip(shares, self._scratch[1:], strict=False)
        ]
        try:
            yield running
        finally:
            wait(running)

    def _run_share(
        self, call: ForwardCall | BackwardCall, work: Work, key_heads: slice, scratch: Scratch, poll: Poll
    ) -> int:
        """The tiles of some key heads, in this thread."""
        attended = 0
        # Input may hold inf, or overflow in a product: the result says so, a warning would add nothing.
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for keys, tiles in key_tiles(work, self.tile_rows, self.tile_keys):
                for part in call.parts(self._heads_at_once(call.heads, keys, tiles), key_heads):
                    key_tile = call.key_tile(part, keys, scratch)
                    for tile in tiles:
                        attended += key_tile.attend(tile, call.scoring, scratch)
                        poll()
        return attended

    def _heads_at_once(self, heads: HeadShape, keys: slice, tiles: list[Tile]) -> int:
        """Query heads whose scores, and K and V, take no more scratch than one full tile."""
        tallest = max(tile.rows.stop - tile.rows.start for tile in tiles)
        row = max(tallest, heads.head_dim + heads.value_dim)
        return int(max(self.tile_rows * self.tile_keys // (row * (keys.stop - keys.start)), 1))
