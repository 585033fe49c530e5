"""Runs on three ranks with emulated GPUs: what they write is verified, however their messages go.

`make gates` has the kernels of a GPU do the work, built by g++; else NumPy does it for them.
"""

import ctypes
import gc
import os
import re
from dataclasses import asdict
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import ringmpi.backends
from ringmpi import Mask, Sharding, attention, attention_backward
from ringmpi.backends.cuda.ferry import DeviceBytes
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.bench.measure import seconds_of_hops
from ringmpi.bench.questions import Case
from ringmpi.bench.ring_ranks import on_ranks
from ringmpi.comm.cuda_support import says_cuda_aware
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.launcher import LOCAL_RANKS, launched_local_rank, local_rank_of
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.protocol import Message
from ringmpi.environment import device_messages
from ringmpi.environment.child import Answer
from ringmpi.errors import RingError
from ringmpi.ring import Ring
from tests.cuda.emulated import EMULATED, EmulatedDevice
from tests.cuda.numpy_runner import NumpyRunner
from tests.launched.conftest import mpirun, write_floats  # noqa: F401

PROGRAM = ("-m", "tests.cuda.run_emulated")
PROOF = ("-c", "import tests.cuda.run_emulated; from ringmpi.environment.device_messages import main; main()")
SETTING = device_messages.SETTING
JOB = """
[input]
file = "in.h5"
query = "q"
key = "k"
value = "v"
[attention]
mask = "causal"
[backend]
name = "cuda"
[output]
file = "out.h5"
[backward]
grad_output = "do"
"""


@pytest.fixture
def job(tmp_path, rng):
    """Write an input; rows of 20 numbers do not fill 16 bytes."""
    (tmp_path / "job.toml").write_text(JOB)

    def write(dtype):
        with h5py.File(tmp_path / "in.h5", "w") as file:
            for name, heads in (("q", 4), ("k", 2), ("v", 2), ("do", 4)):
                write_floats(file, name, rng.standard_normal((heads, 200, 20)).astype(dtype))
        return tmp_path

    return write


@pytest.mark.parametrize(("way", "said"), [("staged", "through host memory"), ("direct", "straight from GPU")])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (np.float16, ()),
        (np.float32, ("--set", "backward.travel=queries", "--set", "ring.schedule=bidirectional")),
    ],
)
def test_three_ranks_attend_exactly(mpirun, job, way, said, dtype, options):  # noqa: F811
    folder = job(dtype)
    done = mpirun(3, "run", "job.toml", *options, program=PROGRAM, cwd=folder, **{SETTING: way})
    assert done.code == 0, done.err
    assert "attended 80,400 of 80,400 asked: exact" in done.out
    assert "backwards 80,400 of 80,400 asked: exact" in done.out
    assert f"GPUs: 3 x emulated; messages go {said}" in done.err
    assert "ranks 0, 1, 2 share GPU-00000000" in done.err
    verified = mpirun(1, "verify", "out.h5", "--rows", "200", cwd=folder)
    assert verified.code == 0, verified.out + verified.err


def test_three_ranks_make_a_map(mpirun, job):  # noqa: F811
    """By gradients of values alone; rows are not recorded on a GPU, and refused."""
    folder = job(np.float32)
    asked = ("rows=false", "map_block=32", "received=true", "top_rows=[0, 7, 199]")
    options = [word for option in asked for word in ("--set", f"record.{option}")]
    done = mpirun(3, "run", "job.toml", *options, program=PROGRAM, cwd=folder)
    assert done.code == 0, done.err
    assert "in the map pass 80,400 of 80,400 asked: exact" in done.out
    verified = mpirun(1, "verify", "out.h5", "--rows", "200", cwd=folder)
    assert verified.code == 0, verified.out + verified.err
    refused = mpirun(
        1, "run", "job.toml", *options, "--set", "record.rows=true", "--force", program=PROGRAM, cwd=folder
    )
    assert refused.code == 3
    assert 'backend "cuda" does not record them' in refused.err


@pytest.mark.parametrize("way", ["staged", "direct"])
def test_rings_and_hops_are_timed_on_gpus(mpirun, tmp_path, way):  # noqa: F811
    """What is found out before the first pass is said once."""
    options = {"ring": ("--shapes", "2x64x8", "--mask", "causal", "--backward"), "hop": ("--sizes", "8,1048576")}
    for bench, words in options.items():
        asked = ("bench", bench, *words, "--backend", "cuda", "--rounds", "1")
        done = mpirun(2, *asked, program=PROGRAM, cwd=tmp_path, **{SETTING: way})
        assert done.code == 0, done.err
        assert ("arrays go from the host to the GPU and back" in done.out) == (bench == "ring")
        assert done.err.count("ranks 0, 1 share GPU-00000000") == 1, done.err


def test_how_messages_go_is_found_out_once_and_not_by_each_pass_that_is_timed(monkeypatch):
    asked = []

    def how(environment, *, several):
        asked.append(several)
        return False, "asked"

    monkeypatch.setattr(device_messages, "_how", how)
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))
    case, settings = asdict(Case(1, 1, 64, 8, backward=True)), {"sharding": "zigzag", "backend": "cuda"}
    with Ring(MPI.COMM_SELF) as ring:
        found = on_ranks(ring, settings | {"cases": [case, case], "rounds": 2, "backward": True})
    assert asked == [False]
    assert [len(samples["backward"]["wall"]) for samples in found["cases"]] == [2, 2]


@pytest.mark.parametrize("direct", [True, False])
def test_hops_are_timed_where_arrays_lie(monkeypatch, direct):
    """Between arrays of the GPU: what a hop of the ring takes is not what one between arrays of the host does."""
    device = EmulatedDevice(runner=NumpyRunner())
    ring, sent = MPIRing(MPI.COMM_SELF, 0), []
    ring.takes_device_memory, start = direct, ring.start

    def seen(sends, receives):
        sent.extend(type(message.array) for message in sends)
        return start(sends, receives)

    monkeypatch.setattr(ring, "start", seen)
    assert seconds_of_hops(ring, 1000, DeviceMemory(device)) > 0
    assert set(sent) == {DeviceBytes if direct else np.ndarray}
    assert device.cupy.pinned == (0 if direct else 2 * 1024)
    ring.close()


def test_ranks_of_other_backends_are_told(mpirun, job):  # noqa: F811
    """A node without a GPU: messages would have other lengths."""
    folder = job(np.float32)
    code = (
        "import sys, os, tests.cuda.run_emulated, ringmpi.backends\n"
        "if os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')) == '1':\n"
        "    ringmpi.backends._OPENERS['cuda'] = ringmpi.backends._OPENERS['numpy']\n"
        "    get = ringmpi.backends.get_backend\n"
        "    import ringmpi.ring\n"
        "    ringmpi.ring.get_backend = lambda name, **options: get('numpy', threads=options['threads'])\n"
        "from ringmpi.cli import main; main()"
    )
    done = mpirun(2, "run", "job.toml", program=("-c", code), cwd=folder)
    assert done.code not in (0, -11), done.out
    assert "rank 1" in done.err
    assert "gave a different problem (mask, shardings, dtype, heads, schedule, scores, record, or backend)" in done.err


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("emulated.device().cupy.nbytes = 20_000", r"GPU emulated .* MiB free, and one more array needs"),
        (
            "cupy = emulated.device().cupy; cupy.runner = lambda *told: setattr(cupy, 'status', 700)",
            r"cannot (wait for its kernels|copy|record an event): cudaErrorIllegalAddress",
        ),
    ],
    ids=["full", "broken"],
)
def test_a_device_that_fails_ends_the_job_and_its_rank_is_named(mpirun, job, harm, said):  # noqa: F811
    code = (
        "import os, tests.cuda.run_emulated\n"
        "from tests.cuda import emulated\n"
        "if os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')) == '1':\n"
        f"    {harm}\n"
        "from ringmpi.cli import main; main()"
    )
    done = mpirun(2, "run", "job.toml", program=("-c", code), cwd=job(np.float32))
    assert done.code not in (0, -11), done.out
    assert re.search(rf"rank 1.*{said}", done.err), done.err
    assert done.seconds < 30


def test_two_ranks_show_that_mpi_takes_memory_of_a_device(mpirun):  # noqa: F811
    """Addresses of an emulated device are those of the host, so any library takes them."""
    done = mpirun(2, program=PROOF)
    assert done.code == 0, done.err
    assert re.fullmatch(rf"{device_messages.PROVED}: {device_messages.ONE_GPU}, GPU-[0-9-]+ of \S+", done.out.strip())


def test_memory_of_a_device_goes_through_mpi_a_thousand_times():
    """Classes 56 and 57: the same addresses at every hop, nothing is freed twice, and nothing is asked for."""
    device = EmulatedDevice(runner=NumpyRunner())
    memory, ring = DeviceMemory(device), MPIRing(MPI.COMM_SELF, 0)
    ring.takes_device_memory = True
    mine, theirs = memory.put(np.arange(1000, dtype=np.float32)), memory.put(np.zeros(1000, np.float32))
    through, before = reaching(memory.ferry, ring), device.cupy.allocations
    for hop in range(1000):
        flight = through.start([Message(0, 1, mine)], [Message(0, 1, theirs)])
        while not flight.landed():
            pass
        if hop % 100 == 0:
            gc.collect()
    ring.close()
    assert device.cupy.allocations == before
    np.testing.assert_array_equal(memory.get(theirs), np.arange(1000, dtype=np.float32))


def test_a_copy_up_goes_on_beside_a_kernel_that_runs():
    """It waits for what the device was asked for before its room was given away, and for nothing later."""
    device = EmulatedDevice(runner=NumpyRunner())
    memory, ring = DeviceMemory(device), MPIRing(MPI.COMM_SELF, 0)
    mine, theirs, other = (memory.put(np.full(8, n, np.float32)) for n in (1, 2, 3))
    memory.add(mine, other)
    flight = reaching(memory.ferry, ring).start([Message(0, 1, mine)], [Message(0, 1, theirs)])
    memory.add(other, other)
    while not flight.landed():
        pass
    ring.close()
    assert device.cupy.runner.launches == ["add-float32"], "the first alone has run"
    np.testing.assert_array_equal(memory.get(theirs), 4)
    assert device.cupy.runner.launches == ["add-float32"] * 2


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, None),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"SLURM_LOCALID": "0", "MPI_LOCALRANKID": "1"}, 1),
        ({"PALS_LOCAL_RANKID": "5"}, 5),
        ({"SLURM_LOCALID": "none"}, None),
    ],
)
def test_launchers_say_which_rank_of_its_node_one_is(environment, told):
    assert launched_local_rank(environment) == told


@pytest.mark.parametrize(
    ("told", "dealt"),
    [([2, 3], [2, 3]), ([None, None], [0, 1]), ([0, 0], [0, 1]), ([1, None], [0, 1]), ([1, 0], [1, 0])],
)
def test_what_launchers_say_counts_where_it_tells_ranks_apart(told, dealt):
    assert [local_rank_of(told, position) for position in range(len(told))] == dealt


def test_two_rings_of_a_node_take_different_gpus(monkeypatch):
    """The ring is a part of the job, so its own node communicator would start at GPU 0 again."""
    for name in LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")
    ring = MPIRing(MPI.COMM_SELF, 0)
    assert ring.local_rank == 3
    ring.close()


def test_an_mpi_library_without_a_file_is_no_error(monkeypatch):
    """mpi4py that is built into the interpreter."""
    found = ctypes.CDLL(None)

    def load(name):
        if name is not None:
            raise OSError(f"{name}: cannot open shared object file")
        return found

    monkeypatch.setattr("ringmpi.comm.cuda_support.ctypes.CDLL", load)
    assert not says_cuda_aware()


def test_a_library_that_is_not_asked_is_not_trusted(monkeypatch):
    monkeypatch.setattr("ringmpi.comm.cuda_support.says_cuda_aware", lambda: None)
    found = device_messages._how({}, several=True)
    assert found == (False, "the MPI library does not say that it is CUDA-aware")


def test_a_library_that_crashes_takes_a_child_with_it(mpirun, monkeypatch):  # noqa: F811
    """Class 55: the address of a GPU in a library that does not know what that is."""
    monkeypatch.setattr("ringmpi.comm.cuda_support.says_cuda_aware", lambda: True)
    monkeypatch.setattr(device_messages, "MODULE", "tests.cuda.crashing")
    takes, why = device_messages._how(os.environ, several=True)
    assert not takes
    assert "MPI says that it is CUDA-aware, but two ranks could not confirm it" in why


NEAR, FAR = "two ranks on one node, GPU-1 and GPU-2 of a", "two ranks on two nodes, GPU-1 of a and GPU-1 of b"
SAME = "two ranks on one GPU, GPU-1 of a"


@pytest.mark.parametrize(
    ("answer", "several", "takes", "said"),
    [
        (Answer(f"a chat\n{device_messages.PROVED}: {NEAR}\nmore\n", ""), True, True, f"as shown by {NEAR}"),
        (Answer(f"{device_messages.PROVED}: {FAR}\n", ""), True, True, f"as shown by {FAR}"),
        (Answer(f"{device_messages.PROVED}: {SAME}\n", ""), False, True, f"as shown by {SAME}"),
        (
            Answer(f"{device_messages.PROVED}: {SAME}\n", ""),
            True,
            False,
            f"could not confirm it (they were {SAME}); {SETTING}",
        ),
        (Answer("", ""), True, False, "could not confirm it (bytes were lost)"),
        (Answer("", "killed by SIGSEGV"), True, False, "could not confirm it (killed by SIGSEGV)"),
        (
            Answer(f"{device_messages.PROVED}: {NEAR}\n", "exit code 1"),
            True,
            False,
            "could not confirm it (exit code 1)",
        ),
    ],
)
def test_only_bytes_that_arrived_are_a_proof(monkeypatch, answer, several, takes, said):
    """And of no more than of what they went between: a process that sees one GPU has its trial on that one alone."""
    monkeypatch.setattr(device_messages, "start_ranks", lambda *arguments, **options: answer)
    monkeypatch.setattr(device_messages, "libraries", SimpleNamespace(launcher=lambda: {"program": "mpirun"}))
    found, why = device_messages.tried({}, several=several)
    assert found is takes
    assert said in why


def test_ranks_that_try_it_say_where_they_are():
    places = [("a", "GPU-1"), ("a", "GPU-1")], [("a", "GPU-1"), ("a", "GPU-2")], [("a", "GPU-1"), ("b", "GPU-1")]
    assert list(map(device_messages.on_what, places)) == [SAME, NEAR, FAR]


def test_a_setting_that_says_nothing_is_refused():
    assert device_messages._how({SETTING: "direct"}, several=True) == (True, f"{SETTING} says so")
    with pytest.raises(RingError, match=f'{SETTING} = "fast"; expected "direct" or "staged"'):
        device_messages._how({SETTING: "fast"}, several=True)


def test_ranks_that_share_a_gpu_are_named():
    nodes, devices = ["a", "a", "b", "b"], ["GPU-1", "GPU-1", "GPU-1", "GPU-2"]
    (sentence,) = device_messages.shared(nodes, devices)
    assert sentence.startswith("ranks 0, 1 share GPU-1 on node a")


@pytest.mark.skipif(not EMULATED, reason="make gates: NumPy, which does the work here, has not these bits")
def test_reproducible_rings_have_the_same_bits(monkeypatch, rng):
    """Forward and gradients, on one rank and on three: tiles begin at the same positions on both."""
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))
    q, k, v, grad_output = (rng.standard_normal((1, 320, 64)).astype(np.float16) for _ in range(4))
    found = []
    for ranks in (1, 3):
        options = {"mask": Mask.window(200, 5), "ranks": ranks, "sharding": Sharding.zigzag(320, ranks, block=64)}
        options |= {"reproducible": True, "backend": "cuda"}
        out = attention(q, k, v, **options)
        gradients = attention_backward(grad_output, q, k, v, out, **options)
        found.append([array.tobytes() for array in (out.output, out.log_sum_exp, *gradients)])
    assert found[0] == found[1]
