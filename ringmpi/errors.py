"""Every error that ringmpi raises on purpose, and what the command line ends with.

    RingMpiError                     catch-all for this package
    |- ConfigError   (ValueError)    an invalid option; found before MPI or a GPU is touched
    |- ShapeError    (ValueError)    arrays, shardings or masks that do not fit together
    |- MaskError     (ValueError)    a mask that cannot be resolved
    |- TopologyError (ValueError)    a description of a machine that cannot be understood
    |- BackendError  (RuntimeError)  a backend that is missing or refuses the work
    |- RingError     (RuntimeError)  ranks that disagree, a message of the wrong length, a late rank
    |- StorageError  (OSError)       a file that is missing, damaged or not ours
    |  `- NotRecordedError           an output without what was not asked for (analysis/opened.py)
    |- NoAnswerError                 a contender in a benchmark without an answer (bench/child.py)
    `- ExactnessError (RuntimeError) pairs attended differ from pairs asked: a fault of ringmpi, never of the input

A message says what was found, what is required and what to do.
"""

from __future__ import annotations

CHECK_FAILED = 1
USAGE_ERROR = 2
FAILED = 3
STOPPED = 4  # the state is saved: start again with --resume
INTERRUPTED = 130  # 128 + SIGINT, as shells count
TERMINATED = 143  # 128 + SIGTERM


class RingMpiError(Exception):
    """Base of all errors of this package.

    exit_code : what the command line ends with.
    on_all_ranks : every rank raises this error, so that none has to be ended by force.
    said_elsewhere : another rank tells the user, so that a message appears once.
    """

    exit_code = FAILED
    on_all_ranks = False
    said_elsewhere = False


class ConfigError(RingMpiError, ValueError):
    """An invalid option. `problems` lists all that were found, not only the first."""

    exit_code = USAGE_ERROR

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class ShapeError(RingMpiError, ValueError):
    """Arrays, shardings or masks that do not fit together."""

    exit_code = USAGE_ERROR


class MaskError(RingMpiError, ValueError):
    """A mask that cannot be resolved into disjoint slices."""

    exit_code = USAGE_ERROR


class TopologyError(RingMpiError, ValueError):
    """A description of a machine that cannot be understood, with file and line."""

    exit_code = USAGE_ERROR


class BackendError(RingMpiError, RuntimeError):
    """A backend that is missing, or that refuses the work it was given."""


class RingError(RingMpiError, RuntimeError):
    """Ranks that disagree, a message of the wrong length, a rank that is late."""


class StorageError(RingMpiError, OSError):
    """A file that is missing, damaged, or was written by something else."""


class ExactnessError(RingMpiError, RuntimeError):
    """The pairs that the kernels attended to are not the pairs that the mask asks for."""

    exit_code = CHECK_FAILED
