"""The one place that names what is in a file: every dataset and attribute, its shape, dtype, unit and meaning.

Plain HDF5: `h5dump` or h5py read all of it without ringmpi. `DATASETS` and `ATTRIBUTES` are the schema as data,
`GRADIENT_DATASETS` and `GRADIENT_ATTRIBUTES` what a run with [backward] adds (all of it, or none), those with PLACEMENT
what a ring adds that was not simply taken from the launcher, those with ATTEMPTS what a run with [checkpoint] adds, and
the names with SHARD those of the file in which one rank leaves its rows until they are merged. What a run with [record]
adds is in record_layout.py, what computed an output in computed_by.py.
What grows with the number of ranks is a dataset, because HDF5 holds an attribute of at most 64 KiB.

The version changes when a file can no longer be read as before. What is only added does not change it: a file without
gradients is a file of this version too.

Digests
-------
The arrays that a run computes (/output, /log_sum_exp, gradients, those in /record) carry an attribute `blake2b`:
BLAKE2b with a digest of 32 bytes, as 64 hexadecimal digits, over the bytes of the whole array in C order,
little-endian, in the dtype that is stored (bfloat16: its 16 bits). For all but bfloat16 that is, with
`import h5py, hashlib`:

    hashlib.blake2b(file["output"][...].tobytes(), digest_size=32).hexdigest()

storage/digest.py computes it in bounded memory.
"""

from __future__ import annotations

from ringmpi.storage.layout_entries import (
    COUNTED_PAIRS,
    DIGEST_ATTRIBUTE,
    DIGEST_MEANING,
    WIDE,
    AttributeLayout,
    DatasetLayout,
    pass_timeline,
)
from ringmpi.storage.map_layout import MAP_TIMELINE_DATASETS
from ringmpi.storage.record_layout import RECEIVED, RECORD_DATASETS, RECORDED_ROWS

__all__ = ["DIGEST_ATTRIBUTE", "AttributeLayout", "DatasetLayout"]

SCHEMA = "ringmpi-output"
SHARD_SCHEMA = "ringmpi-shard"
SCHEMA_VERSION = 2

SCHEMA_ATTRIBUTE = "schema"
VERSION_ATTRIBUTE = "schema_version"
BFLOAT16_ATTRIBUTE = "ringmpi_dtype"

OUTPUT = "/output"
LOG_SUM_EXP = "/log_sum_exp"
SHARDS = "/shards"
PROVENANCE = "/provenance"
TIMELINE = "/timeline"
GRAD_QUERY = "/grad_query"
GRAD_KEY = "/grad_key"
GRAD_VALUE = "/grad_value"
KEY_SHARDS = "/key_shards"
BACKWARD_TIMELINE = "/timeline_backward"
TRAVEL_ATTRIBUTE = "travel"
PLACEMENT = "/placement"
UNPLACED = f"{PLACEMENT}/unplaced"
ATTEMPTS = "/attempts"

RESULTS = (OUTPUT, LOG_SUM_EXP)
GRADIENTS = (GRAD_QUERY, GRAD_KEY, GRAD_VALUE)
KEY_SIDE = (GRAD_KEY, GRAD_VALUE)  # rows of keys, not of queries

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
        WIDE,
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
    *pass_timeline(TIMELINE, "steps", "keys and values"),
    DatasetLayout(
        "/timeline/peak_memory_bytes", ("ranks",), "int64", "bytes", "largest resident memory by ring position"
    ),
    DatasetLayout("/timeline/read_seconds", ("ranks",), "float64", "s", "time reading its shards of the inputs"),
    DatasetLayout(
        "/timeline/write_seconds", ("ranks",), "float64", "s", "time writing the shard file; merging follows"
    ),
)

GRADIENT_DATASETS = (
    DatasetLayout(
        GRAD_QUERY,
        ("(batch)", "query_heads", "query_length", "head_dim"),
        "dtype of the input",
        "units of output x grad_output / query",
        "gradient of sum(grad_output x output) with respect to query; 0 where it saw no key",
    ),
    DatasetLayout(
        GRAD_KEY,
        ("(batch)", "key_heads", "key_length", "head_dim"),
        "dtype of the input",
        "units of output x grad_output / key",
        "gradient of sum(grad_output x output) with respect to key; 0 where no query saw it",
    ),
    DatasetLayout(
        GRAD_VALUE,
        ("(batch)", "key_heads", "key_length", "value_dim"),
        "dtype of the input",
        "units of output x grad_output / value",
        "gradient of sum(grad_output x output) with respect to value; 0 where no query saw it",
    ),
    DatasetLayout(
        KEY_SHARDS,
        ("ranges", "rank start stop step"),
        "int64",
        "positions",
        "which ring position (rank) held which key positions: start, start + step, ... below stop",
    ),
    *pass_timeline(BACKWARD_TIMELINE, "backward_steps", "what travels, with its gradients,"),
)

PLACEMENT_DATASETS = (DatasetLayout(UNPLACED, ("unplaced",), "string", "", "hosts that the source does not know"),)

ATTEMPTS_DATASETS = (
    DatasetLayout(f"{ATTEMPTS}/started", ("runs",), "string", "", "ISO 8601 time with zone of the start of each run"),
    DatasetLayout(f"{ATTEMPTS}/ranks", ("runs",), "int64", "ranks", "ranks of each run"),
    DatasetLayout(
        f"{ATTEMPTS}/pairs", ("runs",), "int64", "(query, key) pairs", f"{COUNTED_PAIRS}, in the forward pass"
    ),
    DatasetLayout(
        f"{ATTEMPTS}/pairs_backward", ("runs",), "int64", "(query, key) pairs", f"{COUNTED_PAIRS}, in the backward pass"
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
        WIDE,
        "score units, natural logarithm",
        "as in the output",
    ),
    DatasetLayout(
        SHARDS, ("ranges", "start stop step"), "int64", "positions", "query positions of the rows, in their order"
    ),
)

SHARD_GRADIENT_DATASETS = (
    DatasetLayout(
        GRAD_QUERY, ("batch", "query_heads", "rows", "head_dim"), "dtype of the input", "", "as in the output"
    ),
    DatasetLayout(
        GRAD_KEY, ("batch", "key_heads", "key_rows", "head_dim"), "dtype of the input", "", "as in the output"
    ),
    DatasetLayout(
        GRAD_VALUE, ("batch", "key_heads", "key_rows", "value_dim"), "dtype of the input", "", "as in the output"
    ),
    DatasetLayout(
        KEY_SHARDS,
        ("key_ranges", "start stop step"),
        "int64",
        "positions",
        "key positions of the rows of /grad_key and /grad_value, in their order",
    ),
)

ATTRIBUTES = (
    AttributeLayout("/", SCHEMA_ATTRIBUTE, "string", f'"{SCHEMA}"'),
    AttributeLayout("/", VERSION_ATTRIBUTE, "int64", "version of this layout"),
    *(AttributeLayout(name, DIGEST_ATTRIBUTE, "string", DIGEST_MEANING) for name in RESULTS),
    AttributeLayout(PROVENANCE, "versions", "string", "JSON object: name of a program or library -> version"),
    AttributeLayout(PROVENANCE, "configuration", "string", "the resolved configuration, TOML"),
    AttributeLayout(PROVENANCE, "command_line", "string", "the command as it was given"),
    AttributeLayout(PROVENANCE, "started", "string", "ISO 8601 time with zone"),
    AttributeLayout(PROVENANCE, "finished", "string", "ISO 8601 time with zone"),
    AttributeLayout(
        PROVENANCE,
        "input_identity",
        "string",
        "JSON object: path, size_bytes, mtime_ns of the input file; checksums of the arrays (core/content.py)",
    ),
    AttributeLayout(TIMELINE, "pairs_asked", "int64", "pairs of the mask x query_slabs"),
    AttributeLayout(TIMELINE, "pairs_attended", "int64", "pairs that all kernels counted, all ranks and ring steps"),
    AttributeLayout(TIMELINE, "query_slabs", "int64", "batch x query heads"),
)

GRADIENT_ATTRIBUTES = (
    *(AttributeLayout(name, DIGEST_ATTRIBUTE, "string", DIGEST_MEANING) for name in GRADIENTS),
    AttributeLayout(
        BACKWARD_TIMELINE, "pairs_asked", "int64", 'pairs of the mask x query_slabs; twice where travel is "both"'
    ),
    AttributeLayout(
        BACKWARD_TIMELINE, "pairs_attended", "int64", "pairs that all kernels counted in the backward pass"
    ),
    AttributeLayout(
        BACKWARD_TIMELINE,
        TRAVEL_ATTRIBUTE,
        "string",
        '"keys" or "queries": what visited the other side; "both", one after the other, in a broadcast',
    ),
)

_COST = "JSON object: congestion, dilation, hops"
PLACEMENT_ATTRIBUTES = (
    AttributeLayout(PLACEMENT, "source", "string", "what the ring follows from"),
    AttributeLayout(PLACEMENT, "cost", "string", f"of this ring; {_COST}"),
    AttributeLayout(PLACEMENT, "launch_cost", "string", f"of the order of the launcher; {_COST}"),
    AttributeLayout(PLACEMENT, "lower_bound", "string", f"what no ring can do without; {_COST}"),
    AttributeLayout(PLACEMENT, "proved_optimal", "int64", "1: no ring is better; 0: not known"),
)

ATTEMPTS_ATTRIBUTES = (
    AttributeLayout(ATTEMPTS, "identity", "string", "JSON object: what all these runs computed, field by field"),
)


def dataset_layout(path: str) -> DatasetLayout:
    """The entry at `path` of the datasets of an output."""
    known = (*DATASETS, *GRADIENT_DATASETS, *PLACEMENT_DATASETS, *RECORD_DATASETS, *MAP_TIMELINE_DATASETS)
    return next(layout for layout in known if layout.path == path)


def has_dim(name: str) -> bool:
    """Whether an array that a run computes has channels: [.., length, dim]; one number per position has none."""
    return name not in (LOG_SUM_EXP, *RECORDED_ROWS, RECEIVED)


def result_shapes(
    output: tuple[int, ...], key: tuple[int, ...] | None = None, *, rows: bool = False
) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays that a run computes, as they are stored, by name.

    Parameters
    ----------
    output : tuple of int
        [(batch,) query_heads, query_length, value_dim].
    key : tuple of int or None
        Shape of the input's key, where there are gradients: [(batch,) key_heads, key_length, head_dim].
    rows : bool
        Rows are recorded: [record].
    """
    shapes = {OUTPUT: output, LOG_SUM_EXP: output[:-1]}
    if key is not None:
        shapes |= {GRAD_QUERY: (*output[:-1], key[-1]), GRAD_KEY: key, GRAD_VALUE: (*key[:-1], output[-1])}
    return shapes | {name: output[:-1] for name in RECORDED_ROWS if rows}
