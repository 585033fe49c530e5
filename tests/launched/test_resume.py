"""`ringmpi run --resume`: stopped by signals and requests, taken up by other ranks, verified; and what is refused."""

import json
import os
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import read_manifest, write_manifest
from ringmpi.storage.record_layout import RECORDED_ROWS
from ringmpi.storage.results import Results
from tests.backends.natives import needs_native

STOPPING = (str(Path(__file__).with_name("stopping.py")),)
STOPPED = 4
LENGTH = 211


@pytest.fixture
def kept(tmp_path):
    """Write an input and a RUN.toml with [checkpoint]; all paths are relative to tmp_path."""

    def write(*, ring="", backward=False, output="", backend="numpy", mask='"causal"', every=600.0):
        rng = np.random.default_rng(3)
        with h5py.File(tmp_path / "in.h5", "w") as file:
            for name, heads in {"q": 4, "k": 2, "v": 2, "do": 4}.items():
                file[name] = rng.standard_normal((heads, LENGTH, 8)).astype(np.float32)
        (tmp_path / "run.toml").write_text(
            f'[input]\nfile = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[attention]\nmask = {mask}\n'
            f'[ring]\n{ring}\n[backend]\nname = "{backend}"\n'
            f'[output]\nfile = "out.h5"\nverify_rows = 100000\n{output}\n'
            f'[checkpoint]\ndirectory = "checkpoints"\nevery_seconds = {every}\n'
            + ('[backward]\ngrad_output = "do"\n' if backward else "")
        )
        return "run.toml"

    return write


@pytest.fixture
def run(mpirun, tmp_path):
    """Run in tmp_path with small calls; what happens in which call of which rank."""

    def start(ranks, *arguments, what="NOTHING", rank=0, call=0, code=0):
        done = mpirun(ranks, what, rank, call, "run", *arguments, "run.toml", program=STOPPING, cwd=tmp_path)
        assert done.code == code, done.err + done.out
        return done

    return start


def checkpoints(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def verified(done, attempts, tmp_path):
    """The certificate of all rows; pairs over all attempts; nothing is left beside the output."""
    report = json.loads(done.out)
    assert report["certificate"]["passed"]
    assert report["pairs_attended"] == report["pairs_asked"]
    assert checkpoints(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "in.h5", "out.h5", "run.toml"]
    with Results(tmp_path / "out.h5") as results:
        account = results.account
    assert account.attempts.ranks == attempts
    assert sum(account.attempts.pairs) == account.counts.pairs_asked
    return report


def progress(tmp_path):
    """What the newest generation has."""
    return Checkpoints(tmp_path / "checkpoints").generations()[0].manifest.progress


def bits(path):
    with Results(path) as results:
        return {array.name: array.rows(np.arange(array.length)).tobytes() for array in results.arrays}


def test_stopped_three_times_on_other_ranks_each_time(kept, run, tmp_path):
    """A signal to one rank, a request, a signal; files of runs with more ranks lie about."""
    kept()
    first = run(4, "--resume", what="SIGTERM", rank=2, call=9, code=STOPPED)
    assert "nothing to go on from in checkpoints: starting from the beginning" in first.err
    assert "stopped by SIGTERM at generation 1" in first.err
    assert checkpoints(tmp_path) == ["REQUEUE", "generation-000001"]
    assert "--resume run.toml" in (tmp_path / "checkpoints" / "REQUEUE").read_text()
    (tmp_path / "checkpoints" / "STOP").touch()
    second = run(2, "--resume", what="PACE", code=STOPPED)
    assert "going on from generation 1 of 4 ranks" in second.err
    assert "the layout differs" in second.err
    assert "stopped by a request" in second.err
    assert checkpoints(tmp_path) == ["generation-000001", "generation-000002"]
    run(4, "--resume", what="SIGUSR1", rank=0, call=3, code=STOPPED)
    shutil.copy(
        tmp_path / "checkpoints/generation-000002/rank-00001.h5",
        tmp_path / "checkpoints/generation-000003/rank-00009.h5",
    )
    verified(run(3, "--resume", "--json"), (4, 2, 4, 3), tmp_path)


def test_the_same_layout_gives_the_bits_of_a_run_that_was_not_stopped(kept, run, tmp_path):
    """Stopped in the forward pass, and in the backward one, where sums are on their way."""
    kept(backward=True)
    run(3, "--quiet")
    whole = bits(tmp_path / "out.h5")
    (tmp_path / "out.h5").unlink()
    run(3, what="SIGTERM", rank=1, call=8, code=STOPPED)
    second = run(3, "--resume", what="SIGTERM", rank=2, call=45, code=STOPPED)
    assert "the layout is the same: bit for bit" in second.err
    third = run(3, "--resume", "--json")
    assert "in the backward pass" in third.err
    verified(third, (3, 3, 3), tmp_path)
    assert bits(tmp_path / "out.h5") == whole


def test_a_backward_pass_stops_again_before_it_has_come_to_where_it_was(kept, run, tmp_path):
    """Up to the step that was saved there are hops alone, and no other state than that of its end."""
    kept(backward=True)
    run(4, "--quiet")
    whole = bits(tmp_path / "out.h5")
    (tmp_path / "out.h5").unlink()
    run(4, what="SIGTERM", rank=1, call=50, code=STOPPED)
    stopped = progress(tmp_path)
    assert (stopped["stage"], stopped["step"] > 1) == ("backward", True)
    (tmp_path / "checkpoints" / "STOP").touch()
    run(4, "--resume", what="HOPS", code=STOPPED)
    assert progress(tmp_path) == stopped
    verified(run(4, "--resume", "--json"), (4, 4, 4), tmp_path)
    assert bits(tmp_path / "out.h5") == whole


def test_stripes_go_on_with_the_same_ranks_only(kept, run, tmp_path):
    kept(ring='sharding = "striped"')
    run(3, "--quiet")
    whole = bits(tmp_path / "out.h5")
    (tmp_path / "out.h5").unlink()
    run(3, what="SIGTERM", rank=1, call=5, code=STOPPED)
    refused = run(2, "--resume", code=3)
    assert "shards of single positions, or of thousands of pieces (striped on 3 ranks)" in refused.err
    verified(run(3, "--resume", "--json"), (3, 3), tmp_path)
    assert bits(tmp_path / "out.h5") == whole


def test_gradients_on_other_ranks(kept, run, tmp_path):
    """Stopped in the forward pass, then in the backward pass twice, with what travels the other way round."""
    kept(backward=True)
    run(3, what="SIGTERM", rank=1, call=8, code=STOPPED)
    run(2, "--resume", "--set", "backward.travel=keys", what="SIGTERM", rank=0, call=65, code=STOPPED)
    third = run(4, "--resume", "--set", "backward.travel=queries", what="SIGTERM", rank=3, call=5, code=STOPPED)
    assert "in the backward pass" in third.err
    report = verified(run(3, "--resume", "--json"), (3, 2, 4, 3), tmp_path)
    assert report["backward"]["pairs_attended"] == report["backward"]["pairs_asked"] == report["pairs_asked"]


@needs_native
def test_reproducible_bits_on_any_ranks(kept, run, tmp_path):
    """Also where it stops in the second of the two backward passes."""
    kept(ring="reproducible = true\nblock = 32", backend="native", backward=True)
    run(2, "--quiet")
    whole = bits(tmp_path / "out.h5")
    (tmp_path / "out.h5").unlink()
    run(3, what="SIGTERM", rank=1, call=8, code=STOPPED)
    second = run(1, "--resume", what="SIGTERM", rank=0, call=130, code=STOPPED)
    run(4, "--resume", "--set", "ring.sharding=contiguous", what="SIGTERM", rank=0, call=12, code=STOPPED)
    last = run(3, "--resume", "--json")
    assert "in the forward pass" in second.err
    assert "in the backward-queries pass" in last.err
    verified(last, (3, 1, 4, 3), tmp_path)
    assert bits(tmp_path / "out.h5") == whole


def test_a_request_while_it_runs(kept, run, tmp_path):
    kept()
    done = run(2, "--timeout", "1800", what="checkpoints/STOP", rank=1, call=3, code=STOPPED)
    assert "stopped by a request (the file STOP) at generation 1" in done.err
    words = r"out.h5: stopped; go on under mpirun or srun, on any number of ranks, with: (\S+) (-m ringmpi run .*)\n"
    python, again = re.fullmatch(words, done.out).groups()
    assert shutil.which(python), "it can be pasted"
    assert again == "-m ringmpi run --resume run.toml --timeout 1800"
    assert checkpoints(tmp_path) == ["generation-000001"], "no REQUEUE, no STOP"
    assert json.loads(run(2, "--force", "--json").out)["attempts"]["ranks"] == [2], "begun again"
    assert checkpoints(tmp_path) == []


def test_saved_all_the_while_and_finished_twice(kept, run, tmp_path):
    """Saves without a stop change nothing; a second start with --resume does nothing; without, it is refused."""
    kept(every=0.05, output='layout = "virtual"')
    first = run(3, "--json", what="PACE")
    assert first.err.count("saved generation") > 2
    assert json.loads(first.out)["certificate"]["passed"]
    before = (tmp_path / "out.h5").stat().st_mtime_ns
    again = run(2, "--resume")
    assert "out.h5 already exists and is from this run: nothing to do" in again.err
    assert (tmp_path / "out.h5").stat().st_mtime_ns == before
    told = json.loads(run(2, "--resume", "--json").out)
    assert (told["ended"], told["output"], told["exit_code"]) == ("nothing to do", "out.h5", 0)
    assert told["certificate"]["passed"]
    assert "exists and would be overwritten" in run(2, code=3).err
    other = run(2, "--resume", "--set", "attention.scale=0.5", code=3)
    assert "exists and belongs to another run: scale: the checkpoint has" in other.err


def test_what_is_refused_and_what_is_not(kept, run, tmp_path):
    """Another question, by the name of what differs; another layout never, nor an input that was only copied."""
    kept()
    told = json.loads(run(3, "--json", what="SIGTERM", rank=1, call=5, code=STOPPED).out)
    assert (told["ended"], told["exit_code"]) == ("stopped", STOPPED)
    assert told["go_on"].endswith(" -m ringmpi run --resume run.toml")
    there = run(3, code=3)
    assert "checkpoints holds generation 1 of a run that has not ended. Go on with --resume" in there.err
    assert "give one of them" in run(1, "--resume", "--force", code=2).err
    scale = run(2, "--resume", "--set", "attention.scale=0.25", code=3)
    assert "scale: the checkpoint has 0.35355339059327373, this run has 0.25" in scale.err
    assert scale.err.count("ringmpi: error") == 1
    assert checkpoints(tmp_path) == ["generation-000001"], "what was refused is not to be started again"
    for name in ("other.h5", "copy.h5"):
        shutil.copyfile(tmp_path / "in.h5", tmp_path / name)
    with h5py.File(tmp_path / "other.h5", "a") as file:
        file["v"][1, -1, 3] += 1
    for _ in range(2):
        changed = run(2, "--resume", "--set", "input.file=other.h5", code=3)
        assert "input other.h5: value cannot be confirmed to match the checkpoint with" in changed.err
        times = (tmp_path / "in.h5").stat()
        os.utime(tmp_path / "other.h5", ns=(times.st_atime_ns, times.st_mtime_ns))  # as if it had not changed
    done = run(2, "--resume", "--set", "input.file=copy.h5", "--set", "ring.sharding=striped", "--json")
    assert json.loads(done.out)["certificate"]["passed"]


def test_a_damaged_generation_is_passed_over(kept, run, tmp_path):
    kept(every=0.05)
    run(3, what="SIGTERM", rank=1, call=5, code=STOPPED)
    run(3, "--resume", what="SIGTERM", rank=1, call=5, code=STOPPED)
    older, newest = sorted((tmp_path / "checkpoints").glob("generation-*"))
    with (newest / "rank-00002.h5").open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"damage")
    done = run(2, "--resume", "--json")
    assert f"generation {int(newest.name[-6:])} is passed over" in done.err
    assert "rank-00002.h5 is damaged" in done.err
    assert f"going on from generation {int(older.name[-6:])}" in done.err
    assert json.loads(done.out)["certificate"]["passed"]


def test_what_cannot_be_used_is_not_written_over(kept, run, tmp_path):
    """Nor removed by --force, before there is something to compute instead."""
    kept()
    run(3, what="SIGTERM", rank=1, call=5, code=STOPPED)
    (folder,) = (tmp_path / "checkpoints").glob("generation-*")
    state = (folder / "rank-00001.h5").read_bytes()
    (folder / "rank-00001.h5").write_bytes(state[:-100])
    refused = run(3, "--resume", code=3)
    assert "no generation in checkpoints can be used: generation 1 is passed over" in refused.err
    assert "it is truncated or a different file. Fix that, or start over with --force." in refused.err
    (folder / "manifest.json").write_text("damaged", encoding="utf-8")
    for arguments in ((), ("--resume",)):
        done = run(3, *arguments, code=3)
        assert done.err.count("ringmpi: error:") == 1
        assert "manifest.json is damaged: it is not a manifest" in done.err
        assert ".." not in done.err
        assert done.err.count("is passed over") == 2 * len(arguments)  # as a warning, and as the reason
    with h5py.File(tmp_path / "broken.h5", "w") as file:
        for name, heads in {"q": 4, "k": 2, "v": 2}.items():
            options = {"chunks": (heads, LENGTH, 8), "fletcher32": True}
            place = file.create_dataset(name, data=np.ones((heads, LENGTH, 8), "f4"), **options).id.get_chunk_info(0)
    with (tmp_path / "broken.h5").open("r+b") as raw:
        raw.seek(place.byte_offset + 5)
        raw.write(b"damage")
    broken = run(2, "--force", "--set", "input.file=broken.h5", code=3)
    assert "cannot read" in broken.err
    assert checkpoints(tmp_path) == ["generation-000001"]
    assert "starting over: removing generations [1] in checkpoints" in run(2, "--force").err
    assert checkpoints(tmp_path) == []


def test_a_run_that_is_finished_removes_nothing_of_another(kept, run, tmp_path):
    """Two runs in one directory, one after the other, or at once."""
    kept()
    other = ("--set", "output.file=other.h5", "--set", "attention.scale=0.5")
    run(2, what="SIGTERM", rank=1, call=5, code=STOPPED)
    (own,) = (tmp_path / "checkpoints").glob("generation-*")
    shutil.copytree(own, tmp_path / "own")
    run(2, "--resume")
    run(2, *other, what="SIGTERM", rank=1, call=5, code=STOPPED)
    shutil.copytree(own, own.with_name("generation-000002"))
    shutil.rmtree(own)
    shutil.move(tmp_path / "own", own)
    manifest = own.with_name("generation-000002") / "manifest.json"
    write_manifest(manifest.parent, read_manifest(manifest.parent).model_copy(update={"generation": 2}))
    with Checkpoints(tmp_path / "checkpoints").hold():
        busy = run(2, "--resume")
    assert "is being written by another run" in busy.err
    assert checkpoints(tmp_path) == ["REQUEUE", "generation-000001", "generation-000002"]
    assert "nothing to do" in run(2, "--resume").err
    assert checkpoints(tmp_path) == ["generation-000002"]
    assert "going on from generation 2" in run(2, "--resume", *other).err


def test_a_state_that_cannot_be_saved_ends_with_what_is_left(kept, run, tmp_path):
    """The directory of the next generation cannot be made: a file has its name."""
    kept()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "generation-000001").write_text("in the way")
    done = run(3, what="SIGTERM", rank=1, call=5, code=3)
    assert "stopped by SIGTERM, but the state could not be saved: rank 0" in done.err
    assert "Fix that; --resume then starts from the beginning: there is no older state." in done.err
    assert checkpoints(tmp_path) == ["generation-000001"]


def test_a_virtual_output_keeps_its_parts_whatever_the_file_says_now(kept, run, tmp_path):
    kept()
    run(2, "--resume", "--set", "output.layout=virtual", "--quiet")
    whole = bits(tmp_path / "out.h5")
    assert "nothing to do" in run(2, "--resume").err
    assert bits(tmp_path / "out.h5") == whole


def test_what_was_begun_with_force_goes_on_over_the_output_that_is_there(kept, run, tmp_path):
    kept()
    run(2, "--resume", "--quiet")
    run(2, "--force", what="SIGUSR1", rank=0, call=3, code=STOPPED)
    again = run(2, "--resume", "--json")
    assert "going on from generation 1 of 2 ranks" in again.err
    verified(again, (2, 2), tmp_path)


def test_a_finished_run_leaves_the_state_of_one_that_writes_elsewhere(kept, run, tmp_path):
    kept()
    run(2, "--resume", "--quiet")
    run(2, "--resume", "--set", "output.file=other.h5", what="SIGUSR1", rank=0, call=3, code=STOPPED)
    assert "nothing to do" in run(2, "--resume").err
    assert checkpoints(tmp_path) == ["generation-000001"]


def test_an_output_that_failed_its_certificate_fails_it_again(kept, run, tmp_path):
    kept()
    run(2, "--resume", "--quiet")
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        file["output"][0, 3] = 0
    assert "fails its certificate" in run(2, "--resume", code=1).err


def test_resume_needs_a_place(job, mpirun):
    done = mpirun(2, "run", "--resume", job(40))
    assert done.code == 2
    assert "this configuration has no table [checkpoint]" in done.err


@pytest.mark.parametrize(("layout", "ranks"), [("is the same", 3), ("differs", 2)])
def test_a_run_that_goes_on_has_each_pair_in_its_record_once(kept, run, tmp_path, layout, ranks):
    """On the same ranks to the same bits; on others to what the formulas say, as its certificate of all rows knows."""
    path = tmp_path / kept(backward=layout == "is the same")
    path.write_text(path.read_text() + "[record]\nsinks = 2\n")
    run(3, "--quiet")
    whole = bits(tmp_path / "out.h5")
    (tmp_path / "out.h5").unlink()
    run(3, what="SIGTERM", rank=1, call=8, code=STOPPED)
    done = run(ranks, "--resume", "--json")
    assert f"the layout {layout}" in done.err
    verified(done, (3, ranks), tmp_path)
    assert set(RECORDED_ROWS) <= set(whole)
    assert (bits(tmp_path / "out.h5") == whole) == (layout == "is the same")


def test_a_checkpoint_of_another_record_is_refused(kept, run, tmp_path):
    path = tmp_path / kept()
    run(2, what="SIGTERM", rank=1, call=5, code=STOPPED)
    path.write_text(path.read_text() + "[record]\nsinks = 2\n")
    refused = run(2, "--resume", code=3)
    assert "belongs to another run: record_sinks" in refused.err
