"""Transports that are worse than any network: every message comes as late as it may, or when chance will have it."""

import time

import numpy as np

from ringmpi.comm.protocol import Message


class Late:
    """A transport that delivers as late as it may: what arrives is copied when the loop has to wait for it."""

    def __init__(self, transport):
        self._transport = transport
        self.rank, self.size, self.exchange = transport.rank, transport.size, transport.exchange
        self.called = transport.called

    def start(self, sends, receives):
        private = [Message(m.peer, m.tag, np.empty_like(m.array)) for m in receives]
        for message in receives:
            message.array.view(np.uint8)[...] = 255  # NaN: reading too early shows
        return LateFlight(self._transport.start(sends, private), private, receives)

    def drive(self, loop, during=lambda: "the ring"):
        def delivering():
            for flight in loop:
                yield flight
                flight.deliver()

        self._transport.drive(delivering(), during)


class LateFlight:
    def __init__(self, flight, private, wanted):
        self._flight, self._private, self._wanted = flight, private, wanted

    def landed(self):
        return self._flight.landed()

    def waiting_for(self):
        return self._flight.waiting_for()

    def deliver(self):
        for source, target in zip(self._private, self._wanted, strict=True):
            target.array[...] = source.array


class Unpunctual:
    """A transport with pauses of random length before what is posted and before each look at what has landed."""

    def __init__(self, transport, seed, longest):
        self._transport = transport
        self._rng, self._longest = np.random.default_rng((seed, transport.rank)), longest
        self.rank, self.size, self.exchange = transport.rank, transport.size, transport.exchange
        self.called = transport.called

    def start(self, sends, receives):
        self._pause()
        return self._transport.start(sends, receives)

    def drive(self, loop, during=lambda: "the ring"):
        def pausing():
            for flight in loop:
                self._pause()
                yield flight

        self._transport.drive(pausing(), during)

    def _pause(self):
        time.sleep(self._rng.random() * self._longest)
