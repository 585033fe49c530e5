import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage import files
from ringmpi.storage.files import check_destination, replacing, storage_errors
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.results import Results
from ringmpi.storage.shards import shard_path
from tests.storage.samples import make_account, make_arrays, write_parts, write_results

SHARDING = Sharding.contiguous(10, 2)


def _fail(*_args, **_options):
    raise OSError(errno.EIO, "disk gone")


def _kill(*_args, **_options):
    raise KeyboardInterrupt


@pytest.fixture
def parts(tmp_path, rng):
    return write_parts(tmp_path / "out.h5", SHARDING, *make_arrays(rng, (2, 10, 4), "float32"))


def _merge(tmp_path, **options):
    parts = [shard_path(tmp_path / "out.h5", rank) for rank in range(2)]
    merge_shards(parts, tmp_path / "out.h5", shapes=result_shapes((2, 10, 4)), account=make_account(2), **options)


@pytest.mark.parametrize(
    "where", ["ringmpi.storage.merge.write_bits", "ringmpi.storage.merge.write_account", "pathlib.Path.replace"]
)
@pytest.mark.parametrize("stop", [_fail, _kill], ids=["error", "interrupt"])
def test_a_merge_that_stops_leaves_no_destination_and_all_parts(tmp_path, parts, monkeypatch, where, stop):
    with monkeypatch.context() as patch:
        patch.setattr(where, stop)
        with pytest.raises(StorageError if stop is _fail else KeyboardInterrupt):
            _merge(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(parts)
    _merge(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


def test_a_failed_replacement_keeps_the_older_file(tmp_path, rng, monkeypatch):
    arrays = make_arrays(rng, (2, 10, 4), "float32")
    before = write_results(tmp_path / "out.h5", SHARDING, *arrays).read_bytes()
    write_parts(tmp_path / "out.h5", SHARDING, *arrays)
    monkeypatch.setattr("ringmpi.storage.merge.write_bits", _fail)
    with pytest.raises(StorageError, match="Input/output error"):
        _merge(tmp_path, force=True)
    assert (tmp_path / "out.h5").read_bytes() == before


def test_the_file_is_on_the_disk_before_its_name_and_the_name_before_the_parts_go(tmp_path, parts, monkeypatch):
    done = []
    sync, replace, unlink = files.sync, Path.replace, Path.unlink
    monkeypatch.setattr(files, "sync", lambda path: (done.append(("sync", path.name)), sync(path)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append(("rename", to.name)), replace(self, to)))
    monkeypatch.setattr(Path, "unlink", lambda self, **o: (done.append(("remove", self.name)), unlink(self, **o)))
    _merge(tmp_path)
    removed = [("remove", part.name) for part in parts]
    assert done == [("sync", "out.h5.tmp"), ("rename", "out.h5"), ("sync", tmp_path.name), *removed]


def test_a_killed_process_leaves_no_destination_and_the_next_run_is_not_hindered(tmp_path, parts):
    code = (
        "import os, signal, sys\n"
        "from ringmpi.storage import files\n"
        "from tests.storage.test_files import _merge\n"
        "files.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from pathlib import Path\n"
        "_merge(Path(sys.argv[1]))\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert ended.returncode == -signal.SIGKILL
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["out.h5.tmp", *(part.name for part in parts)])
    check_destination(tmp_path / "out.h5")
    _merge(tmp_path)
    with Results(tmp_path / "out.h5") as results:
        assert results.output.rows([3]).shape == (1, 2, 1, 4)


def test_a_disk_that_takes_no_more_is_a_storage_error_and_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with (
            pytest.raises(StorageError, match=r"cannot write .*out\.h5: File too large"),
            replacing(tmp_path / "out.h5") as file,
        ):
            file["x"] = np.zeros(100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named_with_its_free_bytes(tmp_path):
    with (
        pytest.raises(
            StorageError, match=r"cannot write .*x\.h5: No space left on device\. [\d,]+ bytes are free there"
        ),
        storage_errors("write", tmp_path / "x.h5"),
    ):
        raise OSError(errno.ENOSPC, "")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError(errno.EACCES, ""), "permissions"),
        (OSError(errno.ENAMETOOLONG, ""), "limits of its file system"),
        (OSError("unable to lock file"), "Another process"),
        (RuntimeError("odd"), "h5dump"),
        (KeyError("no object"), "h5dump"),
        (ValueError("odd"), "h5dump"),
        (TypeError("no NumPy equivalent"), "h5dump"),
    ],
)
def test_errors_of_h5py_become_storage_errors_with_advice(error, advice):
    with (
        pytest.raises(StorageError, match=f"cannot read a.h5, dataset /x: .*{advice}") as raised,
        storage_errors("read", Path("a.h5"), "/x"),
    ):
        raise error
    assert raised.value.__cause__ is error


def test_errors_of_ringmpi_pass_unchanged():
    ours = ShapeError("mine")
    with pytest.raises(ShapeError) as raised, storage_errors("read", Path("a.h5")):
        raise ours
    assert raised.value is ours


def test_an_existing_destination_needs_force(tmp_path, rng):
    arrays = make_arrays(rng, (2, 10, 4), "float32")
    path = write_results(tmp_path / "out.h5", SHARDING, *arrays)
    with pytest.raises(StorageError, match=r"out\.h5 exists .*--force"):
        check_destination(path)
    check_destination(path, force=True)
    with pytest.raises(StorageError, match="--force"):
        write_results(path, SHARDING, *arrays)
    write_results(path, SHARDING, arrays[0][:, ::-1], arrays[1], force=True)
    with Results(path) as results:
        assert np.array_equal(results.output.rows([9])[0].view("u4"), arrays[0][:, :1].view("u4"))


def test_a_missing_directory_is_made_and_the_check_leaves_nothing_in_it(tmp_path):
    check_destination(tmp_path / "a" / "b" / "out.h5")
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"]
    assert not list((tmp_path / "a" / "b").iterdir())


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_or_device_is_no_destination(tmp_path, force):
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(StorageError, match="directory or device"):
            check_destination(path, force=force)


def test_a_directory_that_cannot_be_made_or_written_to_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory|File exists"):
        check_destination(tmp_path / "file" / "out.h5")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: _deny())
    with pytest.raises(StorageError, match=r"cannot write to the directory of .*out\.h5: Permission denied"):
        check_destination(tmp_path / "out.h5")


def _deny():
    raise PermissionError(errno.EACCES, "")


def test_too_few_free_bytes_are_refused_before_the_work(tmp_path):
    check_destination(tmp_path / "out.h5", bytes_needed=1)
    with pytest.raises(StorageError, match=r"needs 1,152,921,504,606,846,976 bytes .* bytes are free"):
        check_destination(tmp_path / "out.h5", bytes_needed=1 << 60)


def test_a_file_open_for_writing_elsewhere_is_named(tmp_path):
    code = "import h5py, sys; f = h5py.File(sys.argv[1], 'w'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "x.h5"], stdin=-1, stdout=-1) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StorageError, match=r"x\.h5"):
            files.open_file(tmp_path / "x.h5")
        other.stdin.close()
    with h5py.File(tmp_path / "x.h5"):
        pass


@pytest.mark.parametrize(
    ("name", "encoding", "advice"),
    [("n\udcff", "utf-8", "Its name is not valid UTF-8: rename it."), ("\xe4", "ascii", "set LC_ALL=C.UTF-8")],
)
def test_a_name_that_cannot_be_said_is_to_be_renamed_or_the_locale_set(name, encoding, advice):
    with pytest.raises(StorageError, match=advice), storage_errors("write", Path("out.h5")):
        name.encode(encoding)
