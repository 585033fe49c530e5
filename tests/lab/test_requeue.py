"""A job that runs into its time limit, or loses a node, goes on from where it was saved: elsewhere, and exact."""

import re
import sys

import h5py
import numpy as np
import pytest

from tests.lab.cluster import until
from tests.lab.runs import RINGMPI, ROOT, hosts_of

REQUEUE = ROOT / "jobs/requeue.sbatch"
QUERIES, KEYS = 2048, 1 << 17
SLOW, FAST = "10mbit", "200mbit"  # a shard of the keys and values needs 13 s or 1 s for a hop, of which there are three
# Slurm looks at limits every 30 s, and a limit is a minute at least: with that one, the next look sends the signal.
SIGNAL = "--signal=B:USR1@55"
EVERY = ("--set", "checkpoint.every_seconds=2")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def folder(lab, tmp_path):
    """Where a run lies that takes 40 s on four hosts with slow links, and a second on fast ones."""
    rng = np.random.default_rng(7)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, length in (("q", QUERIES), ("k", KEYS), ("v", KEYS)):
            file[name] = rng.standard_normal((1, length, 64), dtype=np.float32)
    (tmp_path / "run.toml").write_text(
        f'[input]\nfile = "{tmp_path}/in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[attention]\nmask = "full"\n'
        f'[output]\nfile = "{tmp_path}/out.h5"\nverify_rows = 64\n'
    )
    yield tmp_path
    set_links(lab, FAST)


def set_links(lab, rate, but=""):
    for host in set(lab.hosts) - {but}:
        lab.reshape(host, rate)


def log_of(folder):
    return (folder / "log").read_text() if (folder / "log").exists() else ""


def start(lab, slurm, folder):
    """Submit the job as it stands, a rank a node, and wait until it hangs on its links and has saved something."""
    words = ("--cpus-per-task=1", "--time=9", SIGNAL, "-o", folder / "log", REQUEUE, folder / "run.toml", *EVERY)
    number = slurm.submit(*words, folder=folder, RANKS_PER_NODE="1")
    until(lambda: "4 ranks" in log_of(folder), "the run did not start", 40)
    set_links(lab, SLOW)
    until(lambda: "saved generation 1" in log_of(folder), "nothing was saved", 40)
    return number


def finished(slurm, folder, number):
    """Wait for the end, show what Slurm and the run say of it, and verify the output from its file and the input."""
    job = slurm.wait(number, seconds=90)
    sys.stdout.write(slurm.run("scontrol", "show", "job", number).stdout + log_of(folder))
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1")
    assert re.search(r"going on from generation \d+ of 4 ranks", log_of(folder))
    assert not list(folder.glob("out.checkpoints/generation-*"))
    slurm.run(*RINGMPI, "verify", folder / "out.h5", "--rows", "256")
    return hosts_of(folder / "out.h5")


def test_a_job_at_its_time_limit_goes_on_on_fewer_nodes(lab, slurm, folder):
    number = start(lab, slurm, folder)
    slurm.run("scontrol", "update", "nodename=n[0-5]", "state=drain", "reason=fewer")
    slurm.run("scontrol", "update", f"jobid={number}", "timelimit=1")
    try:
        until(lambda: "the limit is near" in log_of(folder), "no signal came", 40)
        set_links(lab, FAST)
        assert finished(slurm, folder, number) == ["n6", "n7"]
        assert "stopped by SIGUSR1" in log_of(folder)
    finally:
        slurm.run("scontrol", "update", "nodename=n[0-5]", "state=resume")


def test_a_job_whose_node_dies_goes_on_on_others(lab, slurm, folder):
    number = start(lab, slurm, folder)
    lab.kill("n1")
    try:
        until(lambda: slurm.job(number)["Restarts"] == "1", "Slurm did not requeue the job", 60)
        set_links(lab, FAST, but="n1")
        assert finished(slurm, folder, number) == ["n4", "n5", "n6", "n7"]  # the four that are left under one leaf
    finally:
        lab.start("n1")
        slurm.start_node("n1")
        slurm.wait_for_nodes(8)
