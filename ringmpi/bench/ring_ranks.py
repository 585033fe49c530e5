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
from ringmpi.passes.before_the_loop import settle_memory
from ringmpi.ring import Ring

T = TypeVar("T")
METERS = ("wall", "cpu", "waited", "bytes")


class Meter:
    """The transport of a ring, with the bytes that it sends and the seconds that its loops wait counted.

    What it does not meter it leaves to the transport itself. One per ring: passes note on it how their messages go.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def reset(self) -> None:
        """Count from zero."""
        self.bytes, self.waited = 0, 0.0

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
    meter = Meter(ring.transport)
    ring.transport = cast(Any, meter)
    cases = [_Attention(ring, meter, Case(**case), settings) for case in settings["cases"]]
    found: list[dict[str, dict[str, list[float]]]] = [{} for _ in cases]
    for nth in range(settings["rounds"] + 1):  # the first one warms up
        for case, samples in zip(cases, found, strict=True):
            for name, sample in case.passes(backward=settings["backward"]):
                if nth:
                    metered = samples.setdefault(name, {what: [] for what in METERS})
                    for what, value in sample.items():
                        metered[what].append(value)
    return {"cases": found, "bandwidth": [case.bandwidth() for case in cases]}


class _Attention:
    """A case, with this rank's shards of it."""

    def __init__(self, ring: Ring, meter: Meter, case: Case, settings: Found) -> None:
        self._ring, self._meter = ring, meter
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
        """Bytes per second of a hop of this rank's keys and values, alone, between such arrays; None on one rank."""
        if self._ring.size == 1:
            return None
        most = max(self._ring.transport.exchange(self._k.nbytes + self._v.nbytes, "timing hops"))
        nbytes = min(max(most, 1), LARGEST_HOP_BYTES)
        backend = self._ring.backend(self._options["backend"])
        settle_memory(self._ring.transport, backend)
        hop = seconds_of_hops(self._ring.transport, nbytes, backend.memory)
        return float(nbytes / max(self._ring.transport.exchange(hop, "timing hops")))

    def _metered(self, run: Callable[[], T]) -> tuple[T, dict[str, float]]:
        """Wall seconds and seconds waited of the rank where they are most; CPU seconds and bytes sent of all ranks."""
        self._ring.transport.exchange(None, "starting a round")
        self._meter.reset()
        wall, cpu = time.perf_counter(), time.process_time()
        result = run()
        sample = (time.perf_counter() - wall, time.process_time() - cpu, self._meter.waited, self._meter.bytes)
        walls, cpus, waits, sizes = zip(*self._ring.transport.exchange(sample, "ending a round"), strict=True)
        return result, {"wall": max(walls), "cpu": sum(cpus), "waited": max(waits), "bytes": float(sum(sizes))}


if __name__ == "__main__":
    answer(on_ranks)
