"""The one place that names what is in a file: every dataset and attribute, its shape, dtype, unit and meaning.

Plain HDF5: `h5dump` or h5py read all of it without ringmpi. `DATASETS` and `ATTRIBUTES` are the schema as data, and
`SHARD_DATASETS` that of the file in which one rank leaves its rows until they are merged.
What grows with the number of ranks is a dataset, because HDF5 holds an attribute of at most 64 KiB.

Digests
-------
/output and /log_sum_exp carry an attribute `blake2b`: BLAKE2b with a digest of 32 bytes, as 64 hexadecimal digits, over
the bytes of the whole array in C order, little-endian, in the dtype that is stored (bfloat16: its 16 bits). For all but
bfloat16 that is, with `import h5py, hashlib`:

    hashlib.blake2b(file["output"][...].tobytes(), digest_size=32).hexdigest()

storage/digest.py computes it in bounded memory.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = "ringmpi-output"
SHARD_SCHEMA = "ringmpi-shard"
SCHEMA_VERSION = 1

SCHEMA_ATTRIBUTE = "schema"
VERSION_ATTRIBUTE = "schema_version"
DIGEST_ATTRIBUTE = "blake2b"
BFLOAT16_ATTRIBUTE = "ringmpi_dtype"

OUTPUT = "/output"
LOG_SUM_EXP = "/log_sum_exp"
SHARDS = "/shards"
PROVENANCE = "/provenance"
TIMELINE = "/timeline"


@dataclass(frozen=True)
class DatasetLayout:
    """One dataset. `axes` in order; "(batch)" is there when the input has it.

    Attributes `axes`, `unit` and `meaning` of the dataset hold the same texts in the file.
    """

    path: str
    axes: tuple[str, ...]
    dtype: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class AttributeLayout:
    """One attribute `name` of the object at `path`."""

    path: str
    name: str
    dtype: str
    meaning: str


_PER_STEP = ("ranks", "steps")

DATASETS = (
    DatasetLayout(
        OUTPUT,
        ("(batch)", "query_heads", "query_length", "value_dim"),
        "dtype of the input",
        "units of value",
        "attention output; 0 where a query saw no key",
    ),
    DatasetLayout(
        LOG_SUM_EXP,
        ("(batch)", "query_heads", "query_length"),
        "float64 for float64 input, else float32",
        "score units, natural logarithm",
        "ln of the sum of exp(score) over the keys of a query; -inf where it saw no key",
    ),
    DatasetLayout(
        SHARDS,
        ("ranges", "rank start stop step"),
        "int64",
        "positions",
        "which ring position (rank) held which query positions: start, start + step, ... below stop",
    ),
    DatasetLayout("/provenance/hosts", ("ranks",), "string", "", "host name by ring position"),
    DatasetLayout("/provenance/ring_order", ("ranks",), "int64", "launch ranks", "launch rank by ring position"),
    DatasetLayout("/timeline/attend_seconds", _PER_STEP, "float64", "s", "time in the kernel"),
    DatasetLayout("/timeline/wait_seconds", _PER_STEP, "float64", "s", "time waiting for a hop after the kernel"),
    DatasetLayout("/timeline/bytes_sent", _PER_STEP, "int64", "bytes", "keys and values sent in this ring step"),
    DatasetLayout(
        "/timeline/bytes_received", _PER_STEP, "int64", "bytes", "keys and values received in this ring step"
    ),
    DatasetLayout(
        "/timeline/pairs_attended",
        _PER_STEP,
        "int64",
        "(query, key) pairs",
        "pairs that the kernel counted, over batch and query heads",
    ),
    DatasetLayout(
        "/timeline/peak_memory_bytes", ("ranks",), "int64", "bytes", "largest resident memory by ring position"
    ),
    DatasetLayout("/timeline/read_seconds", ("ranks",), "float64", "s", "time reading its queries, keys and values"),
    DatasetLayout(
        "/timeline/write_seconds", ("ranks",), "float64", "s", "time writing the shard file; merging follows"
    ),
)

SHARD_DATASETS = (
    DatasetLayout(
        OUTPUT,
        ("batch", "query_heads", "rows", "value_dim"),
        "dtype of the input",
        "units of value",
        "as in the output",
    ),
    DatasetLayout(
        LOG_SUM_EXP,
        ("batch", "query_heads", "rows"),
        "float64 for float64 input, else float32",
        "score units, natural logarithm",
        "as in the output",
    ),
    DatasetLayout(
        SHARDS, ("ranges", "start stop step"), "int64", "positions", "query positions of the rows, in their order"
    ),
)

ATTRIBUTES = (
    AttributeLayout("/", SCHEMA_ATTRIBUTE, "string", f'"{SCHEMA}"'),
    AttributeLayout("/", VERSION_ATTRIBUTE, "int64", "version of this layout"),
    AttributeLayout(OUTPUT, DIGEST_ATTRIBUTE, "string", "digest of the array: hexadecimal, 32 bytes, C order"),
    AttributeLayout(LOG_SUM_EXP, DIGEST_ATTRIBUTE, "string", "digest of the array: hexadecimal, 32 bytes, C order"),
    AttributeLayout(PROVENANCE, "versions", "string", "JSON object: name of a program or library -> version"),
    AttributeLayout(PROVENANCE, "configuration", "string", "the resolved configuration, TOML"),
    AttributeLayout(PROVENANCE, "command_line", "string", "the command as it was given"),
    AttributeLayout(PROVENANCE, "started", "string", "ISO 8601 time with zone"),
    AttributeLayout(PROVENANCE, "finished", "string", "ISO 8601 time with zone"),
    AttributeLayout(
        PROVENANCE,
        "input_identity",
        "string",
        "JSON object: path, size_bytes, mtime_ns of the input file; checksums of query, key, value (core/content.py)",
    ),
    AttributeLayout(TIMELINE, "pairs_asked", "int64", "pairs of the mask x query_slabs"),
    AttributeLayout(TIMELINE, "pairs_attended", "int64", "pairs that all kernels counted, all ranks and ring steps"),
    AttributeLayout(TIMELINE, "query_slabs", "int64", "batch x query heads"),
)


def dataset_layout(path: str) -> DatasetLayout:
    """The entry of `DATASETS` at `path`."""
    return next(layout for layout in DATASETS if layout.path == path)
