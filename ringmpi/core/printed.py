"""Results in a line: Python prints what a call gives, and arrays of millions of numbers would fill the screen."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any, ClassVar


class Printed:
    """A dataclass that is printed with dtypes and shapes for arrays, and without what is None.

    To be made with `@dataclass(repr=False)`; a field with `repr=False` is left out.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __repr__(self) -> str:
        """`Attention(output=float32 [8, 1000, 64], ..., pairs=4,004,000)`."""
        values = [(field.name, getattr(self, field.name)) for field in fields(self) if field.repr]
        words = ", ".join(f"{name}={_word(value)}" for name, value in values if value is not None)
        return f"{type(self).__name__}({words})"


def _word(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return f"{value:,}" if isinstance(value, int) else repr(value)
