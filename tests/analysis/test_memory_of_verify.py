"""Files larger than what may be used of memory: verify reads them in slabs."""

from __future__ import annotations

import json
import tracemalloc

import h5py
import numpy as np

from ringmpi.analysis.certify import certify_file, verify_against
from ringmpi.analysis.evidence import write_evidence
from ringmpi.storage.digest import new_digest
from ringmpi.storage.inputs import file_identity
from ringmpi.storage.layout import SHARDS
from ringmpi.storage.provenance import write_shards
from tests.analysis.written import Case, write_run

LENGTH, HEADS, DIM = 96 << 10, 4, 128
BOUND_BYTES = 192 << 20
CHUNKS = (1, 4096, DIM)
WINDOW = 512


def zeros(folder):
    """An output of zeros, which no disk holds: query, key and value are 0, and log_sum_exp counts keys."""
    path, given = write_run(folder, Case(attention=f"mask = {{window = [{WINDOW - 1}, 0]}}")), folder / "input.h5"
    with h5py.File(given, "w") as file:
        for name, heads in {"q": HEADS, "k": 1, "v": 1}.items():
            file.create_dataset(name, shape=(heads, LENGTH, DIM), dtype="<f4", chunks=CHUNKS)
    seen = np.minimum(np.arange(1, LENGTH + 1), WINDOW)
    counted = np.broadcast_to(np.log(seen).astype(np.float32), (HEADS, LENGTH))
    with h5py.File(path, "r+") as file:
        replace(file, "output", shape=(HEADS, LENGTH, DIM), dtype="<f4", chunks=CHUNKS)
        replace(file, "log_sum_exp", data=counted)
        digest = new_digest()
        for _ in range(HEADS):
            digest.update(bytes(LENGTH * DIM * 4))
        file["output"].attrs["blake2b"] = digest.hexdigest()
        digest = new_digest()
        digest.update(np.ascontiguousarray(counted).data)
        file["log_sum_exp"].attrs["blake2b"] = digest.hexdigest()
        pairs = HEADS * int(seen.sum())
        file["timeline"].attrs.update({"pairs_asked": pairs, "pairs_attended": pairs})
        file["timeline/pairs_attended"][...] = 0
        file["timeline/pairs_attended"][0, 0] = pairs
        file["provenance"].attrs["input_identity"] = json.dumps(file_identity(given))
        del file["shards"]
        third = LENGTH // 3
        write_shards(file, SHARDS, [[range(rank * third, (rank + 1) * third)] for rank in range(3)])
    return path


def replace(file, name, **what):
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, **what).attrs.update(attributes)


def test_verify_and_certificates_take_less_memory_than_the_files_have(tmp_path):
    path = zeros(tmp_path)
    total = HEADS * LENGTH * DIM * 4 * 2
    assert total > 1.9 * BOUND_BYTES
    tracemalloc.start()
    try:
        certificate, evidence = certify_file(path, 8)
        write_evidence(tmp_path / "cert.json", evidence)
        again = verify_against(path, tmp_path / "cert.json")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert certificate.passed, certificate.lines()
    assert again.passed, again.lines()
    assert peak < BOUND_BYTES
