"""The scripts of jobs/ as they stand, under a real Slurm and by mpirun over several hosts."""

import json
import sys
from pathlib import Path

import h5py
import pytest

from tests.lab.conftest import is_open_mpi
from tests.lab.runs import ROOT, hosts_of, write_run

JOBS = ROOT / "jobs"
SMALL = ("--cpus-per-task=1", "--time=2")
pytestmark = pytest.mark.timeout(120)


def completed(slurm, folder, *words, **environment):
    """Submit a script from a folder, wait for its end, and return its log."""
    log = folder / "job.log"
    number = slurm.submit(*SMALL, "-o", log, *words, folder=folder, **environment)
    assert slurm.wait(number)["JobState"] == "COMPLETED", log.read_text()
    return log.read_text()


def test_run(slurm, tmp_path):
    log = completed(slurm, tmp_path, "-N2", "--ntasks-per-node=2", JOBS / "run.sbatch", write_run(tmp_path), "--quiet")
    assert "exact" in log
    assert hosts_of(tmp_path / "out.h5") == ["n0", "n0", "n1", "n1"]


def test_placed_by_the_topology_of_slurm(slurm, tmp_path):
    """Launch order is the best ring here; what Slurm would cut after 20 characters is read whole."""
    log, hosts = placed(slurm, tmp_path, SLURM_TOPO_LEN="20")
    assert "No ring is better: proved." in log
    assert hosts == ["n0", "n0", "n1", "n1", "n4", "n4", "n5", "n5"]


def test_placed_by_a_description_of_the_machine(slurm, tmp_path):
    """By this file launch order would leave a leaf four times."""
    (tmp_path / "machine.toml").write_text(
        '[[switch]]\nname = "left"\nhosts = "n0,n4"\n[[switch]]\nname = "right"\nhosts = "n1,n5"\n'
        '[[switch]]\nname = "top"\nswitches = "left,right"\n'
    )
    _, hosts = placed(slurm, tmp_path, TOPOLOGY=str(tmp_path / "machine.toml"))
    assert hosts == ["n0", "n0", "n4", "n4", "n1", "n1", "n5", "n5"]


def placed(slurm, tmp_path, **environment):
    """Run placed.sbatch on four nodes that Slurm gives in the order n0 n1 n4 n5 -> its log, hosts in launch order."""
    run = write_run(tmp_path, options='[ring]\nplacement = "launcher"\n')
    words = ("-w", "n0,n1,n4,n5", "-N4", "--ntasks-per-node=2", JOBS / "placed.sbatch", run)
    log = completed(slurm, tmp_path, *words, **environment)
    assert list(tmp_path.glob("placed-*")) == []
    return log, hosts_of(tmp_path / "out.h5")


def test_array(slurm, tmp_path):
    """Two layers, each with an output and a checkpoint directory of its own; submitted again there is nothing to do."""
    with h5py.File(ROOT / "data/smollm2_kjv_2048.h5") as data, h5py.File(tmp_path / "layers.h5", "w") as layers:
        for layer in range(2):
            data.copy("layer12", layers, f"layer{layer:02}")
    run, log = write_run(tmp_path), tmp_path / "job-%a.log"
    words = ("--array=0-1", "-N1", "--ntasks-per-node=2", "--signal=USR1@1", "-o", log, JOBS / "array.sbatch", run)
    for says in ("exact", "nothing to do"):
        number = slurm.submit(*SMALL, *words, "--set", f"input.file={tmp_path}/layers.h5", folder=tmp_path)
        for layer in range(2):
            state, told = slurm.wait(f"{number}_{layer}")["JobState"], (tmp_path / f"job-{layer}.log").read_text()
            assert (state, says in told) == ("COMPLETED", True), told
            assert (tmp_path / f"out/layer{layer:02}.h5").exists()


def test_scaling(slurm, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("-N3", "--ntasks-per-node=1", JOBS / "scaling.sbatch", "2x1024x64", "--rounds", "1", "--mask", "full")
    completed(slurm, tmp_path, *words)
    for scaling in ("strong", "weak"):
        (report,) = tmp_path.glob(f"out/{scaling}-*.json")
        assert json.loads(report.read_text())
        assert report.with_suffix(".png").stat().st_size > 10_000


def launched(lab, tmp_path, words, **environment):
    """Run a script on `head`, with hosts that are of the lab."""
    lab.run("head", *words, folder=tmp_path, **lab.environment | environment)
    return hosts_of(tmp_path / "out.h5")


def hosts_file(tmp_path, *hosts):
    (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
    return str(tmp_path / "hosts")


def test_plain_hosts(lab, tmp_path):
    lines = ["n2 slots=2", "n5 slots=2"] if is_open_mpi() else ["n2:2", "n5:2"]
    words = (JOBS / "run.sh", 4, write_run(tmp_path))
    assert launched(lab, tmp_path, words, HOSTFILE=hosts_file(tmp_path, *lines)) == ["n2", "n2", "n5", "n5"]


def test_pbs(lab, tmp_path):
    """There is no PBS here: what it tells a job is set by hand, a line for each rank, hosts in turn."""
    told = {"PBS_NODEFILE": hosts_file(tmp_path, "n2", "n5", "n2", "n5"), "PBS_O_WORKDIR": str(tmp_path)}
    told["RUN"] = str(write_run(tmp_path))
    words = ("bash", JOBS / "run.pbs")
    assert launched(lab, tmp_path, words, MPIRUN=str(mpirun()), **told) == ["n2", "n2", "n5", "n5"]
    assert list(tmp_path.glob("hosts-*")) == []


def test_lsf(lab, tmp_path):
    """Nor is there LSF, which reads the script from stdin."""
    told = {"LSB_DJOB_HOSTFILE": hosts_file(tmp_path, "n3", "n3", "n4"), "RUN": str(write_run(tmp_path))}
    words = ("bash", "-c", f"exec bash < {JOBS / 'run.lsf'}")
    assert launched(lab, tmp_path, words, MPIRUN=str(mpirun()), OPTIONS="--quiet", **told) == ["n3", "n3", "n4"]


def mpirun():
    return Path(sys.executable).with_name("mpirun")
