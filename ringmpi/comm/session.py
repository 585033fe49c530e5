"""One MPI job: start it, and end it on all ranks when one fails."""

from __future__ import annotations

import time
import traceback
from contextlib import ExitStack
from types import TracebackType
from typing import NoReturn

from mpi4py import MPI

from ringmpi.comm.last_words import last_words
from ringmpi.comm.signals import Terminated, terminated
from ringmpi.comm.world import world
from ringmpi.core.rank_name import rank_name
from ringmpi.errors import FAILED, INTERRUPTED, TERMINATED, RingMpiError

STAGGER_SECONDS = 0.5
LAUNCHER_SECONDS = 1.5  # one that ends the ranks since another has failed sends SIGKILL after a second
TIME_TO_SPEAK_SECONDS = 0.3


class Session:
    """The MPI job of this process. In its `with` block, an exception on one rank ends the job on all within seconds.

    mpi4py alone would let the other ranks wait for ever: they do not learn of it.

    Raises
    ------
    RingError
        If a launcher started several processes but each sees a job of its own.
    """

    def __init__(self) -> None:
        self.comm = world()
        self.node = MPI.Get_processor_name()
        self.who = rank_name(self.comm.rank, self.comm.rank, self.node)  # until the ring has placed this rank
        self.if_interrupted = ""  # what there is to say after "stopped from the keyboard"
        self._handlers = ExitStack()

    def __enter__(self) -> Session:
        """The job has started; SIGTERM is an error from here on, as Ctrl-C is."""
        self._handlers.enter_context(terminated())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all ranks if this one failed alone; let rank 0 speak if all did."""
        if not isinstance(error, Terminated):  # SIGTERM that comes now ends this process without a word
            self._handlers.close()
        if isinstance(error, RingMpiError) and error.on_all_ranks:
            error.said_elsewhere = self.comm.rank != 0
        elif error is not None:
            self.abort(error)

    def abort(self, error: BaseException) -> NoReturn:
        """Say what happened, once, with rank and node, and end the job."""
        time.sleep(min(self.comm.rank * STAGGER_SECONDS, 2.0))  # if all ranks fail, one message is enough
        if isinstance(error, Terminated):
            time.sleep(LAUNCHER_SECONDS)
        known = isinstance(error, RingMpiError | KeyboardInterrupt)
        where = f"ringmpi: error: {self.who}"
        text = (
            (str(error) or f"stopped from the keyboard{self.if_interrupted}")
            if known
            else "".join(traceback.format_exception(error)).rstrip()
        )
        last_words(f"{where}: {text}\nringmpi: ending all ranks\n")
        time.sleep(TIME_TO_SPEAK_SECONDS)  # a launcher that kills at once loses what it has not forwarded
        self.comm.Abort(_exit_code(error))
        raise SystemExit(FAILED)  # Abort does not return

    @staticmethod
    def versions() -> dict[str, str]:
        """The MPI library, as it names itself."""
        return {"MPI": " ".join(MPI.Get_library_version().strip("\0").split("\n")[0].split())}


def _exit_code(error: BaseException) -> int:
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, RingMpiError) else FAILED
