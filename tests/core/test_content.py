import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.content import Content, content_of
from tests.storage.samples import DTYPES, any_bits
from tests.strategies import shardings

SHAPE = (2, 3, 24, 5)


def whole(array):
    return content_of(array, [range(array.shape[2])], array.shape[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(sharding=shardings(24, 4))
def test_shards_of_any_kind_sum_to_the_whole(dtype, sharding):
    array = any_bits(np.random.default_rng(4), SHAPE, dtype)
    shards = ((array[:, :, sharding.positions(rank)], ranges) for rank, ranges in enumerate(sharding.shards))
    assert sum((content_of(shard, ranges, 24) for shard, ranges in shards), Content()) == whole(array)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(data=st.data())
def test_one_changed_bit_changes_the_checksum(dtype, data):
    array = any_bits(np.random.default_rng(5), SHAPE, dtype)
    before = whole(array)
    raw = array.reshape(-1).view(np.uint8)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert whole(array).checksum != before.checksum


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:, :, ::-1],
        lambda a: a[:, ::-1],
        lambda a: a[::-1],
        lambda a: a[..., ::-1],
        lambda a: -a,
        lambda a: np.roll(a, 1, axis=2),
    ],
    ids=["positions", "heads", "batch", "channels", "signs", "shifted"],
)
def test_the_same_numbers_in_other_places_are_another_content(rng, dtype, change):
    array = rng.standard_normal(SHAPE).astype(dtype)
    assert whole(np.ascontiguousarray(change(array))).checksum != whole(array).checksum


def test_two_swapped_signs_do_not_cancel(rng):
    array = rng.standard_normal((1, 1, 1, 64))
    before = whole(array).checksum
    array[..., [3, 11]] *= -1
    assert whole(array).checksum != before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_is_counted(dtype, monkeypatch):
    monkeypatch.setattr("ringmpi.core.content.BLOCK_BYTES", 100)
    array = np.zeros(SHAPE, dtype)
    array[0, 0, [3, 20], 1] = np.nan
    array[1, 2, 5, :3] = [np.inf, -np.inf, -np.nan]
    found = whole(array)
    assert (found.nan, found.inf, found.finite) == (3, 2, False)
    assert whole(np.full(SHAPE, -0.0, dtype)).finite


def test_layout_in_memory_does_not_matter(rng):
    array = rng.standard_normal(SHAPE)
    assert whole(np.asfortranarray(array)) == whole(array)
    assert whole(array[:, :, ::-1].copy()[:, :, ::-1]) == whole(array)


def test_no_rows_have_the_content_of_none():
    assert content_of(np.empty((1, 2, 0, 4), np.float32), [], 9) == Content()


def mix(word):
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_the_finalizer_is_that_of_splitmix64():
    """First numbers of SplitMix64 from the seed 1234567, as its authors and many test suites give them."""
    states = (1234567 + n * 0x9E3779B97F4A7C15 for n in range(3))
    assert [mix(state) for state in states] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(("dtype", "width"), [("f8", 4), ("f4", 4), ("f2", 2)])
def test_the_checksum_is_the_documented_one(rng, dtype, width):
    """Files record it: with another formula every older input would be called changed."""
    array = rng.standard_normal((1, 2, 4, 3)).astype(dtype)
    expected = 0
    for place, row in enumerate(array.reshape(-1, 3)):
        data = row.astype(row.dtype.newbyteorder("<")).tobytes()
        words = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]
        expected += mix((place + mix(sum(mix(n) * word for n, word in enumerate(words)) % 2**64)) % 2**64)
    assert str(whole(array)) == f"{expected % 2**64:016x}"
