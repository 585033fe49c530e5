"""Ten damages of an output, each found and named by verify: by itself, and against a certificate of the time before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from ringmpi.analysis.certify import certify_file, verify_against
from ringmpi.analysis.evidence import write_evidence
from ringmpi.analysis.verify import verify_file
from ringmpi.errors import StorageError
from tests.analysis.written import Case, write_run

ROOT = Path(__file__).parents[2]
NOBODY = 65534
CERTIFICATE = "cert.json"


def one_byte(path):
    with h5py.File(path) as file:
        place = file["output"].id.get_offset() + 1001
    with path.open("r+b") as raw:
        raw.seek(place)
        byte = raw.read(1)[0]
        raw.seek(place)
        raw.write(bytes([byte ^ 1]))


def swapped_rows(path):
    with h5py.File(path, "r+") as file:
        for name in ("output", "log_sum_exp"):
            rows = file[name][...]
            rows[:, [20, 40]] = rows[:, [40, 20]]
            file[name][...] = rows


def truncation(path):
    os.truncate(path, path.stat().st_size - 100)


def missing_shard(path):
    next(path.parent.glob("out.h5.part-*-00001")).unlink()


def other_input(path):
    """Of the same size, and of the same time of change."""
    given = path.with_name("input.h5")
    times = given.stat()
    with h5py.File(given, "r+") as file:
        file["v"][...] = np.roll(file["v"][...], 1, axis=1)
    os.utime(given, ns=(times.st_atime_ns, times.st_mtime_ns))


def configured(path, old, new):
    with h5py.File(path, "r+") as file:
        attributes = file["provenance"].attrs
        assert old in attributes["configuration"]
        attributes["configuration"] = attributes["configuration"].replace(old, new)


def other_mask(path):
    configured(path, '"causal"', '"full"')


def other_scale(path):
    configured(path, "scale = 0.5", "scale = 0.25")


def renamed_dataset(path):
    with h5py.File(path, "r+") as file:
        file.move("output", "Output")


def stale_manifest(path):
    """The account of a run before: where its output was replaced, and what it says of itself was not."""
    (path.parent / "before").mkdir()
    before = write_run(path.parent / "before", Case(attention='mask = "full"\nscale = 0.5', checksums=True))
    with h5py.File(before) as source, h5py.File(path, "r+") as file:
        for name in ("timeline", "provenance"):
            del file[name]
            source.copy(name, file)


# damage -> what is refused, or the checks that fail, without a certificate and more with it
FOUND = {
    one_byte: ({"digest of /output"}, {"certified output /output", "certified checks"}),
    swapped_rows: (
        {"digest of /output", "digest of /log_sum_exp", "rows of /output", "rows of /log_sum_exp"},
        {"certified output /output", "certified output /log_sum_exp"},
    ),
    truncation: ("truncated", None),
    missing_shard: (r"1 of its 3 sources are missing: out.h5.part-[0-9a-f]*-00001:/output", None),
    other_input: ({"rows of /output"}, {"input", "certified input value"}),
    other_mask: ({"pairs", "rows of /output", "rows of /log_sum_exp"}, {"certified question", "certified run"}),
    other_scale: ({"rows of /output", "rows of /log_sum_exp"}, {"certified question", "certified run"}),
    renamed_dataset: ("lacks /output ", None),
    stale_manifest: ({"rows of /output", "rows of /log_sum_exp"}, {"certified question", "certified pairs"}),
}


@pytest.fixture
def certified(tmp_path):
    """Make an output and a certificate of it, both right."""

    def make(damage):
        attention = 'mask = "causal"\nscale = 0.5'
        path = write_run(tmp_path, Case(attention=attention, checksums=True, virtual=damage is missing_shard))
        certificate, evidence = certify_file(path, None)
        assert certificate.passed
        write_evidence(tmp_path / CERTIFICATE, evidence)
        return path

    return make


@pytest.mark.parametrize("damage", FOUND, ids=lambda damage: damage.__name__)
def test_a_damage_is_found_and_named(certified, damage):
    path = certified(damage)
    damage(path)
    alone, more = FOUND[damage]
    if isinstance(alone, str):
        for check in (verify_file, lambda path: verify_against(path, path.with_name(CERTIFICATE))):
            with pytest.raises(StorageError, match=alone):
                check(path)
        return
    found = {check.name for check in verify_file(path).checks if not check.passed}
    assert alone <= found
    against = verify_against(path, path.with_name(CERTIFICATE))
    missed = more - {check.name for check in against.checks if not check.passed}
    assert not missed, against.lines()
    assert not against.passed


def test_a_file_that_may_not_be_read_is_named():
    """By a user without rights: root may read everything."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = write_run(Path(folder), Case())
        path.chmod(0)
        become = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n" if os.geteuid() == 0 else ""
        program = f"{become}from ringmpi.cli import exit_code\nraise SystemExit(exit_code(['verify', {str(path)!r}]))"
        begin = "import ringmpi.cli, ringmpi.analysis.certify\n"  # from where only root may read
        done = subprocess.run(
            [sys.executable, "-c", begin + program],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        path.chmod(0o600)
    assert done.returncode == 3
    assert done.stderr == (
        f"ringmpi: error: cannot open {path}: Permission denied. Change its permissions or choose another place.\n"
    )
