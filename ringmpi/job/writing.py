"""What a run leaves behind: a shard file per rank, then one output file with the account of the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ringmpi.asking.question import Question, check_unchanged
from ringmpi.comm.agreement import LONG_WORK
from ringmpi.comm.deadline import deadline
from ringmpi.config import RunConfig
from ringmpi.core.record import QUANTITIES
from ringmpi.job.computing import Computed
from ringmpi.ring import Ring
from ringmpi.storage.account import Account
from ringmpi.storage.files import check_destination
from ringmpi.storage.layout import GRAD_KEY, GRAD_QUERY, GRAD_VALUE, LOG_SUM_EXP, OUTPUT
from ringmpi.storage.lock import only_run
from ringmpi.storage.merge import merge_bytes, merge_shards
from ringmpi.storage.parallel import check_parallel, complete_output, write_together
from ringmpi.storage.rank_state import StateArray
from ringmpi.storage.record_layout import RECORD
from ringmpi.storage.shards import remove_shards, shard_path, write_shard
from ringmpi.storage.virtual import link_shards, remove_parts

log = logging.getLogger("ringmpi")


def claim_output(config: RunConfig, question: Question, overwrites: bool, held: ExitStack) -> None:
    """Refuse what could not be written in the end; hold the output for this run, and remove shard files of others."""
    if config.output.writer == "parallel":
        check_parallel()
    once = config.output.layout == "virtual" or config.output.writer == "parallel"  # no shard files beside a merged one
    needed = merge_bytes(question.shapes, question.problem.dtype, copies=1 if once else 2)
    needed += sum(math.prod(shape) * dtype.itemsize for shape, dtype in question.late_shapes.values())
    check_destination(config.output.file, force=overwrites, bytes_needed=needed)
    held.enter_context(only_run(config.output.file))
    remove_shards(config.output.file)


def write_rank(config: RunConfig, question: Question, ring: Ring, computed: Computed) -> None:
    """Write the shard file of this rank, or its rows of the output. Collective where all ranks write together."""
    problem = question.problem
    with computed.timeline.writing():
        if config.output.writer == "parallel":
            with deadline(LONG_WORK * ring.transport.timeout, "writing the output with all ranks"):
                rows = _rows(problem.queries.shards[ring.rank], computed)
                write_together(config.output.file, ring.transport.cart, rows, shapes=question.shapes)
            return
        write_shard(
            shard_path(config.output.file, ring.rank),
            ranges=problem.queries.shards[ring.rank],
            output=computed.rows.output,
            log_sum_exp=computed.rows.log_sum_exp,
            record=_record_arrays(computed),
            gradients=computed.backward.gradients if computed.backward else None,
        )


def _rows(ranges: Sequence[range], computed: Computed) -> dict[str, StateArray]:
    """All arrays of this rank, as they are called in the output."""
    of_queries = {OUTPUT: computed.rows.output, LOG_SUM_EXP: computed.rows.log_sum_exp, **_record_arrays(computed)}
    arrays = {name: StateArray(ranges, array) for name, array in of_queries.items()}
    if computed.backward is not None:
        gradients = computed.backward.gradients
        arrays[GRAD_QUERY] = StateArray(ranges, gradients.query)
        arrays[GRAD_KEY] = StateArray(gradients.key_ranges, gradients.key)
        arrays[GRAD_VALUE] = StateArray(gradients.key_ranges, gradients.value)
    return arrays


def _record_arrays(computed: Computed) -> dict[str, Any]:
    """What the rows of this rank say of their weights, as it is called in the output."""
    record = computed.rows.record
    return {} if record is None else {f"{RECORD}/{name}": getattr(record, name) for name in QUANTITIES}


def finish_output(config: RunConfig, account: Account, question: Question, overwrites: bool) -> None:
    """Make one output file of what all ranks have written. Called by one rank.

    Raises
    ------
    StorageError
        If it cannot be written, or the input is no longer the one that was read.
    """
    check_unchanged(config, account.provenance.input_identity)
    if config.output.writer == "parallel":
        shardings = {OUTPUT: question.problem.queries, GRAD_KEY: question.problem.keys}
        positions = {name: sharding.shards for name, sharding in shardings.items() if name in question.shapes}
        complete_output(config.output.file, question.shapes, positions, account)
    else:
        parts = [shard_path(config.output.file, rank) for rank in range(len(account.provenance.hosts))]
        finish = link_shards if config.output.layout == "virtual" else merge_shards
        finish(parts, config.output.file, shapes=question.shapes, account=account, force=overwrites)
    if config.output.layout == "merged":
        remove_parts(config.output.file)
    log.info("wrote %s", config.output.file)
