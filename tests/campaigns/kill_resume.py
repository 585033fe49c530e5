"""Runs that are killed again and again, and resumed on other ranks each time: nothing may be lost, wrong or stuck.

A sample runs with the tests. The whole campaign, half an hour of two cores:

    python -m tests.campaigns.kill_resume --kills 300 --seed 1

One random rank of a run gets SIGKILL at a random time or at a chosen point (fallible.py); now and then a signal or a
STOP file asks the run to stop instead. Then it goes on with --resume, as often on the same layout as on 1 to 7 other
ranks with another sharding and schedule, and is killed again, until it ends. Its output must then hold every pair once
and be verified row by row; of a reproducible run it must have the bits of one that was not killed.
The last line is JSON; the exit code is 0 if all of that held, nothing hung, and every valid generation was used.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import h5py
import numpy as np

from ringmpi.analysis.verify import verify_file
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.validity import problems
from tests.backends.natives import ISAS

FALLIBLE = Path(__file__).with_name("fallible.py")
ROOT = Path(__file__).parents[2]
NTH = {"compute": (1, 16), "shard": (1, 6), "manifest": (1, 4), "hop": (1, 4), "time": (30, 300), "merge": (1, 3)}
SOFT = {"signal": (100, 600), "stop": (0, 0)}  # the run is asked to stop: a signal comes; a STOP file is there
STOPPED, FAILED = 4, 3  # exit codes
ONLY_RANK_0 = {"manifest", "merge"}
MOST_RANKS = 7
LATE_SECONDS = 20  # --timeout of the runs
HANGS_SECONDS = 90  # a run that has not ended by itself by then, two --timeouts included
LENGTH, HEADS, KEY_HEADS, DIM = 317, 2, 1, 8
CALL = {"call_seconds": 0.008, "call_pairs": 600}
EVERY_SECONDS = 0.08, 0.005
HOP_SECONDS = 0.0, 0.0, 0.04  # so late all hops land: then orders find ranks that wait
MASKS = ('"causal"', '"full"', "{window = [90, 20]}", '{documents = {query = [100, 17, 200], within = "causal"}}')
SHARDINGS = ("contiguous", "zigzag", "balanced")
SCHEDULES = ("ring", "bidirectional", "all-gather")
BROADCAST = ("broadcast",)  # has other backward passes, which cannot take over from those of the others
KINDS = {"forward": "", "backward": '[backward]\ngrad_output = "do"\n'}
RESULTS = ("output", "log_sum_exp", "grad_query", "grad_key", "grad_value")


@dataclass
class Tally:
    """What has been seen."""

    kills: Counter = field(default_factory=Counter)
    stops: Counter = field(default_factory=Counter)
    runs: Counter = field(default_factory=Counter)
    faults: list = field(default_factory=list)
    lost_seconds: list = field(default_factory=list)

    def fault(self, kind, text):
        self.faults.append((kind, text))
        sys.stdout.write(f"FAULT {kind}: {text}\n")
        sys.stdout.flush()

    def of(self, kind):
        return sum(found == kind for found, _ in self.faults)


@dataclass
class Ended:
    """A job: how it ended, and when it was killed, if it was."""

    code: int | None
    text: str
    began: float
    killed: float | None


class Run:
    """One run, from its first start to its verified output, however often it is killed."""

    def __init__(self, random, folder, launcher, tally):
        self.random, self.folder, self.launcher, self.tally = random, folder, launcher, tally
        self.reproducible = random.random() < 0.3 and bool(ISAS)
        self.kind = random.choice(list(KINDS))
        self.mask = random.choice(MASKS)
        self.schedules = BROADCAST if random.random() < 0.25 else SCHEDULES
        if self.kind == "forward":
            self.schedules = SCHEDULES + BROADCAST
        self.ranks, self.layout = self.draw_layout()
        self.checkpoints = Checkpoints(folder / "checkpoints")
        rng = np.random.default_rng(random.getrandbits(32))
        with h5py.File(folder / "in.h5", "w") as file:
            for name, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS), ("do", HEADS)):
                file[name] = rng.standard_normal((heads, LENGTH, DIM), np.float32)
        ring = "[ring]\nreproducible = true\nblock = 32\n" if self.reproducible else ""
        inputs = 'file = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n'
        run = f'[input]\n{inputs}[attention]\nmask = {self.mask}\n{ring}{KINDS[self.kind]}[output]\nfile = "out.h5"\n'
        (folder / "once.toml").write_text(run)
        self.merged = random.random() < 0.8
        layout = "" if self.merged else 'layout = "virtual"\n'
        every = random.choice(EVERY_SECONDS)
        options = f'{layout}verify_rows = 0\n[checkpoint]\ndirectory = "checkpoints"\nevery_seconds = {every}\n'
        (folder / "run.toml").write_text(run + options)

    def __str__(self):
        return f"{self.kind}{', reproducible' * self.reproducible}, mask {self.mask}"

    def draw_layout(self):
        """Ranks, and options."""
        layout = ["--set", f"ring.sharding={self.random.choice(SHARDINGS)}"]
        if not self.reproducible:
            layout += ["--set", f"ring.schedule={self.random.choice(self.schedules)}"]
        return self.random.randint(1, MOST_RANKS), layout

    def start(self, point, nth, *arguments):
        """Start it, on the ranks of before or on others, and see how it ends."""
        random, marker = self.random, self.folder / "marker"
        marker.unlink(missing_ok=True)
        if random.random() < 0.5:
            self.ranks, self.layout = self.draw_layout()
        ranks, layout = self.ranks, self.layout
        if point == "stop":
            self.checkpoints.directory.mkdir(exist_ok=True)
            (self.checkpoints.directory / "STOP").touch()
        plan = {"point": point, "nth": nth, "marker": str(marker)} | CALL
        plan["hop_seconds"] = random.choice(HOP_SECONDS)
        plan["rank"] = 0 if point in ONLY_RANK_0 else random.randrange(ranks)
        command = [*self.launcher, "-n", str(ranks), sys.executable, FALLIBLE, json.dumps(plan), "run"]
        began = time.time()
        code, text = finish([*command, *arguments, *layout, "--timeout", str(LATE_SECONDS)], self.folder)
        said = f"{ranks} ranks, {' '.join(layout[1::2])}, {point} {nth} on rank {plan['rank']}"
        return Ended(code, f"{self}; {said}:\n{text}", began, float(marker.read_text()) if marker.exists() else None)

    def newest(self):
        """Number of the newest valid generation, and when it came to be; 0: there is none."""
        for generation in self.checkpoints.generations() if self.checkpoints.directory.exists() else ():
            if generation.manifest and not problems(generation):
                return generation.number, (generation.folder / "manifest.json").stat().st_mtime
        return 0, 0.0

    def whole(self, choose):
        """Start, kill and resume it until it has ended; then look at what it has left."""
        done = (self.folder / "out.h5").exists
        number, saved = 0, 0.0
        while True:
            point, nth = choose()
            ended = self.start(point, nth, "--resume", "run.toml")
            if not self.went_on(ended, number, done()):
                return
            before, (number, saved) = number, self.newest()
            if ended.code == STOPPED and point in SOFT:
                self.tally.stops[point] += 1
                if number <= before:
                    self.tally.fault("lost", f"stopped without having been saved. {ended.text}")
                continue
            if ended.killed is None or ended.code == 0 or (point in SOFT and ended.code == FAILED):
                break
            self.tally.kills[point] += 1
            if not done():
                self.tally.lost_seconds.append(ended.killed - max(saved, ended.began))
                if number < before:
                    self.tally.fault("lost", f"generation {before} is gone, the newest is {number}. {ended.text}")
        if ended.code == 0:
            self.judge(ended)
        else:
            self.tally.fault("refused", f"exit code {ended.code}, not killed. {ended.text}")

    def went_on(self, ended, number, finished):
        """Whether it ended at all, and began where it could."""
        if ended.code is None:
            self.tally.fault("hang", ended.text)
            return False
        found = re.search(r"going on from generation (\d+) ", ended.text)
        if found and int(found[1]) != number:
            self.tally.fault("lost", f"generation {number} was there. {ended.text}")
        if number and not found and "starting from the beginning" in ended.text:
            self.tally.fault("lost", f"generation {number} was not used. {ended.text}")
        return True

    def judge(self, ended):
        """Every pair once, every row right, and the same bits where they were promised."""
        self.tally.runs[f"{self.kind}{' reproducible' * self.reproducible}"] += 1
        certificate = verify_file(self.folder / "out.h5", rows=LENGTH)
        if not certificate.passed:
            self.tally.fault("wrong", f"{[check for check in certificate.checks if not check.passed]} {ended.text}")
        if left := self.left_behind():
            self.tally.fault("left behind", f"{left} {ended.text}")
        if self.reproducible:
            found = arrays(self.folder / "out.h5")
            once = self.start("none", 0, "once.toml", "--force")
            if once.code != 0 or found != arrays(self.folder / "out.h5"):
                self.tally.fault("wrong", f"other bits than those of a run that was not killed. {ended.text}")

    def left_behind(self):
        """Files that nobody needs any more."""
        kept = re.compile(r"out\.h5" if self.merged else r"out\.h5(\.part-[0-9a-f]+-\d+)?")
        names = [path.name for path in self.folder.glob("out.h5*") if not kept.fullmatch(path.name)]
        return names + [str(generation.folder) for generation in self.checkpoints.generations()]


def finish(command, folder):
    """Exit code and messages of a job; no exit code if it had to be ended."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        cwd=folder, env=settings, start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = job.communicate(timeout=HANGS_SECONDS)
        return job.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        return None, job.communicate()[0]


def arrays(path):
    with h5py.File(path) as file:
        return {name: file[name][...].tobytes() for name in RESULTS if name in file}


def own_launcher():
    """mpirun as MPIRUN says, else the one beside this Python."""
    beside = Path(sys.executable).with_name("mpirun")
    return shlex.split(os.environ.get("MPIRUN", "")) or [str(beside)]


def campaign(launcher, kills, seed, most_seconds=float("inf")):
    """Kill runs until there are so many kills, and end them all."""
    random, tally, began = Random(seed), Tally(), time.monotonic()

    def choose():
        """Where to kill next: the points take turns; nowhere, now and then, and when there have been enough."""
        draw = random.random()
        if draw < 0.1 or tally.kills.total() >= kills or time.monotonic() - began > most_seconds:
            return "none", 0
        if draw < 0.35:
            point = random.choice(list(SOFT))
            return point, random.randint(*SOFT[point])
        fewest = min(tally.kills[point] for point in NTH)
        point = random.choice([point for point in NTH if tally.kills[point] <= fewest + 1])
        return point, random.randint(*NTH[point])

    while tally.kills.total() < kills and time.monotonic() - began < most_seconds:
        folder = Path(tempfile.mkdtemp(prefix="kill-resume-"))
        try:
            before = len(tally.faults)
            Run(random, folder, launcher, tally).whole(choose)
        finally:
            if len(tally.faults) == before:
                shutil.rmtree(folder)
    return tally


def report(tally, seconds):
    lost = tally.lost_seconds or [0.0]
    return {
        "kills": tally.kills.total(), "by_point": dict(tally.kills), "stops": dict(tally.stops),
        "runs_ended": dict(tally.runs),
        "hangs": tally.of("hang"), "wrong": tally.of("wrong"), "lost_generations": tally.of("lost"),
        "refused": tally.of("refused"), "left_behind": tally.of("left behind"),
        "mean_seconds_redone": round(float(np.mean(lost)), 3),
        "most_seconds_redone": round(max(lost), 3), "seconds": round(seconds, 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no more kills after so many")
    options = parser.parse_args()
    began = time.monotonic()
    tally = campaign(own_launcher(), options.kills, options.seed, options.seconds)
    sys.stdout.write(json.dumps(report(tally, time.monotonic() - began)) + "\n")
    even = all(tally.kills[point] >= options.kills / 10 for point in NTH)
    sys.exit(0 if even and tally.kills.total() >= options.kills and not tally.faults else 1)


if __name__ == "__main__":
    main()
