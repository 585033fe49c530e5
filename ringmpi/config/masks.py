"""The mask grammar of RUN.toml as data. asking/config_mask.py makes of it the masks of core/masking.py.

    "full"   "causal"   {causal = offset}   {window = [left, right], offset = 0}
    {documents = {query = "dataset", key = "dataset", within = mask}}   {slices = "dataset"}
    {keys = [start, stop]}   {prefix = n}   {sinks = n}   {all = [mask, ...]}   {any = [mask, ...]}

All numbers are positions. The key that a table is named by here says which mask it is.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag

from ringmpi.config.checks import Count, FromArray, Name, Options, Whole, broken, needs

Offset: TypeAlias = Annotated[
    Whole | Literal["end"],
    needs(
        'a whole number of positions, or "end"',
        'key j is seen by query i when j <= i + offset; "end" aligns the last query with the last key',
    ),
]
Reach: TypeAlias = Count | Literal["all"]
Lengths: TypeAlias = Annotated[
    Name | Annotated[tuple[Count, ...], FromArray],
    needs(
        "the name of a dataset of document lengths, or a list of whole numbers >= 0",
        "give one length in positions for each document",
    ),
]


def _check_list(value: Any) -> Any:
    if isinstance(value, list | tuple) and value:
        return value
    raise broken("a list of at least one mask", "write for example {any = [mask, mask]}", wrong_type=value != [])


Masks: TypeAlias = Annotated[tuple["MaskSpec", ...], FromArray, BeforeValidator(_check_list)]


class CausalMask(Options):
    """Query i sees key j when j <= i + offset."""

    causal: Offset


class WindowMask(Options):
    """Query i sees the keys from i + offset - left to i + offset + right, both included; "all": no bound."""

    window: Annotated[
        Annotated[tuple[Reach, Reach], FromArray],
        needs(
            '[left, right], two whole numbers of positions >= 0, "all" for no bound',
            "write for example {window = [511, 0]} for the query's own position and the 511 before it",
        ),
    ]
    offset: Offset = 0


class DocumentLengths(Options):
    """Lengths in positions, one per document. Without `key` the lengths of queries; without `within` all pairs."""

    query: Lengths
    key: Lengths | None = None
    within: MaskSpec | None = None


def _check_documents(value: Any) -> Any:
    if isinstance(value, dict | DocumentLengths):
        return value
    takes = ", ".join(DocumentLengths.model_fields)
    example = "write for example {documents = {query = [1000, 500, 1500]}}"
    raise broken(f"a table; it takes {takes}", example, wrong_type=True)


class DocumentMask(Options):
    """Queries of a document see that document's keys, as `within` says."""

    documents: Annotated[DocumentLengths, BeforeValidator(_check_documents)]


def _in_order(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError
    return bounds


class KeyMask(Options):
    """Every query sees the keys start <= j < stop."""

    keys: Annotated[
        Annotated[tuple[Count, Count], FromArray, AfterValidator(_in_order)],
        needs("[start, stop], two positions, 0 <= start <= stop", "every query sees the keys from start to stop - 1"),
    ]


class PrefixMask(Options):
    """Causal, and every query sees the first `prefix` keys."""

    prefix: Annotated[Count, needs("a whole number of keys >= 0", "every query sees that many first keys")]


class SinkMask(Options):
    """The first `sinks` keys, causally."""

    sinks: Annotated[Count, needs("a whole number of keys >= 0", "usually joined to a window with {any = [...]}")]


class AllMask(Options):
    """The pairs that are in every one of the masks."""

    all: Masks


class AnyMask(Options):
    """The pairs that are in at least one of the masks."""

    any: Masks


class SliceMask(Options):
    """A dataset [n, 6] of whole numbers (q0, q1, k0, k1, low, high): see Mask.slices."""

    slices: Annotated[Name, needs("the name of a dataset [n, 6] of whole numbers", "put the slices in the input file")]


NAMES = ("full", "causal")
NAME_TAG = "mask:name"
KINDS: dict[str, type[Options]] = {
    "causal": CausalMask,
    "window": WindowMask,
    "documents": DocumentMask,
    "keys": KeyMask,
    "prefix": PrefixMask,
    "sinks": SinkMask,
    "all": AllMask,
    "any": AnyMask,
    "slices": SliceMask,
}
MODEL_OF_TAG: dict[str, type[Options]] = {f"mask:{kind}": model for kind, model in KINDS.items()}


def _tag(value: Any) -> str:
    """Which of the masks a checked form is."""
    if isinstance(value, str):
        return NAME_TAG
    if isinstance(value, Options):
        return next(tag for tag, model in MODEL_OF_TAG.items() if isinstance(value, model))
    return next(f"mask:{kind}" for kind in KINDS if kind in value)


def _check_form(value: Any) -> Any:
    """Let through a mask's name, or a table that is exactly one of the masks."""
    if isinstance(value, tuple(KINDS.values())) or (isinstance(value, str) and value in NAMES):
        return value
    named = [kind for kind in KINDS if kind in value] if isinstance(value, dict) else []
    if len(named) == 1:
        return value
    requirement = 'a mask: "full", "causal" or a table that holds one of ' + ", ".join(KINDS)
    raise broken(requirement, _advice(value, named), wrong_type=not isinstance(value, str | dict))


def _advice(value: Any, named: list[str]) -> str:
    if named:
        return f"this one holds {' and '.join(named)}; join masks with {{all = [...]}} or {{any = [...]}}"
    words = [value] if isinstance(value, str) else list(value) if isinstance(value, dict) else []
    near = [match for word in words for match in get_close_matches(word, [*NAMES, *KINDS], 1)]
    return f"did you mean {near[0]}?" if near else 'write for example mask = "causal" or mask = {window = [511, 0]}'


MaskSpec: TypeAlias = Annotated[
    Annotated[
        Annotated[Literal["full", "causal"], Tag(NAME_TAG)]
        | Annotated[CausalMask, Tag("mask:causal")]
        | Annotated[WindowMask, Tag("mask:window")]
        | Annotated[DocumentMask, Tag("mask:documents")]
        | Annotated[KeyMask, Tag("mask:keys")]
        | Annotated[PrefixMask, Tag("mask:prefix")]
        | Annotated[SinkMask, Tag("mask:sinks")]
        | Annotated[AllMask, Tag("mask:all")]
        | Annotated[AnyMask, Tag("mask:any")]
        | Annotated[SliceMask, Tag("mask:slices")],
        Discriminator(_tag),
    ],
    BeforeValidator(_check_form),
]

for _model in (DocumentLengths, DocumentMask, AllMask, AnyMask):
    _model.model_rebuild()
