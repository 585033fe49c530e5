"""A small cluster on one machine: hosts on two leaf switches with links of a given rate, all of them Linux namespaces.

A host is a process that holds a network, a name, a process table, System V memory and /dev/shm of its own; the files
are those of the machine. All hosts live inside `head`, so killing it removes everything, links included. Needs root,
util-linux and iproute2. Only the rate of a link is shaped (tbf): many kernels lack netem.
"""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

AGENT = Path(__file__).with_name("agent")
NEEDED = ("unshare", "nsenter", "ip", "tc", "setpriv")
OWN = ("--net", "--uts", "--ipc", "--mount")
# What holds a host: process 1 of its table. It collects what its children leave, and does nothing else.
HOLD = """set -e
hostname "$1"
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
ip link set lo up
: > "$2/$1.ready"
sleep infinity & wait
"""
BURST = "128kb"  # over 64 kB, so that large segments pass whole: far less work for the kernel
QUEUE = "200ms"  # long enough that four flows on one link lose nothing
START_SECONDS = 10


class LabError(Exception):
    """The lab cannot be made, or something in it did not work."""


def why_not() -> str | None:
    """Why no lab can be made here; None if one can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: util-linux, iproute2)"
    tried = subprocess.run(["unshare", *OWN, "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return (
        f"needs the right to make namespaces, which root lacks here: {tried.stderr.strip()}"
        if tried.returncode
        else None
    )


class Cluster:
    """Hosts n0, n1, ... on leaf switches under one spine, and `head` on the spine, for launchers and daemons.

    Parameters
    ----------
    folder
        State of this lab, for example below /run. One lab a folder; labs do not see each other.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._head: subprocess.Popen | None = None

    @property
    def hosts(self) -> list[str]:
        """Names, leaf by leaf."""
        lines = (self.folder / "hosts").read_text().splitlines()
        return [line.split()[1] for line in lines if line.split()[1].startswith("n")]

    def up(self, hosts=8, leaves=2, *, rate="200mbit", uplink="200mbit", outlives=False) -> None:
        """Make the lab; what was left of an earlier one in this folder is removed first.

        `rate` is that of every host link, `uplink` that between a leaf and the spine ("none": not shaped). The lab ends
        with this process, unless it `outlives` it.
        """
        if reason := why_not():
            raise LabError(reason)
        self.down()
        self.folder.mkdir(parents=True)
        names = [f"n{host}" for host in range(hosts)]
        addresses = [f"10.77.0.{10 + host} {name}" for host, name in enumerate(names)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "10.77.0.9 head", *addresses]) + "\n")
        (self.folder / "leaves").write_text("\n".join(f"{n} leaf{i * leaves // hosts}" for i, n in enumerate(names)))
        try:
            self._start_head(outlives)
            self._start_switches(leaves, uplink)
            for name in ["head", *names]:
                self.start(name, rate=rate)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Remove the lab and all that runs in it. No lab, no harm."""
        holder = self.folder / "head.pid"
        if holder.exists() and self._is_holder(pid := holder.read_text().strip()):
            os.kill(int(pid), 9)
            if self._head:
                self._head.wait()
            until(lambda: not self._is_holder(pid), "the lab did not end")
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, *, rate="200mbit") -> None:
        """Connect `head`, or start a host (again) and connect it."""
        if name != "head":
            self._hold(name)
        bridge, address = self._bridge(name), self._address(name)
        with contextlib.suppress(LabError):  # of a host that was killed; mostly the kernel has removed it
            self._ip("switch", f"link del p-{name}")
        pid = "1" if name == "head" else self._pid(name)
        self._ip("switch", f"link add p-{name} type veth peer name eth0 netns {pid}")
        self._ip("switch", f"link set p-{name} master {bridge} up")
        self._ip(name, f"addr add {address}/24 dev eth0")
        self._ip(name, "link set eth0 up")
        self.reshape(name, "none" if name == "head" else rate)

    def kill(self, name: str) -> None:
        """End a host as a power cut does: nothing on it says goodbye, and its link is dead."""
        self.run("head", "kill", "-9", self._pid(name))

    def reshape(self, name: str, rate: str, *, queue: str = QUEUE) -> None:
        """Give the link of a host another rate, in both directions; `queue`: how long what is sent may wait there."""
        self._shape(name, "eth0", rate, queue)
        self._shape("switch", f"p-{name}", rate, queue)

    def reshape_uplink(self, leaf: int, rate: str) -> None:
        """Give the link between a leaf and the spine another rate, in both directions."""
        self._shape("switch", f"up{leaf}", rate)
        self._shape("switch", f"down{leaf}", rate)

    def enter(self, host: str, folder: Path | None = None) -> list[str]:
        """Words to put in front of a command that is to run on a host, in a folder (default: the one we are in)."""
        head = (self.folder / "head.pid").read_text().strip()
        inside = ["nsenter", "--target", head, *OWN, f"--pid=/proc/{head}/ns/pid_for_children"]
        if host != "head":
            pid = self._pid(host)
            inside += ["nsenter", "--target", pid, *OWN, f"--pid=/proc/{pid}/ns/pid_for_children"]
        return [*inside, "env", "-C", str(folder or Path.cwd()), f"RINGMPI_LAB={self.folder}"]

    def run(self, host, *command, seconds=60, check=True, folder=None, **environment) -> subprocess.CompletedProcess:
        """Run a command on a host; text in `stdout` and `stderr`. What takes longer than `seconds` is ended there."""
        words = [*self.enter(host, folder), "timeout", "-k", "2", str(seconds), *map(str, command)]
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | environment,
            timeout=seconds + 10,
        )
        if check and done.returncode:
            said = (done.stdout + done.stderr)[-4000:]
            raise LabError(f"{' '.join(map(str, command))} on {host}: exit status {done.returncode}\n{said}")
        return done

    def _start_head(self, outlives: bool) -> None:
        """The process in whose namespaces everything lives; the kernel ends it with us."""
        leash = [] if outlives else ["setpriv", "--pdeathsig", "KILL"]
        words = [*leash, *self._holder("head")]
        with (self.folder / "head.log").open("w") as log:
            self._head = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self.folder / "head.pid").write_text(str(self._head.pid))
        self._wait_for("head")

    def _start_switches(self, leaves: int, uplink: str) -> None:
        self._hold("switch")
        for bridge in ["spine", *(f"leaf{leaf}" for leaf in range(leaves))]:
            self._ip("switch", f"link add {bridge} type bridge")
            self._ip("switch", f"link set {bridge} up")
        for leaf in range(leaves):
            self._ip("switch", f"link add up{leaf} type veth peer name down{leaf}")
            self._ip("switch", f"link set up{leaf} master leaf{leaf} up")
            self._ip("switch", f"link set down{leaf} master spine up")
            self.reshape_uplink(leaf, uplink)

    def _holder(self, name: str) -> list[str]:
        own = [*OWN, "--pid", "--fork", "--kill-child", "--mount-proc"]
        return ["unshare", *own, "bash", "-c", HOLD, "ringmpi-lab", name, str(self.folder)]

    def _hold(self, name: str) -> None:
        """Start the process that holds a host; its number, as `head` counts, is left in the folder."""
        (self.folder / f"{name}.ready").unlink(missing_ok=True)
        note = 'log=$1 pid=$2; shift 2; setsid "$@" >"$log" 2>&1 </dev/null & echo $! >"$pid"'
        files = [self.folder / f"{name}.log", self.folder / f"{name}.pid"]
        self.run("head", "sh", "-c", note, "sh", *files, *self._holder(name))
        self._wait_for(name)

    def _wait_for(self, name: str) -> None:
        log = self.folder / f"{name}.log"
        try:
            until((self.folder / f"{name}.ready").exists, f"{name} did not start")
        except LabError as error:
            raise LabError(f"{error}: {log.read_text() if log.exists() else 'no log'}") from None

    def _is_holder(self, pid: str) -> bool:
        command = Path(f"/proc/{pid}/cmdline")
        return command.exists() and str(self.folder).encode() in command.read_bytes().split(b"\0")

    def _pid(self, name: str) -> str:
        return (self.folder / f"{name}.pid").read_text().strip()

    def _bridge(self, name: str) -> str:
        places = dict(line.split() for line in (self.folder / "leaves").read_text().splitlines())
        return places.get(name, "spine")

    def _address(self, name: str) -> str:
        lines = [line.split() for line in (self.folder / "hosts").read_text().splitlines()]
        return next(address for address, host in lines if host == name)

    def _ip(self, host: str, words: str) -> None:
        """The switch is no host to enter: only its network is looked at, from `head`, which counts its processes."""
        net = [] if host == "head" else ["nsenter", "--target", self._pid(host), "--net"]
        self.run("head", *net, "ip", *words.split())

    def _shape(self, host: str, device: str, rate: str, queue: str = QUEUE) -> None:
        net = [] if host == "head" else ["nsenter", "--target", self._pid(host), "--net"]
        if rate != "none":
            shape = f"tbf rate {rate} burst {BURST} latency {queue}"
            self.run("head", *net, "tc", *f"qdisc replace dev {device} root {shape}".split())


def until(holds, otherwise: str, seconds: float = START_SECONDS) -> None:
    """Wait until something holds, looking ten times a second; LabError says otherwise."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise LabError(f"{otherwise} within {seconds:g} s")
        time.sleep(0.1)
