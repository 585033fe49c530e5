"""Checkpoints and outputs where storage is unwell: full, forbidden, without locks, late, moved, shared by users."""

import errno
import logging
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage import visibility
from ringmpi.storage.files import replace_text
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.lock import only_run
from ringmpi.storage.rank_state import RankState
from ringmpi.storage.validity import newest_valid, problems
from tests.storage.checkpoint_samples import save_generation
from tests.storage.samples import make_arrays, write_results
from tests.test_docs import ROOT

NOBODY = 65534
SHARDING = Sharding.zigzag(41, 3)
PRELUDE = """
import os, sys
from pathlib import Path
import numpy as np
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.rank_state import RankState, StateArray, write_rank_state
from ringmpi.storage.validity import newest_valid, problems
from tests.storage.checkpoint_samples import save_generation
from tests.storage.samples import make_arrays, write_results
rng, folder = np.random.default_rng(5), Path(sys.argv[1])
checkpoints = Checkpoints(folder)
state = {"sums": StateArray([range(20000)], np.ones((1, 2, 20000, 16), "f4"))}  # 2.5 MB
"""


@pytest.fixture
def checkpoints(tmp_path):
    found = Checkpoints(tmp_path / "checkpoints")
    found.prepare()
    return found


def python(program, folder, *, before=(), environment=None, **options):
    """A program after PRELUDE, in a process of its own; what it printed."""
    done = subprocess.run(
        [*before, sys.executable, "-c", PRELUDE + program, os.fsencode(folder)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        capture_output=True, text=True, errors="surrogateescape", timeout=60, check=False, **options,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def in_own_mounts(program, folder, *, mount):
    """The same where `mount`, a command of the shell, has been done for this process alone; skipped where it cannot."""
    before = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything for itself")
    return python(program, folder, before=before)


@pytest.fixture
def seen_by_all():
    """Checkpoints in a directory that everybody may enter; those of pytest are their owner's alone."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        found = Checkpoints(Path(folder) / "checkpoints")
        found.prepare()
        yield found


def as_nobody(program, folder):
    """The same as a user without rights; once Python has started, which may be in a place of root's."""
    become = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    return python(become + program, folder)


# ---- full, or forbidden


FILL = """
save_generation(checkpoints, rng)
checkpoints.begin(2)
try:
    write_rank_state(checkpoints.rank_path(2, 0), state, {})
except StorageError as error:
    print(error)
print(sorted(path.name for path in folder.rglob("*.h5*")))
print(newest_valid(checkpoints.generations()[1:], problems)[0].number)
"""


def test_a_disk_that_is_full(checkpoints):
    """A real one, of 1 MB."""
    mount = f"mount -t tmpfs -o size=1m tmpfs '{checkpoints.directory}'"
    error, left, valid = in_own_mounts(FILL, checkpoints.directory, mount=mount).splitlines()
    assert "generation-000002/rank-00000.h5: No space left on device. " in error
    assert "bytes are free there; make room" in error
    assert (left, valid) == ("['rank-00000.h5', 'rank-00001.h5', 'rank-00002.h5']", "1")


def test_a_directory_that_becomes_read_only(checkpoints, rng):
    save_generation(checkpoints, rng)
    save_generation(checkpoints, rng, keep=1)
    program = """
for act in (checkpoints.prepare, lambda: write_rank_state(checkpoints.rank_path(2, 0), state, {}),
            lambda: checkpoints.begin(3), lambda: checkpoints.ask_requeue("why"), checkpoints.clear,
            lambda: checkpoints.hold().__enter__()):
    try:
        act()
    except StorageError as error:
        print(error)
checkpoints.discard(1)
print(newest_valid(checkpoints.generations(), problems)[0].number)
"""
    quoted = f"'{checkpoints.directory}'"
    mount = f"mount --bind {quoted} {quoted} && mount -o remount,ro,bind {quoted}"
    *errors, valid = in_own_mounts(program, checkpoints.directory, mount=mount).splitlines()
    refused = [": Read-only file system. Change its permissions or choose another place." in e for e in errors]
    assert refused == [True] * 6
    assert valid == "2"


def test_a_directory_that_one_rank_may_not_write(seen_by_all, rng):
    save_generation(seen_by_all, rng)
    program = """
try:
    write_rank_state(checkpoints.rank_path(1, 1), state, {})
except StorageError as error:
    print(error)
print(problems(checkpoints.generations()[0]))
"""
    error, good = as_nobody(program, seen_by_all.directory).splitlines()
    assert "generation-000001/rank-00001.h5: Permission denied. Change its permissions" in error
    assert good == "[]"


def test_files_that_one_rank_may_not_read(seen_by_all, rng):
    save_generation(seen_by_all, rng)
    save_generation(seen_by_all, rng, keep=1)
    seen_by_all.rank_path(2, 1).chmod(0o600)
    (seen_by_all.directory / "generation-000001").chmod(0o700)
    program = "print(*newest_valid(checkpoints.generations(), problems)[1], sep='\\n')"
    newer, older = as_nobody(program, seen_by_all.directory).splitlines()
    assert "generation 2 is passed over: cannot read" in newer
    assert "rank-00001.h5: Permission denied" in newer
    assert "generation 1 is passed over: cannot read" in older
    assert "Permission denied" in older


def test_a_limit_on_the_size_of_files_leaves_no_manifest(checkpoints, rng):
    save_generation(checkpoints, rng)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*manifest\.json: File too large"):
            replace_text(checkpoints.directory / "generation-000001" / "manifest.json", "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest_valid(checkpoints.generations(), problems)[1] == []


# ---- locks


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, 524])
def test_a_file_system_without_locks_hinders_nobody(tmp_path, monkeypatch, number):
    monkeypatch.setattr("fcntl.lockf", lambda *_: (_ for _ in ()).throw(OSError(number, "no locks")))
    with only_run(tmp_path / "out.h5"):
        assert (tmp_path / "out.h5.lock").exists()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EAGAIN, r"\{out\.h5 is being written by another run \(another process\)"),
        (errno.EACCES, r"\{out\.h5 is being written by another run \(another process\)"),
        (errno.EIO, r"cannot lock .*\{out\.h5\.lock: Input/output error"),
    ],
)
def test_a_lock_that_is_refused_is_told_from_a_disk_that_fails(tmp_path, monkeypatch, number, says):
    monkeypatch.setattr("fcntl.lockf", lambda *_: (_ for _ in ()).throw(OSError(number, "refused")))
    with pytest.raises(StorageError, match=says), only_run(tmp_path / "{out.h5"):
        pass


NO_FLOCK = """
#include <errno.h>
#include <stdlib.h>
int flock(int file, int how) { errno = atoi(getenv("FLOCK_ERRNO")); return -1; }
"""


@pytest.fixture(scope="module")
def no_flock(tmp_path_factory):
    """A library that takes away flock, which HDF5 calls."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("flock")
    (folder / "flock.c").write_text(NO_FLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "flock.so", folder / "flock.c"], check=True)
    return folder / "flock.so"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, 524])
def test_hdf5_writes_and_reads_where_there_are_no_locks(tmp_path, no_flock, number):
    program = """
save_generation(checkpoints, rng)
with RankState(checkpoints.rank_path(1, 0)) as found:
    print(found.arrays["row_max"].shape)
write_results(folder / "out.h5", Sharding.contiguous(9, 2), *make_arrays(rng, (2, 9, 4), "float32"))
"""
    environment = {"LD_PRELOAD": str(no_flock), "FLOCK_ERRNO": str(number)}
    assert python(program, tmp_path, environment=environment) == "(1, 2, 13)\n"


def test_two_runs_in_one_directory_are_kept_apart_whatever_they_call_it(checkpoints, tmp_path):
    (tmp_path / "other-name").symlink_to(checkpoints.directory)
    program = "import time\nwith checkpoints.hold(): print('held', flush=True); sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program, tmp_path / "other-name"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert first.stdout.readline() == "held\n"
        says = rf"checkpoints is being written by another run \(process {first.pid} on .*name another directory in"
        with pytest.raises(StorageError, match=says), checkpoints.hold():
            pass
    finally:
        first.kill()
        first.communicate()
    with checkpoints.hold():
        assert (checkpoints.directory / "LOCK").exists()
    assert not (checkpoints.directory / "LOCK").exists()


# ---- late, old, moved and shared files


def test_a_file_that_appears_late_is_waited_for(checkpoints, rng, caplog):
    save_generation(checkpoints, rng)
    path = checkpoints.rank_path(1, 2)
    path.rename(path.with_name("late"))
    appearing = threading.Timer(0.4, path.with_name("late").rename, [path])
    appearing.start()
    with caplog.at_level(logging.WARNING, "ringmpi"):
        assert problems(checkpoints.generations()[0]) == []
    appearing.join()
    assert caplog.messages == [f"{path} is not there; looking again for 5 s"]


def test_waiting_for_a_file_has_an_end(checkpoints, rng, monkeypatch):
    monkeypatch.setattr(visibility, "VISIBILITY_SECONDS", 0.3)
    save_generation(checkpoints, rng)
    checkpoints.rank_path(1, 2).unlink()
    started = time.monotonic()
    assert problems(checkpoints.generations()[0]) == [f"{checkpoints.rank_path(1, 2)} is missing"]
    with pytest.raises(StorageError, match=r"rank-00002\.h5: No such file"):
        RankState(checkpoints.rank_path(1, 2)).__enter__()
    assert 0.6 <= time.monotonic() - started < 5


def test_many_missing_files_are_waited_for_at_once_and_told_in_one_line(checkpoints, rng, monkeypatch, caplog):
    """A file system that removes what is old has removed them all."""
    monkeypatch.setattr(visibility, "VISIBILITY_SECONDS", 0.3)
    save_generation(checkpoints, rng, Sharding.contiguous(41, 9))
    for rank in range(9):
        checkpoints.rank_path(1, rank).unlink()
    started = time.monotonic()
    chosen, (said,) = newest_valid(checkpoints.generations(), problems)
    assert chosen is None
    assert said.endswith("rank-00003.h5 is missing; and 5 more problems")
    assert time.monotonic() - started < 2
    assert caplog.messages == [f"{checkpoints.rank_path(1, 0)} and 8 others are not there; looking again for 0.3 s"]


def test_files_of_an_older_run_with_more_ranks_do_not_count(checkpoints, rng):
    """An attempt on 5 ranks was killed before its manifest; its files lie where those of 3 ranks come."""
    save_generation(checkpoints, rng, Sharding.contiguous(41, 5))
    (checkpoints.directory / "generation-000001" / "manifest.json").unlink()
    stale = [checkpoints.rank_path(2, rank) for rank in range(5)]
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        shutil.copy(checkpoints.rank_path(1, 3), path)
        path.with_name(path.name + ".tmp").touch()
    checkpoints.next_number = lambda: 2
    save_generation(checkpoints, rng, SHARDING)
    newest = checkpoints.generations()[0]
    assert (newest.number, len(newest.manifest.files), problems(newest)) == (2, 3, [])
    del checkpoints.next_number
    save_generation(checkpoints, rng, SHARDING, keep=None)
    assert sorted(path.name for path in checkpoints.directory.iterdir()) == ["generation-000003"]


def test_the_newest_is_told_by_its_number_whatever_the_clocks_say(checkpoints, rng):
    save_generation(checkpoints, rng)
    save_generation(checkpoints, rng, keep=1)
    for path in (checkpoints.directory / "generation-000002", *checkpoints.directory.glob("generation-000002/*")):
        os.utime(path, (1, 1))
    assert newest_valid(checkpoints.generations(), problems)[0].number == 2


def test_a_directory_may_be_moved(checkpoints, rng, tmp_path):
    save_generation(checkpoints, rng)
    moved = Checkpoints(checkpoints.directory.rename(tmp_path / "elsewhere"))
    chosen, said = newest_valid(moved.generations(), problems)
    assert (chosen.number, said) == (1, [])
    with RankState(chosen.folder / chosen.manifest.files[0].name) as state:
        assert state.ranges["row_max"] == SHARDING.shards[0]


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_files_follow_the_umask(checkpoints, rng, tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        save_generation(checkpoints, rng)
        checkpoints.ask_requeue("why")
        write_results(tmp_path / "out.h5", Sharding.contiguous(9, 2), *make_arrays(rng, (2, 9, 4), "float32"))
        with checkpoints.hold():
            lock = checkpoints.directory / "LOCK"
            modes = {path.name: path.stat().st_mode for path in (lock, *tmp_path.rglob("*")) if path != tmp_path}
    finally:
        os.umask(before)
    assert {name: stat.S_IMODE(found) for name, found in modes.items() if stat.S_ISREG(found)} == dict.fromkeys(
        ("LOCK", "REQUEUE", "manifest.json", "out.h5", *(f"rank-{rank:05d}.h5" for rank in range(3))), mode
    )
    assert stat.S_IMODE(modes["generation-000001"]) == mode | ((mode >> 2) & 0o111)


def test_another_user_of_the_group_goes_on_in_a_shared_directory(seen_by_all, rng):
    os.chown(seen_by_all.directory, -1, NOBODY)
    seen_by_all.directory.chmod(0o2775)
    before = os.umask(0o002)
    try:
        save_generation(seen_by_all, rng)
    finally:
        os.umask(before)
    program = """
os.umask(0o002)
with checkpoints.hold():
    print(newest_valid(checkpoints.generations(), problems)[0].number)
    save_generation(checkpoints, rng)
"""
    assert as_nobody(program, seen_by_all.directory) == "1\n"
    assert [generation.number for generation in seen_by_all.generations()] == [2]


def test_names_that_are_not_ascii_in_the_plain_locale(tmp_path):
    program = """
save_generation(checkpoints, rng)
print(newest_valid(checkpoints.generations(), problems)[0].number)
write_results(folder / "out.h5", Sharding.contiguous(9, 2), *make_arrays(rng, (2, 9, 4), "float32"))
checkpoints.rank_path(1, 0).unlink()
try:
    write_rank_state(folder / "file" / "rank-00000.h5", state, {})
except StorageError as error:
    print(str(error).encode("ascii", "backslashreplace"))
"""
    folder = tmp_path / "\u00fcbung \u043f\u0435\u0440\u0435\u0432\u043e\u0434"
    folder.mkdir()
    (folder / "file").touch()
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    number, error = python(program, folder, environment=plain).splitlines()
    assert number == "1"
    assert "cannot write" in error
    assert (folder / "out.h5").exists()
    assert [path.name for path in Path(folder).glob("generation-*")] == ["generation-000001"]
