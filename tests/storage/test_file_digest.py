import hashlib

import pytest

from ringmpi.errors import StorageError
from ringmpi.storage import file_digest
from ringmpi.storage.file_digest import fingerprint


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 12345])
def test_the_digest_is_that_of_the_digests_of_its_parts(tmp_path, rng, monkeypatch, size):
    monkeypatch.setattr(file_digest, "PART_BYTES", 1000)
    monkeypatch.setattr(file_digest, "READ_BYTES", 300)
    data = rng.bytes(size)
    (tmp_path / "file").write_bytes(data)
    parts = [hashlib.blake2b(data[at : at + 1000], digest_size=32).digest() for at in range(0, size, 1000)]
    assert fingerprint(tmp_path / "file") == (size, hashlib.blake2b(b"".join(parts), digest_size=32).hexdigest())


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*file: No such file"):
        fingerprint(tmp_path / "file")
