"""`ringmpi plan`: what a run will need and take, before there is one. Needs no MPI."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringmpi.cli.dtypes import DTYPES
from ringmpi.cli.plan_checkpoint import checkpoint_of, checkpoint_options
from ringmpi.cli.plan_topology import Site, site_of, topology_options
from ringmpi.cli.streams import shown

if TYPE_CHECKING:
    from ringmpi.config import RunConfig
    from ringmpi.core.problem import Problem
    from ringmpi.planner.machines import Rates
    from ringmpi.planner.plan import Plan

COMPARED = "1,2,4,8"
MACHINES = ("a100-nvlink", "a100-hdr", "a100-edr", "h100-nvlink", "h100-ndr", "mi300x-fabric")
ONLY_SIZES = '[input]\nfile = "(none)"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "(no output)"\n'


class Amount(click.ParamType[float]):
    """A number above 0, also as 80e9."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or say what is wrong."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number; write for example 80e9.", param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"{value} must be above 0 and finite.", param, ctx)
        return number


def _counts(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Whole numbers from 1, with commas between."""
    if text is None:
        return None
    numbers = [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")]
    if min(numbers) < 1 or max(numbers) > 8192:
        raise click.BadParameter(f"{text!r}: expected whole numbers from 1 to 8192, as in 8 or 1,2,4,8.")
    return numbers


def _heads(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, int]:
    """Query heads and key heads: "32/8", or one number for both."""
    words = text.split("/")
    if not all(word.isdecimal() and 0 < int(word) <= 1 << 20 for word in words) or len(words) > 2:
        raise click.BadParameter(f"{text!r}: expected QUERY_HEADS/KEY_HEADS, as in 32/8, or one number for both.")
    return int(words[0]), int(words[-1])


AMOUNT = Amount()
LONGEST = 1 << 37


@click.command("plan", short_help="Predict what a run will need and how long it takes. Needs no MPI.")
@click.argument("run_toml", type=click.Path(path_type=Path), required=False)
@click.option(
    "--ranks",
    callback=_counts,
    metavar="N[,N...]",
    help=f"How many ranks; several are compared in a table. Default: {COMPARED}, or all that the topology has.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override what RUN.toml says, as in `ringmpi run`. May be given more than once.",
)
@click.option("--machine", type=click.Choice(MACHINES), help="Take F and B from a data sheet.")
@click.option("--flops", type=AMOUNT, metavar="F", help="Compute rate of a rank, flops per second: 600e12.")
@click.option("--bandwidth", type=AMOUNT, metavar="B", help="Transfer rate of a hop, bytes per second: 450e9.")
@click.option(
    "--measure", is_flag=True, help="Time F and B here, with mpirun (or what MPIRUN says) and all ranks at work."
)
@topology_options
@checkpoint_options(AMOUNT)
@click.option("--memory", type=AMOUNT, metavar="BYTES", help="Memory of a rank for arrays: 80e9.")
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Layers of the model, for the size of its KV cache.",
)
@click.option("--length", type=AMOUNT, metavar="N", help="Plan this many positions; no input file is read.")
@click.option(
    "--heads",
    default="32/8",
    show_default=True,
    callback=_heads,
    metavar="Q/K",
    help="With --length: query and key heads.",
)
@click.option("--head-dim", type=click.IntRange(min=1), default=128, show_default=True, help="With --length.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="With --length.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw how busy each rank is in each step (png, svg, pdf); of the last of --ranks.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the plans as one JSON object to stdout.")
def plan_command(run_toml: Path | None, **options: Any) -> int:
    """Predict what a run of RUN.toml needs and how long it takes: shards, memory, flops, bytes, balance, times, advice.

    Only shapes and small vectors of the input are read. Without an input, --length and related options say how
    large it is; then RUN.toml may be left out, and --set says the rest.

    \b
    Example:
      ringmpi plan run.toml --ranks 8 --machine h100-nvlink
      ringmpi plan run.toml --ranks 1,2,4 --measure
      ringmpi plan --length 1e6 --heads 32/8 --ranks 16 --set attention.mask=causal --memory 80e9
      ringmpi plan --length 1e6 --machine h100-ndr --topology topology.conf --hosts 'n[01-64]'
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.cli import plan_numbers, plan_tables
    from ringmpi.cli.plan_topology import simulated
    from ringmpi.cli.printing import print_results
    from ringmpi.planner.load_map import draw_load_map

    config = _configuration(run_toml, options["overrides"], sized=options["length"] is not None)
    site = site_of(options)
    plans = _plans(config, site, options)
    comparisons = simulated(plans[-1], options)
    checkpoint = checkpoint_of(plans[-1], options)
    report = plan_numbers.Report(config, plans, options["memory"], options["layers"], checkpoint, comparisons)
    if options["plot"]:
        draw_load_map(plans[-1], options["plot"])
    with shown():
        if options["as_json"]:
            click.echo(json.dumps(plan_numbers.as_dict(report), allow_nan=False))
        else:
            print_results(partial(plan_tables.show, report), markup=True)
    return 0


def _plans(config: RunConfig, site: Site | None, options: dict[str, Any]) -> tuple[Plan, ...]:
    """One for each rank count."""
    from ringmpi.planner.balance import resharded
    from ringmpi.planner.plan import make_plan

    sizes = options["ranks"] or ([len(site.hosts)] if site else [int(word) for word in COMPARED.split(",")])
    one, travel = _problem(config, options), config.backward.travel if config.backward else None
    plans = []
    for size in sizes:
        problem = resharded(one, config.ring.sharding, size)
        rates = _rates(problem, config, options)
        network = site.network(size, rates) if site else None
        plans.append(make_plan(problem, rates, travel, network, on_gpus=config.backend.name == "cuda"))
    return tuple(plans)


def _configuration(run_toml: Path | None, overrides: tuple[str, ...], *, sized: bool) -> RunConfig:
    from ringmpi.config import load_config, parse_config

    if run_toml is None:
        if not sized:
            raise click.UsageError("nothing to plan: name a RUN.toml, or give --length.")
        return parse_config(ONLY_SIZES, "--length", overrides)
    return load_config(run_toml, overrides)


def _problem(config: RunConfig, options: dict[str, Any]) -> Problem:
    """The problem on one rank: from the input file, or as large as the options say."""
    from ringmpi.asking.question import problem_of, question_of, sized_arrays
    from ringmpi.errors import ConfigError
    from ringmpi.storage.inputs import Inputs

    def read_vector(name: str) -> Any:
        if not Path(config.input.file).exists():
            raise ConfigError(
                f"dataset {name!r} is needed, but there is no input file {config.input.file} to read it from."
            )
        with Inputs(config.input.file) as inputs:
            return inputs.read_vector(name)

    if options["length"] is not None:
        if options["length"] > LONGEST or options["head_dim"] > LONGEST:
            raise ConfigError(
                f"--length and --head-dim can be {LONGEST:,} at most; a plan for more would not be exact."
            )
        length = int(options["length"])
        arrays = sized_arrays(options["heads"], length, options["head_dim"], options["dtype"])
        return problem_of(config, arrays, read_vector)
    if not Path(config.input.file).exists():
        raise ConfigError(
            f"input {config.input.file}: no such file; its shapes are needed. Name one in RUN.toml, or give --length, "
            f"--heads, --head-dim and --dtype."
        )
    with Inputs(config.input.file) as inputs:
        return question_of(config, inputs).problem


def _rates(problem: Problem, config: RunConfig, options: dict[str, Any]) -> Rates | None:
    """F and B, as measured, given or named; what is given wins."""
    from dataclasses import replace

    from ringmpi.errors import ConfigError
    from ringmpi.planner.machines import MACHINES, Rates

    flops, bandwidth = options["flops"], options["bandwidth"]
    rates = MACHINES[options["machine"]] if options["machine"] else None
    if options["measure"]:
        from ringmpi.bench.measure import measure_rates

        rates = measure_rates(problem, config.backend.name)
    if rates is None:
        if (flops is None) != (bandwidth is None):
            raise ConfigError("--flops and --bandwidth belong together: give both, or --machine, or --measure.")
        return Rates(flops, bandwidth, "as given") if flops else None
    given = {name: value for name, value in (("flops", flops), ("bandwidth", bandwidth)) if value}
    return replace(rates, **given, source=f"{rates.source}; {' and '.join(given)} as given") if given else rates
