"""Generations of checkpoints: none is seen half written, two are kept, and the newest good one is found."""

import errno
import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage import files
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import Manifest, differences, read_manifest, write_manifest
from ringmpi.storage.rank_state import RankState
from ringmpi.storage.validity import newest_valid, problems
from tests.campaigns.damage import campaign
from tests.storage.checkpoint_samples import make_manifest, save_generation, write_files


@pytest.fixture
def checkpoints(tmp_path):
    found = Checkpoints(tmp_path / "checkpoints")
    found.prepare()
    return found


def numbers(checkpoints):
    return [generation.number for generation in checkpoints.generations()]


def names(checkpoints):
    return sorted(str(path.relative_to(checkpoints.directory)) for path in checkpoints.directory.rglob("*"))


def test_a_directory_that_is_not_there_has_no_generations(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.generations() == []
    assert checkpoints.next_number() == 1
    assert newest_valid([], problems) == (None, [])


def test_a_generation_is_found_as_it_was_written(checkpoints, rng):
    files = write_files(checkpoints, 1, rng, Sharding.zigzag(41, 3))
    facts = {"identity": {"shape": (2, 41, 4), "sinks": [float("-inf"), 0.1]}, "layout": {"ranks": 3}}
    manifest = make_manifest(1, files, **facts, absorbed=[[0, 3, 0, 3, -(1 << 60), 1 << 60]])
    checkpoints.publish(manifest, keep=None)
    (found,) = checkpoints.generations()
    assert found.manifest == manifest == pickle.loads(pickle.dumps(manifest))
    assert problems(found) == []
    assert found.manifest.files[2].absorbed == ((0, 5, 0, 3, -9, 9),)
    with RankState(found.folder / found.manifest.files[2].name) as state:
        assert state.ranges["row_max"] == Sharding.zigzag(41, 3).shards[2]


def test_a_manifest_is_json_whose_digest_others_can_check(checkpoints, rng):
    save_generation(checkpoints, rng)
    text = (checkpoints.directory / "generation-000001" / "manifest.json").read_text(encoding="utf-8")
    body = text.split('\n"manifest": ', 1)[1].removesuffix("}\n")
    assert json.loads(text)["manifest"] == json.loads(body)
    assert json.loads(text)["blake2b"] == hashlib.blake2b(body.encode(), digest_size=32).hexdigest()


def test_a_generation_without_manifest_is_none_and_its_number_is_not_used_again(checkpoints, rng):
    first = save_generation(checkpoints, rng)
    write_files(checkpoints, 2, rng, Sharding.contiguous(41, 2))
    chosen, said = newest_valid(checkpoints.generations(), problems)
    assert chosen.number == first
    assert len(said) == 1
    assert "generation-000002/manifest.json is missing: this generation was not finished" in said[0]
    assert save_generation(checkpoints, rng, keep=first) == 3
    assert numbers(checkpoints) == [3, 1]


def test_two_generations_are_kept_the_new_one_and_the_one_that_is_known_to_be_good(checkpoints, rng):
    for number in (1, 2, 3):
        save_generation(checkpoints, rng, keep=number - 1)
    assert numbers(checkpoints) == [3, 2]
    checkpoints.rank_path(3, 1).unlink()  # the next run goes on from 2
    save_generation(checkpoints, rng, keep=2)
    assert numbers(checkpoints) == [4, 2]


def test_the_manifest_comes_last_and_is_on_the_disk_before_an_older_generation_goes(checkpoints, rng, monkeypatch):
    first = save_generation(checkpoints, rng)
    done = []
    sync, replace, unlink = files.sync, Path.replace, Path.unlink
    monkeypatch.setattr(files, "sync", lambda path: (done.append(f"sync {path.name}"), sync(path)))
    monkeypatch.setattr("ringmpi.storage.generations.sync", lambda path: (done.append(f"sync {path.name}"), sync(path)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append(f"name {to.name}"), replace(self, to)))
    monkeypatch.setattr(Path, "unlink", lambda self, **o: (done.append(f"remove {self.name}"), unlink(self, **o)))
    save_generation(checkpoints, rng, Sharding.contiguous(9, 1), keep=None)
    assert first == 1
    assert done[:7] == [
        "sync rank-00000.h5.tmp", "name rank-00000.h5",
        "sync manifest.json.tmp", "name manifest.json", "sync generation-000002", "sync checkpoints",
        "remove manifest.json",
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["ringmpi.storage.generations.write_manifest", "pathlib.Path.replace"])
def test_a_save_that_fails_leaves_the_older_generation_and_nothing_of_its_own(checkpoints, rng, monkeypatch, where):
    save_generation(checkpoints, rng)
    before = names(checkpoints)

    def fail(*_):
        raise OSError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr(where, fail)
        with pytest.raises(OSError, match="full|No space left"):
            save_generation(checkpoints, rng, keep=1)
    checkpoints.discard(2)
    assert names(checkpoints) == before
    assert newest_valid(checkpoints.generations(), problems)[0].number == 1


def test_clear_removes_what_is_its_own(checkpoints, rng):
    save_generation(checkpoints, rng)
    save_generation(checkpoints, rng, keep=1)
    checkpoints.ask_requeue("SIGTERM")
    (checkpoints.directory / "STOP").touch()
    (checkpoints.directory / "notes.txt").touch()
    (checkpoints.directory / "generation-000001" / "mine.h5").touch()
    checkpoints.clear()
    assert names(checkpoints) == ["generation-000001", "generation-000001/mine.h5", "notes.txt"]
    assert checkpoints.next_number() == 2


def test_a_request_to_stop_is_seen_and_obeyed_once(checkpoints):
    assert not checkpoints.stop_requested()
    (checkpoints.directory / "STOP").touch()
    assert checkpoints.stop_requested()
    checkpoints.obey_stop()
    assert not checkpoints.stop_requested()
    checkpoints.obey_stop()


def test_a_directory_in_the_place_of_a_request_is_one_and_is_obeyed_once(checkpoints):
    (checkpoints.directory / "STOP").mkdir()
    assert checkpoints.stop_requested()
    checkpoints.obey_stop()
    assert not checkpoints.stop_requested()
    (checkpoints.directory / "STOP" / "mine").mkdir(parents=True)
    with pytest.raises(StorageError, match="STOP is a directory that holds files; expected a file, or nothing"):
        checkpoints.obey_stop()
    assert (checkpoints.directory / "STOP" / "mine").exists()


def test_a_directory_that_cannot_be_looked_at_for_now_has_no_request(checkpoints, monkeypatch):
    """A network file system may fail for a moment: a run asks each second, and does not end of it."""
    (checkpoints.directory / "STOP").touch()

    def fail(*_arguments, **_options):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("os.stat", fail)
        assert not checkpoints.stop_requested()
        with pytest.raises(StorageError, match="cannot read the directory .*: Stale file handle"):
            checkpoints.generations()
    assert checkpoints.stop_requested()


def test_only_without_a_manifest_a_generation_is_unfinished(checkpoints, rng, monkeypatch):
    save_generation(checkpoints, rng)
    write_files(checkpoints, 2, rng, Sharding.contiguous(41, 2))
    manifest = checkpoints.directory / "generation-000001" / "manifest.json"
    manifest.write_text("damaged")
    assert [generation.unfinished for generation in checkpoints.generations()] == [True, False]

    def fail(*_arguments, **_options):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("ringmpi.storage.generations.read_manifest", lambda folder: read_manifest(folder / "none"))
    monkeypatch.setattr("pathlib.Path.lstat", fail)
    assert not any(generation.unfinished for generation in checkpoints.generations()), "nobody knows"


def test_the_word_to_start_again_is_left_and_withdrawn(checkpoints):
    checkpoints.ask_requeue("stopped by SIGTERM")
    assert (checkpoints.directory / "REQUEUE").read_text(encoding="utf-8") == "stopped by SIGTERM\n"
    checkpoints.withdraw_requeue()
    assert names(checkpoints) == []
    checkpoints.withdraw_requeue()


def test_a_manifest_of_another_version_is_named(checkpoints, rng):
    files = write_files(checkpoints, 1, rng, Sharding.contiguous(9, 1))
    folder = checkpoints.directory / "generation-000001"
    write_manifest(folder, Manifest.model_construct(**dict(make_manifest(1, files)) | {"schema_version": 9}))
    with pytest.raises(StorageError, match=r"manifest\.json has layout version 9; this ringmpi reads version 1\."):
        read_manifest(folder)


def test_ranks_check_their_shares(checkpoints, rng):
    save_generation(checkpoints, rng, Sharding.contiguous(50, 5))
    for rank in (1, 3, 4):
        checkpoints.rank_path(1, rank).write_bytes(b"")
    (found,) = checkpoints.generations()
    shares = [problems(found, slice(rank, None, 2)) for rank in range(2)]
    assert [len(share) for share in shares] == [1, 2]
    assert sorted(sum(shares, [])) == problems(found)


def test_facts_that_differ_are_named_with_both_values():
    saved = {"mask": "causal", "heads": [2, 4], "seed": 0}
    assert differences(saved, {"mask": "causal", "heads": (2, 4), "seed": 0}) == []
    assert differences(saved, {"mask": "full", "heads": (2, 4), "scale": np.sqrt(0.25)}) == [
        "mask: the checkpoint has 'causal', this run has 'full'",
        "scale: the checkpoint has None, this run has 0.5",
        "seed: the checkpoint has 0, this run has None",
    ]


def test_every_damage_is_found_and_named():
    """Some of `python -m tests.campaigns.damage`."""
    assert campaign(20, seed=3)["missed"] == []
