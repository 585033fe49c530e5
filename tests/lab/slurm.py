"""A real Slurm on the lab's hosts: slurmctld on `head`, slurmd on every other, topology/tree as the leaves are.

As root, without systemd, cgroups, accounting or the MUNGE of the machine: all state lies in the folder of the lab, and
all daemons end with it. Debian: slurm-wlm, munge. Limits of Slurm itself: a time limit is a minute at least, and is
looked at every 30 s.
"""

import itertools
import secrets
import shutil

from tests.lab.cluster import Cluster, LabError, until

NEEDED = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
SOON = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")
CPUS = 4  # a node says that it has
SLURM_CONF = """ClusterName=lab
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is requeued waits until the credential of its first start has expired: 120 s if nothing is said.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
TopologyPlugin=topology/tree
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=5
OverTimeLimit=0
JobRequeue=1
MessageTimeout=10
NodeName={nodes} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP
"""
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
START_SECONDS = 30


def why_not() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (Debian: slurm-wlm, munge)" if missing else None


class Slurm:
    """Slurm on a cluster that is up."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.environment = {"SLURM_CONF": str(cluster.folder / "slurm.conf")}

    def up(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        folder, hosts = self.cluster.folder, self.cluster.hosts
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder, nodes=",".join(hosts), cpus=CPUS))
        (folder / "cgroup.conf").write_text(CGROUP_CONF)
        (folder / "topology.conf").write_text(self._topology())
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
        self._daemon("head", "munged", "--foreground", *options)
        until((folder / "munge.socket").exists, "munged did not start")
        self._daemon("head", "slurmctld", "-D", "-i")
        for host in hosts:
            self.start_node(host)
        self.wait_for_nodes(len(hosts))

    def start_node(self, host: str) -> None:
        """Start slurmd on a host (again)."""
        for name in ("spool", "tmp"):
            (self.cluster.folder / f"{name}-{host}").mkdir(exist_ok=True)
        self._daemon(host, "slurmd", "-D", "-N", host)

    def wait_for_nodes(self, count: int) -> None:
        """Until so many nodes are idle."""
        idle = ("sinfo", "-h", "-t", "idle", "-o", "%D")

        def is_ready() -> bool:
            return self.run(*idle, check=False).stdout.strip() == str(count)

        try:
            until(is_ready, "not all nodes are idle", START_SECONDS)
        except LabError as error:
            log = (self.cluster.folder / "slurmctld.log").read_text()[-3000:]
            raise LabError(f"{error}\n{self.run('sinfo', '-N', check=False).stdout}\n{log}") from None

    def run(self, *command, **options):
        """Run a command on `head`, where Slurm's are configured."""
        return self.cluster.run("head", *command, **self.environment | options)

    def submit(self, *words, **options) -> str:
        """`sbatch WORDS`; returns the number of the job."""
        return self.run("sbatch", "--parsable", *words, **options).stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        text = self.run("scontrol", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait(self, number: str, *, states=SOON, seconds: float = 60) -> dict[str, str]:
        """Wait until a job is in one of some states (default: any in which it has ended)."""
        until(lambda: self.job(number)["JobState"] in states, f"job {number} is not {' or '.join(states)}", seconds)
        return self.job(number)

    def _daemon(self, host: str, *command: str) -> None:
        """Start a program that is ended by the end of its host."""
        log = self.cluster.folder / f"{command[0]}-{host}.out"
        line = 'log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null &'
        self.cluster.run(host, "sh", "-c", line, "sh", log, *command, **self.environment)

    def _topology(self) -> str:
        places = (line.split() for line in (self.cluster.folder / "leaves").read_text().splitlines())
        leaves = {leaf: [host for host, _ in of] for leaf, of in itertools.groupby(places, key=lambda place: place[1])}
        lines = [f"SwitchName={leaf} Nodes={','.join(hosts)}" for leaf, hosts in leaves.items()]
        return "\n".join([*lines, f"SwitchName=spine Switches={','.join(leaves)}"]) + "\n"
