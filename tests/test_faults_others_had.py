"""Faults that users of other programs met (docs/faults-others-had.md), where no other test stands for the class."""

import ast
import errno
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from ringmpi import Mask, Ring, Sharding, attention
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.comm.local import LocalRank, LocalRing
from ringmpi.comm.protocol import Tag
from ringmpi.comm.world import check_launcher
from ringmpi.core.slices import table
from ringmpi.core.work import count_pairs, meet
from ringmpi.errors import RingError, StorageError
from ringmpi.storage.files import open_file
from tests.api.test_attention import judge, qkv

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "ringmpi").rglob("*.py"))
MPI_TAG_ALWAYS_THERE = 32767  # MPI promises tags up to this, and no more
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23]


# Merging


def test_a_long_and_a_short_shard_are_merged_with_natural_logarithms():
    """Merged as if they were to base 2, the newest 64 keys would get a fifth of their weight."""
    q, k, v = qkv(8, 3136, heads=(1, 1))
    shards = Sharding.from_ranges(3136, [[range(3072)], [range(3072, 3136)]])
    queries = Sharding.contiguous(8, 2)
    found = attention(q, k, v, ranks=2, sharding=queries, key_sharding=shards)
    judge(found, q, k, v, Mask.full())
    scores = q[0] @ k[0].T / np.sqrt(8)
    assert np.allclose(found.log_sum_exp[0], np.log(np.exp(scores).sum(1)), atol=1e-13)


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
@pytest.mark.parametrize("owner", range(4))
def test_a_row_may_meet_nothing_in_any_steps_but_one(schedule, owner):
    """The running maximum is still -inf when further empty blocks come, before or after the only one with keys."""
    q, k, v = qkv(16, 16)
    mask = Mask.keys(4 * owner, 4 * owner + 4)
    judge(attention(q, k, v, mask=mask, ranks=4, sharding="contiguous", schedule=schedule), q, k, v, mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_key_that_two_masks_exclude_is_excluded_once(dtype):
    """Masks are sets of pairs; added as numbers, two smallest numbers of 16 bits would make -inf, and NaN."""
    q, k, v = qkv(12, 12, dtype=dtype)
    mask = Mask.causal() & Mask.keys(0, 5) & Mask.window(3, 0)
    found = attention(q, k, v, mask=mask, ranks=3)
    judge(found, q, k, v, mask)
    assert not np.isnan(found.output.astype(np.float32)).any()
    assert (found.output[:, 8:] == 0).all()


def test_stripes_of_several_uneven_tiles_are_exact(monkeypatch):
    monkeypatch.setattr(NumpyBackend.__init__, "__kwdefaults__", {"tile_rows": 8, "tile_keys": 12})
    q, k, v = qkv(103, 103)
    judge(attention(q, k, v, mask=Mask.causal(), ranks=4, sharding="striped"), q, k, v, Mask.causal())


# Lengths, documents, windows


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped", "balanced"])
@pytest.mark.parametrize(
    ("length", "ranks"),
    [(7, 2), (2999, 4), (4, 2), (1, 2), (3, 4), (57, 8), *[(5 * p + d, p) for p in (3, 7) for d in (-1, 1)]],
)
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal()], ids=str)
def test_lengths_that_the_ranks_do_not_divide(sharding, length, ranks, mask):
    q, k, v = qkv(length, length, heads=(1, 1), head_dim=4, value_dim=4, dtype=np.float32)
    found = attention(q, k, v, mask=mask, ranks=ranks, sharding=sharding)
    assert found.output.shape == v.shape
    judge(found, q, k, v, mask)


@pytest.mark.parametrize(
    "lengths", [PRIMES, [9, 8, 8, 8, 8, 12], [0, 1, 0, 1], [1] * 7, [0, 0, 5], [3, 4093 % 97, 0, 2]]
)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_documents_of_any_length(lengths, ranks):
    q, k, v = qkv(sum(lengths), sum(lengths))
    mask = Mask.documents(lengths, within=Mask.causal())
    judge(attention(q, k, v, mask=mask, ranks=ranks), q, k, v, mask)


@pytest.mark.parametrize(("q_lengths", "k_lengths"), [([3, 0, 4], [2, 5, 1]), ([3, 2, 4], [2, 0, 1]), ([0, 0], [0, 3])])
def test_documents_without_queries_or_without_keys(q_lengths, k_lengths):
    q, k, v = qkv(sum(q_lengths), sum(k_lengths))
    mask = Mask.documents(q_lengths, k_lengths)
    judge(attention(q, k, v, mask=mask, ranks=3), q, k, v, mask)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_widest_window_is_causal_and_the_narrowest_is_the_key_itself(ranks):
    q, k, v = qkv(40, 40, heads=(2, 2))
    widest = attention(q, k, v, mask=Mask.window(39, 0), ranks=ranks)
    assert widest.pairs == attention(q, k, v, mask=Mask.causal(), ranks=ranks).pairs
    judge(widest, q, k, v, Mask.causal())
    assert np.array_equal(attention(q, k, v, mask=Mask.window(0, 0), ranks=ranks).output, v)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_one_query_at_the_end_sees_its_whole_window(ranks):
    q, k, v = qkv(1, 256)
    mask = Mask.window(127, 0, offset="end")
    assert mask.allowed(1, 256)[0].nonzero()[0].tolist() == list(range(128, 256))
    judge(attention(q, k, v, mask=mask, ranks=ranks), q, k, v, mask)


# Heads, shapes, sizes


@pytest.mark.parametrize("heads", [(28, 7), (6, 3), (5, 1), (9, 3), (7, 7)])
def test_groups_of_heads_of_any_size(heads):
    q, k, v = qkv(20, 20, heads=heads)
    judge(attention(q, k, v, mask=Mask.causal(), ranks=3), q, k, v, Mask.causal())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("lengths", [(9, 13), (1, 1), (0, 4), (4, 0)])
def test_shapes_and_dtypes_of_results_are_those_promised(dtype, batch, lengths):
    shapes = (*batch, 4, lengths[0], 8), (*batch, 2, lengths[1], 8), (*batch, 2, lengths[1], 6)
    found = attention(*(np.ones(shape, dtype) for shape in shapes), ranks=3)
    assert (found.output.shape, found.output.dtype) == ((*batch, 4, lengths[0], 6), dtype)
    assert found.log_sum_exp.shape == (*batch, 4, lengths[0])
    assert found.log_sum_exp.dtype == (np.float64 if dtype == np.float64 else np.float32)


@pytest.mark.parametrize("shift", [(1 << 31) - 5, 1 << 32, 1 << 45])
def test_positions_beyond_32_bits_give_the_same_work(shift):
    """Offsets of 32 bits wrap just past 2^31, and silently so."""
    slices = [[0, 30, 0, 40, -7, 3], [30, 50, 5, 60, -50, 0]]
    moved = np.array(slices) + np.array([shift, shift, shift, shift, 0, 0])
    for rows, keys in ((range(0, 50), range(0, 60)), (range(3, 50, 4), range(1, 60, 4)), (range(10, 20), range(5, 18))):
        here = meet(table(slices), rows, keys, 0, 0)
        far_rows, far_keys = (range(r.start + shift, r.stop + shift, r.step) for r in (rows, keys))
        there = meet(table(moved), far_rows, far_keys, 0, 0)
        assert count_pairs(there).sum() == count_pairs(here).sum() > 0


# Messages


def test_arrays_travel_as_bytes_and_nothing_else_is_pickled():
    """mpi4py's lower-case calls pickle, with a buffer that is too small for large receives."""
    pickling = {"send", "recv", "isend", "irecv", "ssend", "sendrecv", "bcast", "scatter", "gather", "alltoall"}
    found = [
        f"{path.name}: {node.attr}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in pickling
    ]
    assert found == ["map_chart.py: scatter"]  # axes.scatter, of a picture


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
def test_tags_stay_small_however_many_ranks(schedule, monkeypatch):
    tags, start = {Tag.INPUT, Tag.ROLL_CALL}, LocalRank.start

    def recorded(self, sends, receives):
        tags.update(message.tag for message in [*sends, *receives])
        return start(self, sends, receives)

    monkeypatch.setattr(LocalRank, "start", recorded)
    q, k, v = qkv(64, 64, heads=(1, 1))
    attention(q, k, v, ranks=32, schedule=schedule)
    assert len(tags) > 2
    assert max(tags) <= MPI_TAG_ALWAYS_THERE
    assert MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) >= max(tags)


def test_the_directions_of_a_ring_of_two_do_not_mix():
    """Left is right there: only tags tell the messages apart."""
    q, k, v = qkv(21, 21)
    judge(attention(q, k, v, ranks=2, schedule="bidirectional"), q, k, v, Mask.full())


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "ROLE_WORLD_SIZE"])
def test_a_job_that_fell_apart_into_single_ranks_is_refused(name):
    """Each would compute everything, and all would write the same file."""
    with pytest.raises(RingError, match=rf"started 4 processes \({name}\), but MPI gives each its own job"):
        check_launcher({name: "4"}, 1)
    check_launcher({name: "4"}, 4)
    check_launcher({name: "1"}, 1)


@pytest.mark.parametrize("comm", [None, MPI.COMM_WORLD])
def test_so_is_a_ring_of_a_script_that_torchrun_has_started(comm, monkeypatch):
    """Its gradients would be right, on so many copies of the whole sequence."""
    monkeypatch.setenv("ROLE_WORLD_SIZE", "4")
    with pytest.raises(RingError, match="MPI gives each its own job"):
        Ring(comm)
    with Ring(MPI.COMM_SELF) as ring:
        assert ring.size == 1


def test_more_ranks_than_cores_are_started_where_the_launcher_must_be_asked():
    """Open MPI refuses them ("not enough slots") unless it is told."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "PRTE_MCA_rmaps_default_mapping_policy := :OVERSUBSCRIBE" in text
    assert "more ranks than cores" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_ring_of_ranks_that_all_send_first_does_not_lock_up_for_odd_counts():
    for size in (1, 2, 3, 5, 7):
        q, k, v = qkv(30, 30, heads=(1, 1))
        judge(attention(q, k, v, ranks=size), q, k, v, Mask.full())
    assert LocalRing(7).size == 7


# Files


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EAGAIN, "Resource temporarily unavailable"),
        (errno.ENOLCK, "No locks available"),
        (524, "Unknown error 524"),
    ],
)
def test_a_refused_lock_is_called_a_lock(tmp_path, monkeypatch, number, text):
    def refused(*_, **__):
        raise OSError(
            f"Unable to synchronously open file (unable to lock file, errno = {number}, error message = '{text}')"
        )

    monkeypatch.setattr("h5py.File", refused)
    with pytest.raises(
        StorageError, match=rf"in\.h5: {text}\. Another process has it open.*HDF5_USE_FILE_LOCKING=FALSE"
    ):
        open_file(tmp_path / "in.h5")


def test_no_file_is_opened_by_several_ranks_for_writing():
    """Collective HDF5 hangs where one rank has nothing to write, or other arguments: one module does it, on request."""
    assert [
        path.name for path in MODULES if re.search(r"""driver\s*=|["']mpio["']\s*\)|set_fapl_mpio""", path.read_text())
    ] == ["parallel.py"]


def test_scripts_have_no_line_ends_of_dos():
    scripts = [path for folder in ("jobs", "tests", ".ci") for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert scripts
    assert not [
        path for path in scripts if path.suffix in {"", ".sh", ".sbatch", ".toml"} and b"\r" in path.read_bytes()
    ]


# The list itself


def test_every_test_in_the_list_exists():
    text = (ROOT / "docs" / "faults-others-had.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 60
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not missing


def test_every_row_of_the_list_names_where_it_was_seen_and_a_test():
    text = (ROOT / "docs" / "faults-others-had.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and not line.startswith("| class")]
    assert len(rows) > 60
    for row in rows:
        assert len(row) == 3, row
        assert re.search(r"\w+ (#|PR #)?\d+|[\w.]+:\d+", row[1]), row
        assert "`tests/" in row[2], row


def test_every_test_of_this_file_is_in_the_list():
    text = (ROOT / "docs" / "faults-others-had.md").read_text(encoding="utf-8")
    own = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in own if f"::{name}`" not in text] == own[-3:]
