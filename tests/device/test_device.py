"""The script for the day a GPU is at hand, on the emulated device: so that it works on that day."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ringmpi.backends
from ringmpi.backends.cuda.addition import EVERY_ADDITION
from ringmpi.errors import BackendError
from tests.cuda.cases import EVERY_CASE, PLAIN_CASES, Case, long_cases
from tests.cuda.eager import EagerDevice
from tests.cuda.emulated import EMULATED, EmulatedDevice
from tests.cuda.emulated_cupy import ILLEGAL_ADDRESS
from tests.cuda.libraries import LibraryRunner
from tests.cuda.numpy_runner import NumpyRunner
from tests.device import timing
from tests.device.conformance import (
    FIRST_CASES,
    FIRST_KERNELS,
    LONG_CASES,
    OTHER_CASES,
    addition_outcomes,
    compilation_outcomes,
    kernel_outcomes,
    long_outcomes,
    primitive_outcomes,
    ring_outcomes,
    seen_before,
)
from tests.device.outcome import Outcome
from tests.device.report import Findings, as_json, as_markdown, peak_of
from tests.device.sanitizer import CASES, TOOLS, sanitizer_outcomes
from tests.device.timing import FIRST_SHAPES, OTHER_SHAPES, SHAPES, Shape, Time, measure

ROOT = Path(__file__).parents[2]
emulation = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")
HALF = np.dtype(np.float16)


def test_without_a_gpu_one_line_says_that_nothing_was_run():
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.device"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("nothing was run, no usable GPU: ")
    assert done.stdout.count("\n") == 1


def findings(tmp_path):
    device = EagerDevice(NumpyRunner())
    device.name = "NVIDIA H200"
    return Findings(device, tmp_path / "out")


def test_what_is_found_is_printed_and_written_at_once(tmp_path, capsys):
    found, shape = findings(tmp_path), Shape(2048, 64, causal=False, backward=False)

    def parts():
        yield Outcome("one", True)
        assert "one: passed" in capsys.readouterr().out
        yield Time(shape, "ringmpi", 0.002)
        written = json.loads((tmp_path / "out/found.json").read_text())
        assert (len(written["checks"]), len(written["times"])) == (1, 1)
        assert "| ringmpi | 2.000 |" in (tmp_path / "out/times.md").read_text()
        yield Outcome("two", False, "why")

    found.take("parts", parts(), time.monotonic() + 60)
    out = capsys.readouterr().out
    assert "full, forward: ringmpi: 2.000 ms, 137 TFLOP/s" in out
    assert "two: FAILED, why" in out
    assert found.summary().startswith("two: FAILED, why\n2 checks, 1 failed, 0 not run; 1 times; ")


def test_an_error_ends_its_part_alone_and_is_told_in_one_line(tmp_path, capsys):
    def parts():
        yield Outcome("one", True)
        raise BackendError("the GPU\nis gone")

    found = findings(tmp_path)
    found.take("first", parts(), time.monotonic() + 60)
    found.take("second", iter([Outcome("two", True)]), time.monotonic() + 60)
    assert [outcome.passed for outcome in found.outcomes] == [True, False, True]
    assert "first: FAILED, BackendError: the GPU is gone\n" in capsys.readouterr().out


def test_what_time_does_not_suffice_for_is_named(tmp_path):
    found = findings(tmp_path)
    found.take("rest", iter([Outcome("one", True)]), time.monotonic() - 1)
    (outcome,) = found.outcomes
    assert str(outcome) == "rest, all that is left of it: not run, time is up"


def test_a_kernel_that_breaks_the_gpu_ends_its_part(tmp_path):
    """Errors of CUDA stay: no case after it would say anything."""
    device = EmulatedDevice(runner=lambda *told: setattr(device.cupy, "status", ILLEGAL_ADDRESS))
    found = findings(tmp_path)
    found.take("kernels", kernel_outcomes(device, FIRST_CASES), time.monotonic() + 60)
    first, second = found.outcomes
    assert "cudaErrorIllegalAddress" in first.detail
    assert second.name == "kernels"


def test_first_and_other_ones_are_all():
    assert {*FIRST_CASES, *OTHER_CASES} == {*EVERY_CASE, *PLAIN_CASES}
    assert {case.dtype for case in FIRST_CASES} == {case.dtype for case in EVERY_CASE}
    assert {instance for case in LONG_CASES for instance in case.instances()} <= set(FIRST_KERNELS), "compiled by then"
    assert sorted(map(str, FIRST_SHAPES + OTHER_SHAPES)) == sorted(map(str, SHAPES))


def test_rings_and_additions_are_looked_at(monkeypatch):
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))
    assert [str(outcome) for outcome in ring_outcomes()] == ["ring of 3, float16: passed", "ring of 3, float32: passed"]
    outcomes = list(addition_outcomes(EmulatedDevice(runner=NumpyRunner())))
    assert [outcome.passed for outcome in outcomes] == [True] * len(EVERY_ADDITION)
    (outcome, _) = addition_outcomes(EmulatedDevice(runner=lambda *told: None))
    assert str(outcome) == "kernel add-float32: FAILED"


@emulation
def test_kernels_are_compiled_beforehand(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGMPI_CACHE", str(tmp_path))
    device = EagerDevice(NumpyRunner())
    (outcome,) = compilation_outcomes(device, EVERY_ADDITION)
    assert str(outcome) == "compilation of 2 kernels for sm_80: passed"
    device.architecture = "sm_1"
    *failures, outcome = compilation_outcomes(device, EVERY_ADDITION[:1])
    assert str(outcome) == "compilation of 1 kernels for sm_1: FAILED"
    assert "cannot compile add-float32" in failures[0].detail
    (outcome,) = compilation_outcomes(device, EVERY_ADDITION, seconds=lambda: 0)
    assert (outcome.passed, outcome.detail) == (None, "time is up after 0")


def test_what_a_card_gave_first_is_what_it_must_give_again(tmp_path):
    path, new = tmp_path / "seen/primitives-sm_90.npz", tmp_path / "primitives-sm_90.npz"
    found = {"COPY": np.arange(6, dtype=np.uint32)}
    first = seen_before(found, path, new)
    assert (first.passed, path.exists()) == (None, False)
    assert f"copy {new} to seen/" in first.detail
    assert seen_before(found, new, path).passed
    other = seen_before({"COPY": found["COPY"] + np.uint32(1)}, new, path)
    assert not other.passed
    assert other.detail == "other bits: COPY"


@pytest.mark.parametrize(("status", "passed"), [(0, True), (9, False)])
def test_the_sanitizer_is_asked_and_believed(tmp_path, status, passed):
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/said\nexit {status}\n")
    program.chmod(0o755)
    outcomes = list(sanitizer_outcomes(str(program)))
    assert [outcome.passed for outcome in outcomes] == [passed] * len(TOOLS) * len(CASES)
    assert "--tool racecheck --error-exitcode 9" in (tmp_path / "said").read_text()


def test_without_the_sanitizer_its_checks_are_named_as_not_run(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert {outcome.passed for outcome in sanitizer_outcomes()} == {None}


def test_a_sanitizer_that_time_does_not_suffice_for_has_not_failed(tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(0o755)
    outcome = next(sanitizer_outcomes(str(program), seconds=lambda: 0.1))
    assert (outcome.passed, outcome.detail) == (None, "did not end within 0 s")


def test_the_table_has_rates_shares_and_ratios():
    shape = Shape(2048, 64, causal=False, backward=False)
    assert shape.flops == 4 * 2048**2 * 64 * 32 * 8
    table = [Time(shape, "ringmpi", 0.002), Time(shape, "torch flash", 0.001), Time(shape, "torch cuDNN", None, "no")]
    device = EagerDevice(LibraryRunner())
    device.name = "NVIDIA H200"
    lines = as_markdown(device, table).splitlines()[-3:]
    assert lines[0].split("|")[6:10] == [" 2.000 ", " 137 ", " 14 % ", " - "]
    assert lines[1].split("|")[9] == " 0.50 "
    assert " no " in lines[2]
    assert peak_of("NVIDIA A100-SXM4-80GB") == 312
    assert json.loads(json.dumps(as_json(device, [], table)))["times"][0]["teraflops"] > 137


@emulation
def test_primitives_are_compared_with_their_emulation(tmp_path):
    device = EagerDevice(LibraryRunner())
    seen = tmp_path / "seen"
    outcomes = list(primitive_outcomes(device, seen, tmp_path, ("COPY", "EXCHANGE")))
    assert [outcome.passed for outcome in outcomes] == [None, True, True]

    def other(kernel, size, argument, bounds):
        LibraryRunner()(kernel, size, argument, bounds)
        target = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint32 * 4).from_address(int(argument["found"])))
        target[0] ^= 1

    outcomes = list(primitive_outcomes(EagerDevice(other), tmp_path, tmp_path, ("COPY", "EXCHANGE")))
    assert [outcome.passed for outcome in outcomes] == [False, False, False]


@emulation
def test_kernels_are_compared_with_the_plain_formula():
    case = Case(HALF, 32, lengths=(70, 90))
    (outcome,) = kernel_outcomes(EagerDevice(LibraryRunner()), (case,))
    assert outcome.passed, outcome

    def lazy(kernel, size, argument, bounds):
        LibraryRunner()(kernel, (max(size[0] - 1, 1), size[1]), argument, bounds)

    (outcome,) = kernel_outcomes(EagerDevice(lazy), (case,))
    assert not outcome.passed


@emulation
def test_long_sums_are_judged():
    outcomes = list(long_outcomes(EagerDevice(LibraryRunner()), long_cases(32, 200)))
    assert [outcome.passed for outcome in outcomes] == [True] * 4, outcomes


@emulation
@pytest.mark.parametrize("backward", [False, True])
def test_times_are_taken_of_kernels_that_run_again(monkeypatch, backward):
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0)
    shape = Shape(48, 32, causal=True, backward=backward, tokens_in_all=48, channels=32)
    table = measure(EagerDevice(LibraryRunner()), (shape,))
    times = {time.contender: time for time in table}
    assert times["ringmpi"].seconds > 0
    assert times["ringmpi, rounded weights"].teraflops > 0
    assert times["torch flash"].seconds is None
    assert times["torch flash"].note
