"""The script for the day a GPU is at hand, on the emulated device: so that it works on that day."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.cases import Case
from tests.cuda.eager import EagerDevice
from tests.cuda.emulated import EMULATED
from tests.cuda.libraries import LibraryRunner
from tests.device import timing
from tests.device.conformance import kernel_outcomes, primitive_outcomes, seen_before
from tests.device.report import as_json, as_markdown, peak_of
from tests.device.sanitizer import CASES, TOOLS, sanitizer_outcomes
from tests.device.timing import Shape, Time, measure

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


def test_what_a_card_gave_first_is_what_it_must_give_again(tmp_path):
    path, found = tmp_path / "seen" / "primitives-sm_90.npz", {"COPY": np.arange(6, dtype=np.uint32)}
    assert seen_before(found, path).passed is None
    assert seen_before(found, path).passed
    other = seen_before({"COPY": found["COPY"] + np.uint32(1)}, path)
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
    outcomes = list(primitive_outcomes(device, tmp_path, ("COPY", "EXCHANGE")))
    assert [outcome.passed for outcome in outcomes] == [True, True, None]

    def other(kernel, size, argument, bounds):
        LibraryRunner()(kernel, size, argument, bounds)
        target = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint32 * 4).from_address(int(argument["found"])))
        target[0] ^= 1

    outcomes = list(primitive_outcomes(EagerDevice(other), tmp_path, ("COPY", "EXCHANGE")))
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
@pytest.mark.parametrize("backward", [False, True])
def test_times_are_taken_of_kernels_that_run_again(monkeypatch, backward):
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0)
    shape = Shape(48, 32, causal=True, backward=backward, tokens_in_all=48, channels=32)
    table = measure(EagerDevice(LibraryRunner()), (shape,))
    times = {time.contender: time for time in table}
    assert times["ringmpi"].seconds > 0
    assert times["ringmpi, exact weights"].teraflops > 0
    assert times["torch flash"].seconds is None
    assert times["torch flash"].note
