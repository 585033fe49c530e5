"""[record]: what a run writes down of its weights, which are never stored."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator

from ringmpi.config.checks import Count, FromArray, Name, Options, broken, needs
from ringmpi.core.record import FIRST_KEYS, Recording
from ringmpi.core.whole_numbers import LARGEST_POSITION

TOP_KEYS = 8
SomeOf: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST_POSITION)]


class RecordOptions(Options):
    """[record]: what the weights are like, in datasets of /record. Without this table nothing is recorded."""

    # Of each query, in the forward pass: entropy, distance, largest score and its key, weight on the first keys.
    rows: Annotated[bool, needs("true or false", "leave it out for true")] = True
    # Keys, from the first of the sequence on, whose weight is summed. None: 4 with rows.
    sinks: Annotated[
        SomeOf | None, needs("a whole number of keys >= 1", f"leave it out for the first {FIRST_KEYS} keys")
    ] = None
    # Positions of a block: the exact map between blocks of queries and blocks of keys, by a map pass. None: no map.
    map_block: Annotated[SomeOf | None, needs("a whole number of positions >= 1", "leave it out for no map")] = None
    # What each key receives, by a map pass.
    received: Annotated[bool, needs("true or false", "leave it out for false")] = False
    # Positions of queries, ascending, or a dataset of them: their top keys, after the forward pass. None: none.
    top_rows: Annotated[
        Name | Annotated[tuple[Count, ...], FromArray, Field(min_length=1)] | None,
        needs(
            "a list of at least one query position, or the name of a dataset of them",
            "leave it out for none",
        ),
    ] = None
    # How many keys of each. None: 8 with top_rows.
    top_keys: Annotated[SomeOf | None, needs("a whole number of keys >= 1", f"leave it out for {TOP_KEYS}")] = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse what would record nothing, or be ignored."""
        if not (self.rows or self.has_late_record):
            raise broken("a table that asks for something", "set rows = true, or remove the table", wrong_type=False)
        if self.sinks is not None and not self.rows:
            raise broken(
                "a table with rows = true where it has sinks", "set rows = true, or remove sinks", wrong_type=False
            )
        if self.top_keys is not None and self.top_rows is None:
            raise broken(
                "a table with top_rows where it has top_keys", "name top_rows, or remove top_keys", wrong_type=False
            )
        return self

    @property
    def first_keys(self) -> int:
        """Keys whose weight is summed, where rows are recorded."""
        return FIRST_KEYS if self.sinks is None else self.sinks

    @property
    def recording(self) -> Recording | None:
        """What the forward pass records; None where it is nothing."""
        return Recording(self.first_keys) if self.rows else None

    @property
    def top_key_count(self) -> int:
        """Top keys of each chosen row, where there are any."""
        return TOP_KEYS if self.top_keys is None else self.top_keys

    @property
    def has_late_record(self) -> bool:
        """Whether something is asked for that needs the final log_sum_exp."""
        return self.map_block is not None or self.received or self.top_rows is not None
