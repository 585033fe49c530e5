"""The guard of a pass whose state is kept: when to save, when to stop, and how all ranks do it together.

Rank 0 decides and gives orders (comm/orders.py): SAVE when it is time to, STOP when a rank has had a signal or a user
asks for it, END when all ranks have done their loops. A rank that is done goes on obeying until END, so an order finds
all of them. What an order asks for depends on what travels in the pass:

    keys and values   a rank's state is whole between any two kernel calls: save there and then. To STOP, the ranks
                      agree on the last step that any of them is in; up to it there are hops, but no more work
    gradients too     a sum is on its way between two ranks: all agree on the last step that any of them is in, work to
                      its end, let everything land, and save there

So no message is left under way when a pass stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from ringmpi.checkpoint.watch import Watch
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.orders import Notice, Order, Orders, Word
from ringmpi.core.itinerary import AT_HOME

log = logging.getLogger("ringmpi")
LOOK_SECONDS = 0.01  # between two looks at the mail; a kernel call takes 0.3-1 s
ENDING = "the end of a pass"


class Stop(NamedTuple):
    """Why a pass has stopped. signal: 0 for a user's request; failure: why its state could not be saved, or None."""

    signal: int
    failure: str | None


class PassGuard:
    """A Guard (passes/guard.py) over MPI, for one pass. Collective.

    Parameters
    ----------
    transport : MPIRing
    watch : Watch
        What this rank knows of signals, of requests and of time; it outlives the pass.
    save : function () -> str or None
        Saves the state of the pass; all ranks call it. None, or what failed: the same text on all ranks.
    steps : int
        Ring steps of the pass.
    anywhere : bool
        The state is whole between any two kernel calls; False: at the end of a step, once everything has landed.
    after : int
        The last step that runs before this one have done. Up to it there are hops, but no work, and what was saved of
        its end is in place: a state that is whole at the end of a step only is so from there on.

    Attributes
    ----------
    stopped : Stop or None
        The same on all ranks once `finish` has returned.
    """

    def __init__(
        self,
        transport: MPIRing,
        watch: Watch,
        save: Callable[[], str | None],
        *,
        steps: int,
        anywhere: bool,
        after: int = AT_HOME,
    ) -> None:
        self.stopped: Stop | None = None
        self._transport, self._watch, self._save = transport, watch, save
        self._step, self._last, self._anywhere, self._after = 0, steps - 1, anywhere, after
        self._until = self._last  # after an order: the step to whose end all ranks go
        self._pending: Word | None = None  # agreed on, to be obeyed at the end of that step
        self._next_look = watch.clock()
        self._orders = Orders(transport)
        self._at_work = set(range(transport.size))
        self._looping, self._ended = True, False

    def goes_on(self, step: int) -> bool:
        """Not past the step that all ranks have agreed to stop at."""
        if self.stopped and step > self._until:
            return False
        self._step = step
        return True

    def attends(self) -> bool:
        """Until the state has been saved to stop."""
        return self.stopped is None

    def look(self) -> bool:
        """Obey the next order, if there is one."""
        now = self._watch.clock()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        return self._serve()

    def settles(self) -> bool:
        """At the end of the step that was agreed on."""
        return self._pending is not None and self._step == self._until

    def settled(self) -> None:
        """Save, now that nothing is under way."""
        if self._pending:
            self._carry_out(self._pending)
            self._pending = None

    def finish(self) -> None:
        """Serve until all ranks are done. Collective.

        Raises
        ------
        RingError
            If a rank does not come.
        """
        self._step, self._looping, self._next_look = self._last, False, self._watch.clock()
        self._tell()
        self._orders.report(Notice.DONE)
        self._transport.await_first(_Until(lambda: self._ended, self._late), lambda: ENDING, look=self.look)
        self._at_work = set(range(1, self._transport.size))
        self._orders.report(Notice.LEFT)
        self._transport.await_first(_Until(self._left, self._late), lambda: ENDING)

    def _serve(self) -> bool:
        if self._pending or self._ended:
            return False
        self._tell()
        if self._transport.rank == 0:
            self._command()
        if order := self._orders.order():
            self._obey(order)
        return order is not None

    def _tell(self) -> None:
        if signal := self._watch.news():
            self._orders.report(Notice.WANTS_STOP, signal)

    def _command(self) -> None:
        """What rank 0 orders now, if anything."""
        self._read_reports()
        reason = self._watch.reason_to_stop() if self.stopped is None else None
        if reason is not None:
            self._orders.give(Order.STOP, reason)
        elif not self._at_work:
            self._orders.give(Order.END)
        elif self.stopped is None and self._watch.time_to_save():
            self._orders.give(Order.SAVE)

    def _read_reports(self) -> None:
        for kind, number, rank in self._orders.reports():
            if kind == Notice.WANTS_STOP:
                self._watch.hear(number)
            else:
                self._at_work.discard(rank)

    def _obey(self, order: Word) -> None:
        if order.kind == Order.END:
            self._ended = True
        elif self._anywhere:
            self._carry_out(order)
            if self.stopped:
                self._until = self._latest_step()
        else:
            self._until = self._latest_step()
            if self._looping:
                self._pending = order
            else:
                self._carry_out(order)

    def _latest_step(self) -> int:
        """The last step that any rank is in, or that was done before this run. Collective."""
        return int(max(self._after, *self._transport.exchange(self._step, "agreeing on a ring step")))

    def _carry_out(self, order: Word) -> None:
        """Save. Collective."""
        failure = self._save()
        self._watch.saved()
        if order.kind == Order.STOP:
            self.stopped = Stop(order.number, failure)
        elif failure and self._transport.rank == 0:  # all ranks know it
            log.warning("the run goes on without having been saved: %s", failure)

    def _left(self) -> bool:
        """Whether no message of this pass is under way; a rank may have wanted to stop when all was done already."""
        if self._transport.rank == 0:
            self._read_reports()
        return self._orders.closed()

    def _late(self) -> list[int]:
        """For whom rank 0 waits."""
        return sorted(self._at_work)


class _Until:
    """A flight in the eyes of who waits: it has landed when `true`, and waits for the ranks in `late`."""

    def __init__(self, true: Callable[[], bool], late: Callable[[], list[int]]) -> None:
        self.landed, self.waiting_for = true, late
