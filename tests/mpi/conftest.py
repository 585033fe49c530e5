"""Tests on real ranks: tests/run_mpi.sh starts one pytest a rank. Rank 0 reports; one failing rank ends them all."""

import io
import sys
import time

import pytest
from _pytest.terminal import TerminalReporter
from mpi4py import MPI

RANK_COUNTS = {1, 2, 3, 4, 5, 7}  # what tests/run_mpi.sh is called with: a test on 6 ranks would never run
TIME_TO_REPORT_SECONDS = 1.0

WORLD = MPI.COMM_WORLD


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let ranks other than 0 report to a buffer that is shown only where the rank ends badly."""
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    if WORLD.rank:
        reporter = TerminalReporter(config, file=io.StringIO())
    config.pluginmanager.register(reporter, "terminalreporter")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that asks for a number of ranks on which nobody runs it."""
    for item in items:
        marker = item.get_closest_marker("parallel")
        counts = marker.args[0] if marker and marker.args else None
        asked = {counts} if isinstance(counts, int) else set(counts or ())
        if not asked or asked - RANK_COUNTS:
            raise pytest.UsageError(
                f"{item.nodeid} runs on {sorted(asked) or 'no stated number of'} ranks; "
                f"mark it @pytest.mark.parallel([...]) with some of {sorted(RANK_COUNTS)}."
            )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Abort all ranks after a failure: the others may be waiting for this one."""
    if report.failed and WORLD.size > 1:
        sys.__stderr__.write(f"\nrank {WORLD.rank} of {WORLD.size} failed: {report.nodeid}\n{report.longreprtext}\n")
        sys.__stderr__.flush()
        time.sleep(TIME_TO_REPORT_SECONDS)  # ranks that fail in the same place get their word in
        WORLD.Abort(1)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Show what a silent rank had to say when it alone could not even collect the tests."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    session = getattr(reporter, "_session", None)
    if WORLD.rank and session is not None and session.exitstatus:
        sys.__stderr__.write(f"\nrank {WORLD.rank}:\n{reporter._tw._file.getvalue()}\n")
