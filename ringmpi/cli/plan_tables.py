"""A plan as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringmpi.cli.plan_checkpoint import in_words
from ringmpi.cli.plan_columns import columns, in_seconds, si
from ringmpi.cli.plan_numbers import Report
from ringmpi.cli.plan_orders import orders_table
from ringmpi.cli.printing import grid, print_uncut
from ringmpi.numbers import counted, percent
from ringmpi.planner.advice import advise
from ringmpi.planner.backward import BackwardPlan, backward_hop
from ringmpi.planner.gpu_memory import GpuMemory
from ringmpi.planner.machines import Rates
from ringmpi.planner.memory import kv_cache, score_bytes
from ringmpi.planner.plan import Plan
from ringmpi.planner.trace import ranges_in_words, trace

SHOWN = 8  # ranks or steps
MEMORY_COLUMNS = ("term", "bytes", "formula")
BACKWARD_COLUMNS = ("travels", "comes behind", "sent", "memory", "time", "")


def show(report: Report, console: Console) -> None:
    """Print everything of one plan, or a table that compares several."""
    for line in (_options(report), *([_comparison(report)] if len(report.plans) > 1 else _details(report.plans[0]))):
        print_uncut(line, console) if line.show_header else console.print(line)
    if any(plan.forecasts for plan in report.plans):
        print_uncut(orders_table(report), console)
    console.print(_sizes(report))
    for sentence, ranks in _advice(report).items():
        who = (
            f"advice for {', '.join(ranks)} {'rank' if ranks == ['1'] else 'ranks'}"
            if len(report.plans) > 1
            else "advice"
        )
        console.print(f"[bold]{who}:[/bold] {escape(sentence)}")
    if len(report.plans) > 1:
        console.print("more: give --ranks one number for shards, memory by term, ring steps and who does what.")


def _advice(report: Report) -> dict[str, list[str]]:
    """Each sentence, and the rank counts that it is for."""
    found: dict[str, list[str]] = {}
    for plan in report.plans:
        for sentence in advise(plan, report.memory):
            found.setdefault(sentence, []).append(f"{plan.problem.size:,}")
    return found


def _options(report: Report) -> Table:
    problem, heads = report.plans[0].problem, report.plans[0].problem.heads
    batch = f"batch {heads.batch}, " if heads.batch > 1 else ""
    shardings = sorted({plan.problem.queries.name for plan in report.plans})
    asked = report.config.ring.sharding
    table = grid()
    table.add_row("input", f"{report.config.input.file} ({problem.dtype})")
    table.add_row(
        "attention",
        f"{batch}{heads.query_heads} query heads on {heads.key_heads} key heads, {problem.queries.length:,} queries, "
        f"{problem.keys.length:,} keys, head_dim {heads.head_dim}; mask {problem.mask}, "
        f"scale {problem.scoring.scale:g}",
    )
    table.add_row(
        "ring",
        f"sharding {' or '.join(shardings)}{f' (as {asked} chose)' if asked not in shardings else ''}, "
        f"schedule {problem.schedule_in_words}, backend {report.config.backend.name}",
    )
    if report.not_planned:
        table.add_row("not in it", report.not_planned)
    flops, pairs = report.plans[0].flops, problem.pairs_asked
    table.add_row("work", f"{pairs:,} pairs over all heads, {si(flops, 'flop')} on any number of ranks")
    measured = [plan for plan in report.plans if plan.rates is not None and plan.rates.source.startswith("measured")]
    for plan in measured or report.plans[-1:]:
        if plan.rates is not None:
            table.add_row("rates", _rates(plan, plan.rates))
    return table


def _rates(plan: Plan, rates: Rates) -> str:
    bandwidth = f", B {si(rates.bandwidth, 'B/s')}" if plan.problem.size > 1 else ""
    return f"F {si(rates.flops, 'flop/s')}{bandwidth} ({rates.source})"


def _details(plan: Plan) -> list[Table]:
    gpu, backward = plan.gpu, []
    if plan.backward is not None:
        backward = [_backward(plan.backward, on_gpus=gpu is not None)]
        backward += [_backward_memory(plan.backward)] if gpu is None else []
    memory = _memory(plan) if gpu is None else _gpu(plan, gpu)
    return [_shards(plan), memory, _steps(plan), _summary(plan), *backward, _trace(plan)]


def _shards(plan: Plan) -> Table:
    problem, loads = plan.problem, plan.tables.pairs.sum(1)
    table = columns("shards", "rank", "queries", "positions", "pairs, of the mean", "sends")
    mean = max(float(loads.mean()), 1.0)
    for rank in range(min(problem.size, SHOWN)):
        table.add_row(
            str(rank),
            f"{problem.queries.shard_length(rank):,}",
            ranges_in_words(problem.queries.shards[rank]),
            f"{loads[rank] / mean:.3f}",
            si(int(plan.tables.bytes_sent[rank]), "B"),
        )
    if problem.size > SHOWN:
        table.add_row(f"... {problem.size - 1:,}", "", "", "", "")
    return table


def _memory(plan: Plan) -> Table:
    problem, memory, heads = plan.problem, plan.memory, plan.problem.heads
    looked = "all ranks" if problem.size <= 16 else "the ranks looked at"
    title = f"memory of rank {plan.memory_rank}, the most of {looked}; the interpreter and MPI take about 100 MB more"
    table = columns(title, *MEMORY_COLUMNS)
    both, rows = heads.head_dim + heads.value_dim, problem.queries.shard_length(plan.memory_rank)
    item, slabs = problem.dtype.itemsize, heads.query_slabs
    slots = memory.slots // max(heads.batch * heads.key_heads * both * item, 1)
    lasting = "slots + partial + record" if memory.record else "slots + partial"
    for term, value, formula in (
        ("queries", memory.queries, f"{slabs} heads x {rows:,} queries x {heads.head_dim} x {item} B"),
        ("slots", memory.slots, f"{heads.batch * heads.key_heads} key heads x {slots:,} keys x {both} x {item} B"),
        ("partial", memory.partial, f"{slabs} heads x {rows:,} queries x ({heads.value_dim} + 2) wide numbers"),
        ("output", memory.output, "the cast output, where queries were; 0 where no cast is needed"),
        *([("record", memory.record, f"{slabs} heads x {rows:,} queries, sums and results")] if memory.record else []),
        *(
            [("kept", memory.kept, "keys, values, grad_output and copies, for the backward pass")]
            if memory.kept
            else []
        ),
        ("peak", memory.peak, f"{lasting} + {'all others' if memory.kept else 'larger of queries and output'}"),
    ):
        table.add_row(term, si(value, "B"), formula)
    return table


def _gpu(plan: Plan, forward: GpuMemory) -> Table:
    """A column a pass."""
    passes = {"forward": forward} | ({"backward": plan.backward.way.gpu} if plan.backward else {})
    table = columns("memory of a GPU; CUDA takes 300 to 600 MB more", "term", *passes, "formula")
    for term, what in (
        ("resident", "queries, and all else that stays; rows start at multiples of 16 B"),
        ("own", "what of its own travels"),
        ("slots", "what visits, and gradients that follow it"),
        ("sums", "row_max, row_sum, weighted_sum; gradients of what stays"),
        ("peak", "all of these: what --memory is compared with"),
        ("pinned", "of the host, for messages that go by it"),
    ):
        table.add_row(term, *(si(getattr(memory, term), "B") for memory in passes.values()), what)
    table.add_row("host", *(si(nbytes, "B") for nbytes in plan.host_bytes), "of the host: what was read, and results")
    return table


def _backward(plan: BackwardPlan, *, on_gpus: bool) -> Table:
    """Both ways round, and which one is taken."""
    table = columns("backward pass: bytes sent of all ranks, memory of the rank that has most", *BACKWARD_COLUMNS)
    both = plan.chosen == "both"
    for way, behind in ((plan.keys, "-" if both else "dK, dV"), (plan.queries, "-" if both else "dQ")):
        seconds = "-" if way.seconds is None else in_seconds(way.seconds)
        taken = "taken" if both or way.travel == plan.chosen else ""
        peak = way.gpu.peak if on_gpus else way.memory.peak
        row = si(int(way.bytes_sent.sum()), "B"), si(peak, "B"), seconds
        table.add_row(way.travel, behind, *row, taken)
    return table


def _backward_memory(plan: BackwardPlan) -> Table:
    memory = plan.way.memory
    table = columns(
        f"memory of rank {plan.way.memory_rank} in the backward pass, {plan.chosen} travel", *MEMORY_COLUMNS
    )
    for term, formula in (
        ("rows", "output and log_sum_exp, until they are written"),
        ("own", "what of its own travels"),
        ("slots", "what visits"),
        ("gradients", "slots of the gradients of what visits, as wide as sums are"),
        ("staying", "gradients of what stays, as wide as sums are"),
        ("inputs", "what else is of q, k, v, grad_output and delta, in the loop"),
        ("home", "gradients come home, and all cast where need be, after the loop"),
        ("peak", "all, but only the larger of inputs and home"),
    ):
        table.add_row(term, si(getattr(memory, term), "B"), formula)
    return table


def _steps(plan: Plan) -> Table:
    tables, times = plan.tables, plan.times
    names = ["ring step", "mean", "most per rank", "arrives", "most per rank", "pieces"]
    table = columns("ring steps", *names, *(["attend", "hop", "exposed"] if times else []))
    for step in range(min(tables.steps, SHOWN)):
        flops = tables.pairs[:, step] * float(plan.flops_a_pair)
        row = [
            str(step),
            si(flops.mean(), "flop"),
            si(flops.max(), "flop"),
            si(tables.bytes_due[:, step].sum(), "B"),
            si(tables.bytes_due[:, step].max(), "B"),
            f"{tables.pieces_due[step]:,}",
        ]
        table.add_row(
            *row,
            *(
                [in_seconds(times.attend[step]), in_seconds(times.hop[step]), in_seconds(times.exposed[step])]
                if times
                else []
            ),
        )
    if tables.steps > SHOWN:
        table.add_row(f"... {tables.steps - 1:,}")
    return table


def _summary(plan: Plan) -> Table:
    tables, table = plan.tables, grid()
    waiting = percent(round(plan.wasted, 3))
    table.add_row("balance", f"busiest rank over mean {tables.imbalance:.3f}: {waiting} of the ranks' time is waiting")
    table.add_row("bytes", f"{si(plan.bytes_sent, 'B')} of keys and values over all ranks; 0 of queries and output")
    if plan.times is not None:
        table.add_row("hiding", _hiding(plan))
        table.add_row(
            "time", f"{in_seconds(plan.times.total)} predicted for the attention; reading and writing are extra"
        )
    return table


def _hiding(plan: Plan) -> str:
    critical, times = plan.critical_block_length, plan.times
    if critical is None or times is None or plan.problem.size == 1:
        return "one rank: nothing travels"
    exposed = f"{in_seconds(times.exposed.sum())} exposed" if times.exposed.any() else "0 s exposed"
    return (
        f"a hop hides behind {critical:,.0f} queries per rank or more (density {plan.tables.density:.2f}); "
        f"here there are {plan.queries_a_rank:,}: {exposed}"
    )


def _trace(plan: Plan) -> Table:
    table = grid()
    for nth, line in enumerate(trace(plan, SHOWN)):
        table.add_row("" if nth else "who does what", line)
    return table


def _comparison(report: Report) -> Table:
    timed = any(plan.times for plan in report.plans)
    names = ("ranks", "sharding", "queries", "memory", "flops", "sent", "max/mean")
    title = "rank counts: queries and memory of the rank that has most; flops and bytes sent of all"
    table = columns(title, *names, *(("hides from", "exposed", "time", "speedup") if timed else ()))
    base = report.plans[0].times.total if report.plans[0].times else 0.0
    for plan in report.plans:
        row = [
            f"{plan.problem.size:,}",
            plan.problem.queries.name,
            f"{plan.queries_a_rank:,}",
            si(plan.peak, "B"),
            si(plan.flops, "flop"),
            si(plan.bytes_sent, "B"),
            f"{plan.tables.imbalance:.3f}",
        ]
        if plan.times is not None:
            hides = "-" if plan.problem.size == 1 else f"{plan.critical_block_length:,.0f}"
            speedup = f"{base / plan.times.total:.2f}" if plan.times.total else "-"
            row += [hides, in_seconds(plan.times.exposed.sum()), in_seconds(plan.times.total), speedup]
        table.add_row(*row)
    return table


def _sizes(report: Report) -> Table:
    plan = report.plans[-1]
    problem, table = plan.problem, grid()
    cache, hop = kv_cache(problem, report.layers), backward_hop(problem.heads, problem.dtype)
    fits = f"; {report.memory / 1e9:g} GB hold {cache.tokens_in(report.memory):,} positions" if (
        report.memory
    ) else ""  # fmt: skip
    table.add_row(
        "KV cache",
        f"{cache.token_bytes:,} B per position over {counted(report.layers, 'layer')}: {si(cache.total, 'B')} in all, "
        f"{si(cache.share, 'B')} on each of {counted(problem.size, 'rank')}{fits}",
    )
    table.add_row("checkpoint", in_words(report.checkpoint))
    table.add_row("scores", f"never stored: {si(score_bytes(problem), 'B')} per head if they were")
    table.add_row(
        "backward",
        f"a hop moves {hop.keys_travel:,} B per position if keys travel (forward "
        f"{hop.forward:,}), {hop.queries_travel:,} B if queries do",
    )
    return table
