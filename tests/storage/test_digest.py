"""The digest that a thread takes in while the caller goes on is that of the bytes in order."""

import hashlib
import threading

import numpy as np
import pytest

from ringmpi.storage.digest import DIGEST_BYTES, DigestBeside


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (1 << 20, 3, 0, 1 << 22, 17)])
def test_slabs_are_taken_in_in_their_order(sizes):
    random = np.random.default_rng(sum(sizes))
    slabs = [random.integers(0, 2**32, size, np.uint32) for size in sizes]
    whole = b"".join(slab.tobytes() for slab in slabs)
    assert digest_of(*slabs) == hashlib.blake2b(whole, digest_size=DIGEST_BYTES).hexdigest()


def test_the_thread_ends_with_the_block_after_an_error_too():
    before = threading.active_count()
    with pytest.raises(BufferError, match="contiguous"):
        digest_of(np.zeros((4, 4))[:, ::2])  # hashlib refuses it
    assert threading.active_count() == before


def digest_of(*slabs):
    with DigestBeside() as digest:
        for slab in slabs:
            digest.update(slab)
        return digest.hexdigest()
