"""What a run of real ranks says of its seconds."""

import json

import h5py


def test_seconds_of_reading_and_writing_are_in_the_report_and_in_the_file(mpirun, job, tmp_path):
    done = mpirun(3, "run", job(64), "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    with h5py.File(tmp_path / "out.h5") as file:
        for name in ("read_seconds", "write_seconds"):
            assert len(report[name]) == 3
            assert min(report[name]) > 0
            assert file[f"timeline/{name}"][...].tolist() == report[name]


def test_what_transfers_hid_behind_kernels_is_in_the_report(mpirun, job, tmp_path):
    report = json.loads(mpirun(3, "run", job(64), "--json").out)
    assert 0 <= report["overlap"] <= 1
    with h5py.File(tmp_path / "out.h5") as file:
        flight, wait = (file[f"timeline/{name}_seconds"][...] for name in ("flight", "wait"))
    assert flight.tolist() == report["flight_seconds"]
    assert report["overlap"] == max(1 - wait.sum() / flight.sum(), 0)
    assert (flight.sum(axis=1) > 0).all()
    lines = mpirun(1, "run", job(64), "--force").out.splitlines()
    assert any("overlap" in line for line in lines)
    assert json.loads(mpirun(1, "run", job(64), "--force", "--json").out)["overlap"] is None  # nothing moved


def test_the_summary_has_min_mean_and_max(mpirun, job):
    lines = mpirun(2, "run", job(64), COLUMNS="120").out.splitlines()
    for name in ("attend", "wait", "read", "write"):
        (line,) = (line.split() for line in lines if line.split()[:1] == [name])
        low, mean, high = map(float, line[1:4])
        assert low <= mean <= high


def test_a_short_run_tells_no_progress(mpirun, job):
    assert "of this rank's pairs" not in mpirun(2, "run", job(64)).err


def test_inspect_finds_no_damage_in_what_a_run_has_written(mpirun, job, tmp_path):
    assert mpirun(2, "run", job(64)).code == 0
    done = mpirun(1, "inspect", tmp_path / "out.h5", "--check")
    assert (done.code, "has the digests that were written" in done.out) == (0, True)
    done = mpirun(2, "run", job(64), "--force", "--set", "output.layout=virtual")
    assert done.code == 0, done.err
    assert mpirun(1, "inspect", tmp_path / "out.h5", "--check").code == 0
    for part in tmp_path.glob("out.h5.part-*-00001"):
        part.unlink()
    done = mpirun(1, "inspect", tmp_path / "out.h5")
    assert (done.code, "sources are missing" in done.out) == (1, True)
