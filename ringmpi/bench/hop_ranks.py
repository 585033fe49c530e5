"""What each rank does for `ringmpi bench hop`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ringmpi.backends.base import Backend, Poll
from ringmpi.bench.job import Found, answer
from ringmpi.bench.measure import hop_arrays, start_hop
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.protocol import Flight
from ringmpi.core.masking import Mask
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import meet
from ringmpi.passes.before_the_loop import settle_memory
from ringmpi.ring import Ring

SMALL_BYTES = 1 << 16  # up to this many, a sample is the mean of many hops
SMALL_HOPS = 100
LEAST_BESIDE = 1 << 20
ROWS, DIM, HEADS = 512, 64, 2


def on_ranks(ring: Ring, settings: Found) -> Found:
    """Hops alone, then beside kernels, in rounds -> seconds and shares of each round. Collective."""
    sizes, rounds = settings["sizes"], range(settings["rounds"])
    backend = ring.backend(settings["backend"])
    settle_memory(ring.transport, backend)
    hops = {nbytes: _Hop(ring, backend, nbytes) for nbytes in sizes}
    for nbytes in sizes:
        hops[nbytes].alone()
    alone: list[tuple[int, list[float]]] = [(nbytes, []) for nbytes in sizes]
    for _ in rounds:
        for nbytes, seconds in alone:
            seconds.append(hops[nbytes].alone())
    beside: list[tuple[int, str, list[float]]] = []
    kernel = _Kernel(ring, backend)
    for nbytes, seconds in alone:
        if nbytes >= LEAST_BESIDE:
            hop = float(np.median(seconds))
            compute = kernel.lasting(max(2 * hop, 0.01))
            shares: list[tuple[int, str, list[float]]] = [(nbytes, words, []) for words in ("polling", "not polling")]
            for _ in rounds:
                for _, words, hidden in shares:
                    waited = hops[nbytes].waited_beside(compute, polling=words == "polling")
                    hidden.append(max(1 - waited / hop, 0.0))
            beside += shares
    return {"alone": alone, "beside": beside}


class _Hop:
    """A hop of so many bytes, between arrays that lie where those of the backend do."""

    def __init__(self, ring: Ring, backend: Backend, nbytes: int) -> None:
        self._ring, self._nbytes = ring, nbytes
        self._arrays = hop_arrays(backend.memory, nbytes)
        self._between = reaching(backend.memory.ferry, ring.transport)

    def alone(self) -> float:
        """Seconds of it, on the rank where it takes longest."""
        times = SMALL_HOPS if self._nbytes <= SMALL_BYTES else 1
        _together(self._ring)
        start = time.perf_counter()
        for _ in range(times):
            self._ring.transport.drive(iter([self._start()]))
        return _slowest(self._ring, (time.perf_counter() - start) / times)

    def waited_beside(self, compute: Callable[[Poll | None], None], *, polling: bool) -> float:
        """Seconds that a rank has to wait for it after a kernel that has run since it started."""
        _together(self._ring)
        flight = self._start()

        def poll() -> None:
            flight.landed()

        compute(poll if polling else None)
        start = time.perf_counter()
        self._ring.transport.drive(iter([flight]))
        return _slowest(self._ring, time.perf_counter() - start)

    def _start(self) -> Flight:
        return start_hop(self._between, *self._arrays)


def _together(ring: Ring) -> None:
    """All ranks go on at about the same time."""
    ring.transport.exchange(None, "starting a hop")
    ring.transport.drive(iter([start_hop(ring.transport, *np.ones((2, 1), np.uint8))]))


def _slowest(ring: Ring, seconds: float) -> float:
    return float(max(ring.transport.exchange(seconds, "timing hops")))


class _Kernel:
    """Attention of some rows to as many keys as are wanted."""

    def __init__(self, ring: Ring, backend: Backend) -> None:
        self._ring, self._backend = ring, backend
        q = np.random.default_rng(ring.rank).standard_normal((1, HEADS, ROWS, DIM), np.float32)
        self._q = self._backend.memory.put(q, aligned=True)

    def lasting(self, seconds: float) -> Callable[[Poll | None], None]:
        """A kernel call that takes about so long, on the fastest rank."""
        keys = 1 << 10
        while True:
            compute = self._attending(keys)
            start = time.perf_counter()
            compute(None)
            took = min(self._ring.transport.exchange(time.perf_counter() - start, "timing kernels"))
            if took >= seconds or keys >= 1 << 22:
                return compute
            keys = min(int(keys * max(1.2 * seconds / took, 1.2)), 1 << 22) if keys > 1 << 10 else keys * 4

    def _attending(self, keys: int) -> Callable[[Poll | None], None]:
        numbers = np.random.default_rng(0).standard_normal((2, 1, HEADS, keys, DIM), np.float32)
        k, v = (self._backend.memory.put(array, aligned=True) for array in numbers)
        work = meet(Mask.full().resolve(ROWS, keys), range(ROWS), range(keys))
        scoring = Scoring(scale=DIM**-0.5)

        def compute(poll: Poll | None) -> None:
            self._backend.attend(self._q, k, v, work, scoring, poll=poll)

        return compute


if __name__ == "__main__":
    answer(on_ranks)
