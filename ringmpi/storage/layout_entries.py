"""The form in which layout.py and record_layout.py say what is in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

    @property
    def name(self) -> str:
        """The last part of `path`."""
        return self.path.rpartition("/")[2]

    def describe(self, dataset: Any) -> None:
        """Attach axes, unit and meaning to the dataset, as texts that any tool shows."""
        dataset.attrs.update({"axes": ", ".join(self.axes), "unit": self.unit, "meaning": self.meaning})


@dataclass(frozen=True)
class AttributeLayout:
    """One attribute `name` of the object at `path`."""

    path: str
    name: str
    dtype: str
    meaning: str


def pass_timeline(group: str, axis: str, travelling: str) -> tuple[DatasetLayout, ...]:
    """The counters of a pass, by rank and ring step: those of `account.PassTimeline`.

    Parameters
    ----------
    group : str
        Where they are.
    axis : str
        What its ring steps are called.
    travelling : str
        What its messages hold, in words.
    """
    entries = (
        ("attend_seconds", "float64", "s", "time in the kernel"),
        ("flight_seconds", "float64", "s", "time while messages were under way, as far as the rank could see"),
        ("wait_seconds", "float64", "s", "of flight_seconds, those without work: a hop that was due had not landed"),
        ("bytes_sent", "int64", "bytes", f"{travelling} sent in this ring step"),
        ("bytes_received", "int64", "bytes", f"{travelling} received in this ring step"),
        ("pairs_attended", "int64", "(query, key) pairs", COUNTED_PAIRS),
    )
    return tuple(DatasetLayout(f"{group}/{name}", ("ranks", axis), *entry) for name, *entry in entries)


COUNTED_PAIRS = "pairs that the kernel counted, over batch and query heads"
DIGEST_ATTRIBUTE = "blake2b"
DIGEST_MEANING = "digest of the array: hexadecimal, 32 bytes, C order"
WIDE = "float64 for float64 input, else float32"
