"""Timing links, on ranks that are threads and a network whose clock stands still until all of them wait."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from ringmpi.placing.link_rates import FIRST_BYTES, MOST_BYTES, time_links
from tests.topology.shared_links import SharedLinks

LATENCY = 1e-5
TIME_LIMIT_SECONDS = 30


class Clockwork:
    """Ranks that move messages over shared links. Time passes only while every rank waits for something."""

    def __init__(self, network, hosts):
        self.network, self.hosts = network, hosts
        self.now, self.most_at_once = 0.0, 0
        self._turn = threading.Condition()
        self._waiting = 0
        self._posted = {}  # (source, target): messages of one end that the other has not posted yet
        self._moving = []
        self._told = {}

    def post(self, source, target, nbytes, end):
        """One end of a message is ready; the second one to come starts it."""
        with self._turn:
            queue = self._posted.setdefault((source, target), [])
            if queue and queue[0]["end"] != end:
                message = queue.pop(0)
                message |= {"left": nbytes, "starts": self.now + LATENCY}
                self._moving.append(message)
                self.most_at_once = max(self.most_at_once, sum(m["left"] > 1 for m in self._moving))
                return message
            message = {"flow": (source, target), "end": end, "left": None, "landed": False}
            queue.append(message)
            return message

    def wait(self, holds):
        """Wait until `holds`; the last one to wait lets time pass."""
        with self._turn:
            while not holds():
                self._waiting += 1
                if self._waiting == len(self.hosts):
                    self._pass_time()
                    self._wake()
                else:
                    assert self._turn.wait(TIME_LIMIT_SECONDS), "no rank can go on"

    def _wake(self):
        """Let all look again what they wait for."""
        self._waiting = 0
        self._turn.notify_all()

    def _pass_time(self):
        """To the next message that starts or lands."""
        flowing = [m for m in self._moving if m["starts"] <= self.now]
        flows = {m["flow"] for m in flowing}
        ways = {flow: (self.hosts[flow[0]], self.hosts[flow[1]]) for flow in flows}
        rates = self.network.rates(list(ways.values()))
        ends = [self.now + m["left"] / rates[ways[m["flow"]]] for m in flowing]
        then = min([*ends, *(m["starts"] for m in self._moving if m["starts"] > self.now)], default=self.now)
        for message, end in zip(flowing, ends, strict=True):
            message["left"] -= rates[ways[message["flow"]]] * (then - self.now)
            message["landed"] = end <= then
        self._moving = [m for m in self._moving if not m["landed"]]
        self.now = then

    def gather(self, rank, number, item):
        with self._turn:
            self._told.setdefault(number, {})[rank] = item
            if len(self._told[number]) == len(self.hosts):
                self._wake()
        self.wait(lambda: len(self._told[number]) == len(self.hosts))
        return [self._told[number][other] for other in range(len(self.hosts))]


class ClockworkRank:
    """One rank of it, as much of a ring as timing needs."""

    def __init__(self, clockwork, rank):
        self._clockwork, self.rank, self.size = clockwork, rank, len(clockwork.hosts)
        self._exchanges = 0

    def called(self, rank):
        return f"rank {rank}"

    def start(self, sends, receives):
        ends = [self._clockwork.post(self.rank, m.peer, m.array.nbytes, "send") for m in sends]
        return ends + [self._clockwork.post(m.peer, self.rank, m.array.nbytes, "receive") for m in receives]

    def drive(self, loop, during=None):
        for messages in loop:
            self._clockwork.wait(partial(landed, messages))

    def exchange(self, item, during="", *, patience=1.0):
        self._exchanges += 1
        return self._clockwork.gather(self.rank, self._exchanges, item)

    def collect(self, item, during=""):
        everything = self.exchange(item)
        return [] if self.rank else everything


def landed(messages):
    return all(message["landed"] for message in messages)


def timed(network, hosts, firsts):
    """What rank 0 gets to know, and the clockwork."""
    clockwork = Clockwork(network, hosts)

    def work(rank):
        return time_links(ClockworkRank(clockwork, rank), firsts, clock=lambda: clockwork.now)

    with ThreadPoolExecutor(len(hosts)) as ranks:
        first, *others = ranks.map(work, range(len(hosts)), timeout=TIME_LIMIT_SECONDS)
    assert not any(others), "they need not know"
    return first, clockwork


def test_pairs_of_one_leaf_keep_their_rate_and_others_share_the_uplink():
    leaves = [["a0", "a1", "a2", "a3"], ["b0", "b1", "b2", "b3"]]
    hosts = ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    times, clockwork = timed(SharedLinks(leaves), hosts, list(range(8)))
    same = np.array([[a[0] == b[0] for a in hosts] for b in hosts]) & ~np.eye(8, dtype=bool)
    assert times.rates[same].min() > 0.95 * 25e6
    assert times.rates[~same].max() < 0.55 * 25e6
    assert np.allclose(times.latencies[same], LATENCY, rtol=0.05)
    assert clockwork.most_at_once == 8  # every host has a partner


@pytest.mark.parametrize(("rate", "nbytes"), [(25e6, FIRST_BYTES), (1e9, 2e7), (1e11, MOST_BYTES)])
def test_a_transfer_takes_long_enough_to_be_timed(rate, nbytes):
    network = SharedLinks([["a", "b"]], host_rate=rate)
    times, clockwork = timed(network, ["a", "b"], [0, 1])
    assert times.rates[0, 1] == pytest.approx(rate, rel=0.2 if rate > 1e10 else 0.05)
    assert 3 * nbytes / rate < clockwork.now < 5 * nbytes / rate + 1


def test_one_rank_a_host_times_and_the_others_wait():
    hosts = ["a", "b", "a", "b", "c", "c"]
    times, clockwork = timed(SharedLinks([["a", "b"], ["c"]], uplink=5e6), hosts, [0, 1, 4])
    assert times.rates.shape == (3, 3)
    assert times.rates[0, 2] == pytest.approx(5e6, rel=0.05)
    assert times.rates[0, 1] == pytest.approx(25e6, rel=0.05)
    assert clockwork.most_at_once == 2
