"""How a run finds what one before it has left."""

import threading

import pytest

from ringmpi.checkpoint.lifecycle import Again, RunResources, _open
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import write_manifest
from tests.storage.checkpoint_samples import make_manifest, save_generation, write_files

LATE_SECONDS = 0.5


@pytest.fixture
def checkpoints(tmp_path):
    found = Checkpoints(tmp_path / "checkpoints")
    found.prepare()
    return found


def opened(checkpoints, **again):
    """The numbers of what is found, and that of the next generation."""
    with RunResources() as held:
        found, number = _open(checkpoints, Again(**again), held)
    return [generation.number for generation in found], number


def test_a_manifest_that_this_node_sees_late_is_waited_for(checkpoints, rng):
    """Network file systems show after some seconds what other nodes have written."""
    save_generation(checkpoints, rng)
    manifest = make_manifest(2, write_files(checkpoints, 2, rng, Sharding.contiguous(41, 2)))
    timer = threading.Timer(LATE_SECONDS, write_manifest, [checkpoints.directory / "generation-000002", manifest])
    timer.start()
    with RunResources() as held:
        found, _ = _open(checkpoints, Again(resume=True), held)
    timer.join()
    assert found[0].manifest == manifest


def test_only_what_was_finished_stands_in_the_way(checkpoints, rng, monkeypatch):
    monkeypatch.setattr("ringmpi.storage.visibility.VISIBILITY_SECONDS", 0.0)
    assert opened(checkpoints) == ([], 1)
    write_files(checkpoints, 1, rng, Sharding.contiguous(41, 2))
    assert opened(checkpoints) == ([1], 2)
    assert save_generation(checkpoints, rng) == 2
    with pytest.raises(StorageError, match=r"checkpoints holds generation 2 of a run that has not ended\. Go on with"):
        opened(checkpoints)
    assert opened(checkpoints, resume=True) == ([2], 3)
    assert opened(checkpoints, force=True) == ([], 3), "to be removed later"
    (checkpoints.directory / "generation-000002" / "manifest.json").write_text("damaged", encoding="utf-8")
    with pytest.raises(StorageError, match=r"generation 2 of a run that has not ended \(.*json is damaged: "):
        opened(checkpoints)


def test_a_start_withdraws_the_word_of_the_one_before_also_where_it_is_refused(checkpoints, rng):
    save_generation(checkpoints, rng)
    checkpoints.ask_requeue("stopped by SIGTERM")
    with pytest.raises(StorageError, match="has not ended"):
        opened(checkpoints)
    assert not (checkpoints.directory / "REQUEUE").exists()
