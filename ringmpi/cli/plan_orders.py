"""The table of a plan on a topology: what the order of the ranks costs."""

from __future__ import annotations

from rich.table import Table

from ringmpi.cli.plan_columns import columns, in_seconds, si
from ringmpi.cli.plan_numbers import Report
from ringmpi.numbers import percent

COLUMNS = ("ranks", "order", "blocks", "links", "slowest", "exposed", "time", "at work")


def orders_table(report: Report) -> Table:
    """One row for each rank count and order.

    Where SimGrid was asked, the rows of the last rank count end with the first steps, as predicted and as simulated.
    """
    title = "orders of the ranks: blocks on the busiest cable, links of the longest hop, rate of the slowest; predicted"
    simulated = ("start", "SimGrid", "ratio") if report.simulated else ()
    table = columns(title, *COLUMNS, *simulated)
    for plan in report.plans:
        for name, forecast in plan.forecasts.items():
            row = [
                f"{plan.problem.size:,}",
                name,
                f"{forecast.cost.congestion:g}",
                f"{forecast.cost.dilation}",
                si(forecast.bandwidth, "B/s"),
                in_seconds(float(forecast.times.exposed.sum())),
                in_seconds(forecast.times.total),
                percent(forecast.at_work),
            ]
            if plan is report.plans[-1] and name in report.simulated:
                found = report.simulated[name]
                ratio = f"{found.predicted / found.simulated:.3f}" if found.simulated else "-"
                row += [in_seconds(found.predicted), in_seconds(found.simulated), ratio]
            table.add_row(*row)
    return table
