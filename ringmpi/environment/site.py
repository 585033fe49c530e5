"""Is this site fit for runs? A verdict a check, each from a child process with a deadline: nothing here can hang."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringmpi.environment import libraries, missing
from ringmpi.environment.child import SETTING_PREFIXES, Answer, alone, ask, ask_python
from ringmpi.environment.verdict import NOTE, OK, PROBLEM, Verdict

JOB, FILES = "ringmpi.comm.about_job", "ringmpi.storage.about_files"
JOB_SECONDS = 30.0
FILES_SECONDS = 40.0
SLOW_MB = 50.0  # a second: a disk of long ago does that
MOVES, STAYS = 0.75, 0.25  # shares of a message
ENOUGH_THREADS = ("FUNNELED", "SERIALIZED", "MULTIPLE")
IN_A_JOB = "SLURM_JOB_ID"
Facts = dict[str, Any]


def check_site(directory: Path, environment: Mapping[str, str] = os.environ) -> list[Verdict]:
    """Verdicts about MPI, ranks, HDF5, the file system of `directory`, Slurm and topology; within a minute."""
    with ThreadPoolExecutor() as pool:
        mpi, hdf5 = pool.submit(libraries.mpi), pool.submit(libraries.hdf5)
        starter, gpus = pool.submit(libraries.launcher), pool.submit(libraries.gpus)
        files = pool.submit(ask_python, FILES, str(directory), seconds=FILES_SECONDS)
        slurm = pool.submit(ask, "sbatch", "--version")
    job = start_ranks(starter.result(), environment) if starter.result() else Answer("", "")
    return [
        *of_mpi(mpi.result(), starter.result()),
        *of_ranks(job, starter.result(), environment),
        of_cuda(libraries.json_lines(job), gpus.result()),
        of_hdf5(hdf5.result()),
        *of_files(files.result(), directory),
        of_slurm(slurm.result(), environment),
        of_topology(environment),
    ]


def start_ranks(launcher: Facts, environment: Mapping[str, str], *, module: str = JOB) -> Answer:
    """Two ranks, as a run would start them. srun is told of the job that it belongs to."""
    program = launcher["program"]
    tied = Path(program).name == "srun"
    if tied and IN_A_JOB not in environment:
        return Answer("", "")
    told = alone(environment, but=(*SETTING_PREFIXES, "SLURM_")) if tied else alone(environment)
    return ask(program, "-n", "2", sys.executable, "-m", module, seconds=JOB_SECONDS, environment=told)


def of_mpi(mpi: Facts, launcher: Facts) -> Iterator[Verdict]:
    """The library, the launcher, and the threads that may call it."""
    sentences = [*missing.of_mpi(mpi), *missing.of_launcher(mpi, launcher)]
    found = " ".join(filter(None, [mpi.get("library"), f"from {mpi['file']}" if mpi.get("file") else ""]))
    level = PROBLEM if sentences else OK
    yield Verdict(level, "MPI library", found or "none", "; ".join(sentences))
    if threads := mpi.get("thread level"):
        enough = threads in ENOUGH_THREADS
        advice = "" if enough else "ringmpi has threads of its own: load an MPI library that is built with threads"
        yield Verdict(OK if enough else NOTE, "threads", f"the library grants MPI_THREAD_{threads}", advice)


def of_ranks(job: Answer, launcher: Facts, environment: Mapping[str, str]) -> Iterator[Verdict]:
    """Whether two ranks meet, which cores they get, and what a message between them does."""
    facts = libraries.json_lines(job)
    if not launcher:
        return  # said with the library
    if Path(launcher["program"]).name == "srun" and IN_A_JOB not in environment:
        yield Verdict(
            NOTE, "ranks", "not tried: srun would wait for a job", "Ask in a job: salloc -n 2 ringmpi info --check"
        )
        return
    if job.failure or facts.get("ranks") != 2:
        yield Verdict(PROBLEM, "ranks", _unmet(job, facts, launcher), _how_to_meet(facts))
        return
    nodes = "one node" if len(set(facts["nodes"])) == 1 else "two nodes"
    yield Verdict(OK, "ranks", f"2 ranks meet on {nodes}, started by {launcher['program']}")
    yield _of_cores(facts)
    yield _of_progress(facts)


def _unmet(job: Answer, facts: Facts, launcher: Facts) -> str:
    if facts.get("ranks") == 1:
        return f"{launcher['program']} started 2 processes, and each sees a job of its own"
    came = "after they had met" if facts else "before they had met"
    return f"{launcher['program']} -n 2: {job.failure or 'no answer'}, {came}"


def _how_to_meet(facts: Facts) -> str:
    if facts.get("ranks") == 1:
        return "Launcher and library do not match: use the mpirun of the library, or srun --mpi=pmi2 or pmix"
    if facts:
        return "They start but cannot exchange messages: look at firewalls and network settings (UCX_TLS, FI_PROVIDER)"
    return "Try it by hand: mpirun -n 2 hostname. As root Open MPI wants OMPI_ALLOW_RUN_AS_ROOT=1"


def _of_cores(facts: Facts) -> Verdict:
    """Whether the two ranks share a core that they need not share."""
    mine, theirs = facts["cores"]
    if len(set(facts["nodes"])) == 1 and len({*mine, *theirs}) == 1:
        free = (os.cpu_count() or 1) > 1
        advice = "Give each rank a core of its own: --bind-to core, or ask for more cores" if free else ""
        return Verdict(PROBLEM if free else NOTE, "cores", f"both ranks may run on core {mine[0]} only", advice)
    return Verdict(OK, "cores", f"rank 0 may use {len(mine)}, rank 1 {len(theirs)}{', the same' * (mine == theirs)}")


def _of_progress(facts: Facts) -> Verdict:
    """The kernels look at messages every 1-2 ms, so these need not move alone."""
    share, speed = facts["moves alone"], f"{facts['GB a second']:.1f} GB/s each way"
    if share >= MOVES:
        return Verdict(OK, "messages", f"{speed}; they progress without polling")
    how = "do not progress" if share <= STAYS else "progress only partly"
    return Verdict(OK, "messages", f"{speed}; they {how} without polling: kernels poll every 1-2 ms")


def of_cuda(facts: Facts, gpus: Facts) -> Verdict:
    """Whether MPI takes addresses of GPU memory."""
    told = {True: "yes", False: "no", None: "unknown"}[facts.get("CUDA")]
    if gpus["devices"] and told != "yes":
        return Verdict(NOTE, "CUDA-aware MPI", f"{told}, and there are GPUs", "Messages go through host memory")
    return Verdict(OK, "CUDA-aware MPI", told if gpus["devices"] else f"{told}; not needed, as there are no GPUs")


def of_hdf5(hdf5: Facts) -> Verdict:
    """HDF5 as h5py has it."""
    if "error" in hdf5:
        return Verdict(PROBLEM, "HDF5", hdf5["error"], "pip install --force-reinstall h5py")
    how = "built with MPI" if hdf5["built with MPI"] else "without MPI: rank 0 merges what the ranks write"
    return Verdict(OK, "HDF5", f"{hdf5['HDF5']}, h5py {hdf5['h5py']}, {how}")


def of_files(answer: Answer, directory: Path) -> Iterator[Verdict]:
    """Whether outputs and checkpoints can lie in the directory."""
    facts, where = libraries.json_lines(answer), f"{directory}: "
    if failure := facts.get("error") or answer.failure:
        advice = "Name a directory that this user may write to, on a file system that answers: --directory"
        yield Verdict(PROBLEM, "file system", where + failure, advice)
    if "MB a second" in facts:
        speed, free = facts["MB a second"], facts["free bytes"] / 1e9
        slow = "Outputs and checkpoints will take long: choose a parallel file system" if speed < SLOW_MB else ""
        yield Verdict(NOTE if slow else OK, "file system", f"{where}{speed:.0f} MB/s, {free:.0f} GB free", slow)
    if "renamed files are seen" in facts:
        seen = facts["renamed files are seen"]
        advice = "" if seen else "An output would not appear under its name: choose another file system"
        yield Verdict(OK if seen else PROBLEM, "renamed files", "seen at once" if seen else "not seen", advice)
    if "locks hold" in facts:
        hold = facts["locks hold"]
        advice = "" if hold else "Two runs to one output are not kept apart: give each an output of its own"
        yield Verdict(OK if hold else NOTE, "locks", "hold" if hold else "do not hold", advice)


def of_slurm(sbatch: Answer, environment: Mapping[str, str]) -> Verdict:
    """Whether jobs can be submitted from here."""
    job = "this is a Slurm job" if IN_A_JOB in environment else "this is not a Slurm job"
    if sbatch.failure.startswith("cannot be started"):
        return Verdict(OK, "Slurm", f"sbatch is not here, {job}; jobs/run.sh works without it")
    if sbatch.failure:
        return Verdict(NOTE, "Slurm", f"sbatch --version: {sbatch.failure}", "Jobs cannot be submitted from here")
    return Verdict(OK, "Slurm", f"{sbatch.text.strip()}; {job}")


def of_topology(environment: Mapping[str, str]) -> Verdict:
    """What `placement = "auto"` has to go by."""
    from ringmpi.topology.at_hand import ADDRESS, Whereabouts, network_at_hand

    here = Whereabouts.here(os.uname().nodename, environment)
    if here.address and here.pattern:
        return Verdict(OK, "topology", f"{ADDRESS} is {here.address}")
    if network_at_hand([here])[0]:
        return Verdict(OK, "topology", "the names of hosts are places")
    if shutil.which("scontrol"):
        advice = 'Before a run: scontrol show topology > topology.txt, and [ring] placement = "topology.txt"'
        return Verdict(NOTE, "topology", "not in the environment here", advice)
    return Verdict(OK, "topology", "nothing at hand: ranks sit in launch order, or where a file says")
