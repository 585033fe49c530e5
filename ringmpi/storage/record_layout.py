"""What a run with [record] adds to a file: /record, in groups that are there as a whole or not at all.

The rows come from the forward pass, the others are the late record. Weights are exp(score - log_sum_exp), without
dropout: they sum to 1 over the keys of a row, or to less by what a sink logit takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringmpi.storage.layout_entries import DIGEST_ATTRIBUTE, DIGEST_MEANING, WIDE, AttributeLayout, DatasetLayout

RECORD = "/record"
ENTROPY = f"{RECORD}/entropy"
DISTANCE = f"{RECORD}/distance"
TOP_SCORE = f"{RECORD}/top_score"
TOP_KEY = f"{RECORD}/top_key"
SINKS = f"{RECORD}/sinks"
RECORDED_MAP = f"{RECORD}/map"
RECEIVED = f"{RECORD}/received"
TOP_ROWS = f"{RECORD}/top_rows"
TOP_KEYS = f"{RECORD}/top_keys"
TOP_WEIGHTS = f"{RECORD}/top_weights"

RECORDED_ROWS = (ENTROPY, DISTANCE, TOP_SCORE, TOP_KEY, SINKS)
LATE_OF_HEADS = (RECORDED_MAP, RECEIVED, TOP_KEYS, TOP_WEIGHTS)  # after the forward pass; TOP_ROWS has no heads
KEYS_ATTRIBUTE = "keys"  # of SINKS
BLOCK_ATTRIBUTE = "block"  # of RECORDED_MAP
KEY_LENGTH_ATTRIBUTE = "key_length"  # of RECORDED_MAP

_ROW = ("(batch)", "query_heads", "query_length")
_TOP = ("(batch)", "query_heads", "rows", "k")


@dataclass(frozen=True)
class RecordGroup:
    """What is recorded together; `option` of RUN.toml asks for it."""

    option: str
    datasets: tuple[DatasetLayout, ...]
    attributes: tuple[AttributeLayout, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the datasets."""
        return tuple(layout.path for layout in self.datasets)


def _group(option: str, *datasets: DatasetLayout, more: tuple[AttributeLayout, ...] = ()) -> RecordGroup:
    """With a digest of each dataset."""
    digests = (AttributeLayout(layout.path, DIGEST_ATTRIBUTE, "string", DIGEST_MEANING) for layout in datasets)
    return RecordGroup(option, datasets, (*digests, *more))


ROWS_GROUP = _group(
    "rows",
    DatasetLayout(
        ENTROPY,
        _ROW,
        WIDE,
        "nats",
        "entropy of the weights of a query, -sum p ln p over its keys and its sink logit; 0 where it saw no key",
    ),
    DatasetLayout(
        DISTANCE,
        _ROW,
        WIDE,
        "positions",
        "mean distance to the keys of a query, sum p |i - j| with its weights p; 0 where it saw no key",
    ),
    DatasetLayout(
        TOP_SCORE,
        _ROW,
        WIDE,
        "score units, natural logarithm",
        "largest score of a query, after scale, softcap and ALiBi; -inf where it saw no key",
    ),
    DatasetLayout(
        TOP_KEY, _ROW, "int64", "positions", "key of the largest score, the first of equals; -1 where it saw no key"
    ),
    DatasetLayout(
        SINKS, _ROW, WIDE, "1", "weight that a query gives to the first keys of the sequence; 0 where it saw no key"
    ),
    more=(AttributeLayout(SINKS, KEYS_ATTRIBUTE, "int64", "how many first keys"),),
)
MAP_GROUP = _group(
    "map_block",
    DatasetLayout(
        RECORDED_MAP,
        ("(batch)", "query_heads", "query_blocks", "key_blocks"),
        WIDE,
        "1",
        "weight that an average query of a block, of those that see a key, gives to the keys of a block",
    ),
    more=(
        AttributeLayout(RECORDED_MAP, BLOCK_ATTRIBUTE, "int64", "positions of a block; the last one may have fewer"),
        AttributeLayout(RECORDED_MAP, KEY_LENGTH_ATTRIBUTE, "int64", "keys of all blocks together"),
    ),
)
RECEIVED_GROUP = _group(
    "received",
    DatasetLayout(
        RECEIVED,
        ("(batch)", "query_heads", "key_length"),
        WIDE,
        "queries",
        "weight that a key receives, summed over queries",
    ),
)
TOP_GROUP = _group(
    "top_rows",
    DatasetLayout(TOP_ROWS, ("rows",), "int64", "positions", "queries of which the top keys are recorded"),
    DatasetLayout(
        TOP_KEYS,
        _TOP,
        "int64",
        "positions",
        "keys of largest weight of the chosen queries, descending, the first of equals; -1 where a query saw fewer or "
        "met NaN",
    ),
    DatasetLayout(
        TOP_WEIGHTS,
        _TOP,
        WIDE,
        "1",
        "largest weights of the chosen queries, descending; 0 where a query saw fewer keys, NaN where it met NaN",
    ),
)
RECORD_GROUPS = (ROWS_GROUP, MAP_GROUP, RECEIVED_GROUP, TOP_GROUP)
RECORD_DATASETS = tuple(layout for group in RECORD_GROUPS for layout in group.datasets)

SHARD_RECORD_DATASETS = tuple(
    DatasetLayout(layout.path, ("batch", "query_heads", "rows"), layout.dtype, layout.unit, "as in the output")
    for layout in ROWS_GROUP.datasets
)
