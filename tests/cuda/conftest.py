"""What is said at the end of the gates: how near to the tolerances kernels came. And nothing is left out there."""

from __future__ import annotations

import pytest

from tests.cuda.emulated import EMULATED

WORST: dict[tuple[str, str], float] = {}
SIXTEEN: list[float] = []
LEFT_OUT: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what tests recorded, from all processes."""
    for name, value in report.user_properties if report.when == "call" else ():
        if name == "worst":
            key = value[0], value[1]
            WORST[key] = max(WORST.get(key, 0.0), value[2])
        if name == "sixteen":
            SIXTEEN.append(value)
    if report.skipped and EMULATED and report.nodeid.startswith(("tests/cuda", "tests/device")):
        LEFT_OUT.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for all instances, one for ring steps."""
    for which in ("forward", "backward"):
        found = {dtype: ratio for (part, dtype), ratio in sorted(WORST.items()) if part == which}
        if found:
            said = ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in found.items())
            terminalreporter.write_line(f"worst error over the permitted one, {which}: {said}")
    if SIXTEEN:
        terminalreporter.write_line(
            f"no growth over 16 carried ring steps: at most {max(SIXTEEN):.2f} of one call's bound"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A gate that was not run has not passed."""
    if LEFT_OUT and session.exitstatus == pytest.ExitCode.OK and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"left out, where nothing may be: {', '.join(LEFT_OUT)}")  # noqa: T201
