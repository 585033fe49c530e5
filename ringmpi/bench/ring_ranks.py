"""What each rank does for `ringmpi bench ring`: attention over the ring by the public functions, timed and metered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import ringmpi
from ringmpi.bench.job import Found, answer
from ringmpi.bench.measure import LARGEST_HOP_BYTES, seconds_of_hops
from ringmpi.bench.peers.own import dtype_of, mask_of
from ringmpi.bench.questions import Case
from ringmpi.comm.protocol import Flight, Message
from ringmpi.core.sharding import shardings_by_name
from ringmpi.ring import Ring

T = TypeVar("T")
METERS = ("wall", "cpu", "waited", "bytes")


class Meter:
    """The transport of a ring, with the bytes that it sends and the seconds that its loops wait counted.

    What it does not meter it leaves to the transport itself.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.bytes, self.waited = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def start(self, sends: list[Message], receives: list[Message]) -> Flight:
        """Count what is sent."""
        self.bytes += sum(message.array.nbytes for message in sends)
        return cast(Flight, self._transport.start(sends, receives))

    def drive(self, loop: Iterator[Flight], *during: Callable[[], str]) -> None:
        """Time the waits: a loop yields where it cannot go on."""
        self._transport.drive(self._timed(loop), *during)

    def _timed(self, loop: Iterator[Flight]) -> Iterator[Flight]:
        for flight in loop:
            start = time.perf_counter()
            yield flight
            self.waited += time.perf_counter() - start


def on_ranks(ring: Ring, settings: Found) -> Found:
    """Each case in rounds, forward and, where wanted, backward -> samples by case and pass. Collective."""
    cases = [_Attention(ring, Case(**case), settings) for case in settings["cases"]]
    found: list[dict[str, dict[str, list[float]]]] = [{} for _ in cases]
    for nth in range(settings["rounds"] + 1):  # the first one warms up
        for case, samples in zip(cases, found, strict=True):
            for name, sample in case.passes(backward=settings["backward"]):
                if nth:
                    meters = samples.setdefault(name, {meter: [] for meter in METERS})
                    for meter, value in sample.items():
                        meters[meter].append(value)
    return {"cases": found, "bandwidth": [case.bandwidth() for case in cases]}


class _Attention:
    """A case, with this rank's shards of it."""

    def __init__(self, ring: Ring, case: Case, settings: Found) -> None:
        self._ring = ring
        question = case.question()
        mask = mask_of(case.mask, case.length, case.length)
        self._sharding, _ = shardings_by_name(settings["sharding"], mask, case.length, case.length, ring.size)
        self._q, self._k, self._v, self._upstream = (
            self._sharding.take(array.astype(dtype_of(case.dtype)), ring)
            for array in (question.q, question.k, question.v, question.grad_output)
        )
        self._options: dict[str, Any] = {
            "ring": ring,
            "sharding": self._sharding,
            "mask": mask,
            "backend": settings["backend"],
        }

    def passes(self, *, backward: bool) -> Iterator[tuple[str, dict[str, float]]]:
        """The name of a pass and its sample."""
        out, sample = self._metered(lambda: ringmpi.ring_attention(self._q, self._k, self._v, **self._options))
        yield "forward", sample
        if backward:
            _, sample = self._metered(
                lambda: ringmpi.ring_attention_backward(self._upstream, self._q, self._k, self._v, out, **self._options)
            )
            yield "backward", sample

    def bandwidth(self) -> float | None:
        """Bytes per second of a hop of this rank's keys and values, alone; None on one rank."""
        if self._ring.size == 1:
            return None
        most = max(self._ring.transport.exchange(self._k.nbytes + self._v.nbytes, "timing hops"))
        nbytes = min(max(most, 1), LARGEST_HOP_BYTES)
        hop = seconds_of_hops(self._ring.transport, nbytes)
        return float(nbytes / max(self._ring.transport.exchange(hop, "timing hops")))

    def _metered(self, run: Callable[[], T]) -> tuple[T, dict[str, float]]:
        """Wall seconds and seconds waited of the rank where they are most; CPU seconds and bytes sent of all ranks."""
        transport = self._ring.transport
        meter = Meter(transport)
        transport.exchange(None, "starting a round")
        self._ring.transport = cast(Any, meter)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            result = run()
        finally:
            self._ring.transport = transport
        sample = (time.perf_counter() - wall, time.process_time() - cpu, meter.waited, meter.bytes)
        walls, cpus, waits, sizes = zip(*transport.exchange(sample, "ending a round"), strict=True)
        return result, {"wall": max(walls), "cpu": sum(cpus), "waited": max(waits), "bytes": float(sum(sizes))}


if __name__ == "__main__":
    answer(on_ranks)
