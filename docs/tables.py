"""The parts of the documents that code writes: tables, pictures of masks, lists of options and messages.

    python -m docs.tables     writes them again; tests/test_docs.py checks that they are up to date

A document holds `<!-- table: NAME -->`, what TABLES[NAME]() gives, and `<!-- end of table -->`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel

from docs import cuda_paper, gallery, measured, measured_summary, scaling
from docs.markdown import table
from docs.messages import messages
from ringmpi.analysis.evidence import ArrayFacts, Evidence, Quantity, Sample
from ringmpi.asking.config_mask import build_mask
from ringmpi.cli import commands
from ringmpi.config import parse_config
from ringmpi.config.options import RunConfig
from ringmpi.core.itinerary import Itinerary, plan_itinerary
from ringmpi.core.masking import Mask
from ringmpi.core.problem import Problem, pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.schedule import SCHEDULES
from ringmpi.core.sharding import NAMES, Sharding, shardings_by_name
from ringmpi.errors import ConfigError
from ringmpi.planner.balance import key_bytes
from ringmpi.planner.memory import rank_memory
from ringmpi.storage.computed_by import COMPUTED_BY_ATTRIBUTES, COMPUTED_BY_DATASETS
from ringmpi.storage.layout import (
    ATTEMPTS_ATTRIBUTES,
    ATTEMPTS_DATASETS,
    ATTRIBUTES,
    DATASETS,
    GRADIENT_ATTRIBUTES,
    GRADIENT_DATASETS,
    PLACEMENT_ATTRIBUTES,
    PLACEMENT_DATASETS,
    AttributeLayout,
    DatasetLayout,
)
from ringmpi.storage.manifest import Manifest, RankFile
from ringmpi.storage.map_layout import MAP_TIMELINE_ATTRIBUTES, MAP_TIMELINE_DATASETS
from ringmpi.storage.record_layout import RECORD_DATASETS, RECORD_GROUPS

DOCS = Path(__file__).parent
ROOT = DOCS.parent


MARKED = re.compile(r"(?<=<!-- table: )([a-z-]+)( -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
SMALLEST = '[input]\nfile = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "out.h5"\n'
MEGABYTE = 1e6
MIB = 2.0**20


def refreshed(text: str) -> str:
    """`text` of a document with all its tables as they are now."""
    return MARKED.sub(lambda found: f"{found[1]}{found[2]}\n{TABLES[found[1]]()}\n\n", text)


# ---- file format


def datasets() -> str:
    """storage/layout.py DATASETS."""
    return _datasets(DATASETS)


def gradient_datasets() -> str:
    """storage/layout.py GRADIENT_DATASETS."""
    return _datasets(GRADIENT_DATASETS)


def _datasets(layouts: Sequence[DatasetLayout]) -> str:
    rows = ((f"`{d.path}`", f"[{', '.join(d.axes)}]", d.dtype, d.unit or "-", d.meaning) for d in layouts)
    return table(("dataset", "axes", "dtype", "unit", "meaning"), rows)


def attributes() -> str:
    """storage/layout.py ATTRIBUTES."""
    return _attributes(ATTRIBUTES)


def gradient_attributes() -> str:
    """storage/layout.py GRADIENT_ATTRIBUTES."""
    return _attributes(GRADIENT_ATTRIBUTES)


def placement_datasets() -> str:
    """storage/layout.py PLACEMENT_DATASETS."""
    return _datasets(PLACEMENT_DATASETS)


def placement_attributes() -> str:
    """storage/layout.py PLACEMENT_ATTRIBUTES."""
    return _attributes(PLACEMENT_ATTRIBUTES)


def attempts_datasets() -> str:
    """storage/layout.py ATTEMPTS_DATASETS."""
    return _datasets(ATTEMPTS_DATASETS)


def attempts_attributes() -> str:
    """storage/layout.py ATTEMPTS_ATTRIBUTES."""
    return _attributes(ATTEMPTS_ATTRIBUTES)


def computed_by_datasets() -> str:
    """storage/computed_by.py COMPUTED_BY_DATASETS."""
    return _datasets(COMPUTED_BY_DATASETS)


def computed_by_attributes() -> str:
    """storage/computed_by.py COMPUTED_BY_ATTRIBUTES."""
    return _attributes(COMPUTED_BY_ATTRIBUTES)


def record_datasets() -> str:
    """storage/record_layout.py RECORD_DATASETS."""
    return _datasets(RECORD_DATASETS)


def record_attributes() -> str:
    """storage/record_layout.py, of all RECORD_GROUPS."""
    return _attributes([attribute for group in RECORD_GROUPS for attribute in group.attributes])


def map_datasets() -> str:
    """storage/map_layout.py MAP_TIMELINE_DATASETS."""
    return _datasets(MAP_TIMELINE_DATASETS)


def map_attributes() -> str:
    """storage/map_layout.py MAP_TIMELINE_ATTRIBUTES."""
    return _attributes(MAP_TIMELINE_ATTRIBUTES)


def _attributes(layouts: Sequence[AttributeLayout]) -> str:
    rows = ((f"`{a.path}`", f"`{a.name}`", a.dtype, a.meaning) for a in layouts)
    return table(("of", "attribute", "dtype", "meaning"), rows)


def manifest() -> str:
    """storage/manifest.py Manifest."""
    return _fields(Manifest)


def rank_files() -> str:
    """storage/manifest.py RankFile."""
    return _fields(RankFile)


def certificate() -> str:
    """analysis/evidence.py Evidence."""
    return _fields(Evidence)


def certificate_arrays() -> str:
    """analysis/evidence.py ArrayFacts."""
    return _fields(ArrayFacts)


def certificate_sample() -> str:
    """analysis/evidence.py Sample."""
    return _fields(Sample)


def certificate_quantities() -> str:
    """analysis/evidence.py Quantity."""
    return _fields(Quantity)


def _fields(record: type[BaseModel]) -> str:
    return table(
        ("field", "meaning"), ((f"`{name}`", field.description) for name, field in record.model_fields.items())
    )


# ---- RUN.toml


def options() -> str:
    """Every option with its default, and what it must be in the words of the message for a wrong value."""
    models = {name: _model_of(field.annotation) for name, field in RunConfig.model_fields.items()}
    return "\n\n".join(
        f"### [{name}]\n\n{model.__doc__.split(': ', 1)[1].splitlines()[0].capitalize()}\n\n"
        + table(("option", "default", "must be", "advice"), _options_of(name, model))
        for name, model in models.items()
    )


def _model_of(annotation: Any) -> Any:
    """The table of options, also where it may be left out."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)


def _options_of(section: str, model: Any) -> list[tuple[str, ...]]:
    rows = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else "none" if field.default is None else f"`{field.default}`"
        rows.append((f"`{name}`", default, *_requirement(section, name)))
    return rows


def _requirement(section: str, option: str) -> tuple[str, str]:
    """Ask with a date, which no option takes, and read what the message says."""
    text = SMALLEST if section in ("input", "output") else f"{SMALLEST}[{section}]\n"
    text = re.sub(rf"(?m)(^\[{section}\]\n)((?:\w.*\n)*)", lambda found: found[1] + _without(found[2], option), text)
    try:
        parse_config(text)
    except ConfigError as error:
        line = next(problem for problem in error.problems if f"] {option} = " in problem)
        requirement, advice = re.search(r"must be (.*?); (.*)", line).groups()
        return requirement, advice
    raise AssertionError(f"[{section}] {option} takes a date")


def _without(lines: str, option: str) -> str:
    kept = [line for line in lines.splitlines() if not line.startswith(f"{option} ")]
    return "\n".join([f"{option} = 1979-05-27", *kept, ""])


def exit_codes() -> str:
    """What `ringmpi --help` says of them."""
    return table(("code", "meaning"), re.findall(r"(?m)^\s+(\d+)  +(.+)$", commands.help or ""), right=(0,))


# ---- masks

MASKS = (  # Python, RUN.toml, queries, keys
    ("Mask.full()", '"full"', 6, 8),
    ("Mask.causal()", '"causal"', 8, 8),
    ("Mask.causal(offset=2)", "{causal = 2}", 6, 8),
    ('Mask.causal(offset="end")', '{causal = "end"}', 5, 8),
    ("Mask.window(2, 0)", "{window = [2, 0]}", 8, 8),
    ("Mask.window(1, 2)", "{window = [1, 2]}", 8, 8),
    ("Mask.window(2, None)", '{window = [2, "all"]}', 8, 8),
    ("Mask.documents([3, 1, 4])", "{documents = {query = [3, 1, 4]}}", 8, 8),
    (
        "Mask.documents([3, 1, 4], within=Mask.causal())",
        '{documents = {query = [3, 1, 4], within = "causal"}}',
        8,
        8,
    ),
    (
        'Mask.documents([2, 3], [4, 5], within=Mask.causal("end"))',
        '{documents = {query = [2, 3], key = [4, 5], within = {causal = "end"}}}',
        5,
        9,
    ),
    ("Mask.keys(2, 5)", "{keys = [2, 5]}", 6, 8),
    ("Mask.prefix(3)", "{prefix = 3}", 8, 8),
    ("Mask.sinks(2)", "{sinks = 2}", 8, 8),
    ("Mask.window(2, 0) | Mask.sinks(2)", "{any = [{window = [2, 0]}, {sinks = 2}]}", 8, 8),
    ("Mask.causal() & Mask.keys(2, 6)", '{all = ["causal", {keys = [2, 6]}]}', 8, 8),
    (
        "Mask.slices([[0, 4, 0, 4, 0, 0], [4, 8, 2, 8, -3, -1]])",
        '{slices = "my_slices"}',
        8,
        8,
    ),
)


def mask_of(python: str) -> Mask:
    """The mask of one row of MASKS."""
    return eval(python, {"Mask": Mask})


def mask_of_toml(toml: str, vectors: dict[str, Any]) -> Mask:
    """The mask that RUN.toml means; `vectors`: the datasets it may name."""
    config = parse_config(f"{SMALLEST}[attention]\nmask = {toml}\n")
    return build_mask(config.attention.mask, lambda name: np.asarray(vectors[name]))


def picture(mask: Mask, queries: int, keys: int) -> str:
    """One line a query: # for a key that it sees."""
    return "\n".join("".join("# " if seen else ". " for seen in row).rstrip() for row in mask.allowed(queries, keys))


def masks() -> str:
    """Each constructor: how it is written in both languages, a picture, and its exact number of pairs."""
    return "\n\n".join(
        f"**`{python}`** - in RUN.toml `mask = {toml}`; {queries} queries, {keys} keys, "
        f"{mask_of(python).pairs(queries, keys)} pairs\n\n```text\n{picture(mask_of(python), queries, keys)}\n```"
        for python, toml, queries, keys in MASKS
    )


# ---- shardings and schedules

LENGTH, RANKS = 8192, 8
HEADS, KEY_HEADS, DIM = 8, 2, 64
DOCUMENTS = [1500, 40, 700, 2600, 12, 900, 1300, 1140]
MASKS_COMPARED = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window of 512": Mask.window(511, 0),
    "8 documents, causal": Mask.documents(DOCUMENTS, within=Mask.causal()),
}


class Shaped:
    """Stands for an array: shape and dtype are all that a plan needs."""

    def __init__(self, *shape: int, dtype: str = "bfloat16") -> None:
        import ml_dtypes  # noqa: F401 - makes NumPy know the name bfloat16

        self.shape, self.dtype = shape, np.dtype(dtype)


def problem_of(
    mask: Mask,
    sharding: str,
    schedule: str = "ring",
    *,
    length: int = LENGTH,
    ranks: int = RANKS,
    dtype: str = "bfloat16",
) -> Problem:
    """The example of the tables: 8 query heads on 2 key heads, head_dim 64."""
    queries, keys = shardings_by_name(sharding, mask, length, length, ranks)
    q, k = Shaped(HEADS, length, DIM, dtype=dtype), Shaped(KEY_HEADS, length, DIM, dtype=dtype)
    return pose_problem((q, k, k), mask=mask, queries=queries, keys=keys, schedule=schedule)


def plan_of(problem: Problem) -> tuple[np.ndarray, list[Itinerary]]:
    """Pairs [ranks, pieces] of one head, and the itinerary of every rank as `ringmpi run` has it."""
    pairs = np.stack([RankWork(problem, rank).pairs() for rank in range(problem.size)])
    every = range(problem.size)
    return pairs, [plan_itinerary(problem.schedule, problem.pieces, pairs > 0, rank, donated=True) for rank in every]


def bytes_sent(problem: Problem, itinerary: Itinerary) -> int:
    """Keys and values that a rank sends in one pass."""
    hops = (hop for step in itinerary.steps for hop in step.hops)
    return sum(problem.pieces[piece].length * key_bytes(problem) for hop in hops for piece, _ in hop.sends)


def layouts() -> str:
    """Who owns which of 24 positions on 3 ranks."""
    lines = []
    for name in ("contiguous", "zigzag", "striped"):
        owners = np.empty(24, np.int64)
        sharding: Sharding = getattr(Sharding, name)(24, 3)
        for rank in range(3):
            owners[sharding.positions(rank)] = rank
        lines.append(f"{name:<12}{' '.join(map(str, owners))}")
    return "```text\n" + "\n".join(lines) + "\n```"


def balance() -> str:
    """Load and traffic of every sharding under four masks."""
    rows = []
    for title, mask in MASKS_COMPARED.items():
        chosen = shardings_by_name("auto", mask, LENGTH, LENGTH, RANKS)[0].name
        for name in NAMES[:-1]:
            problem = problem_of(mask, name)
            pairs, itineraries = plan_of(problem)
            work = pairs.sum(1)
            moved = sum(bytes_sent(problem, itinerary) for itinerary in itineraries)
            auto = "auto" if name == chosen else ""
            rows.append((title, name, f"{work.max() / work.mean():.3f}", f"{moved / MEGABYTE:.1f}", auto))
    head = ("mask", "sharding", "busiest rank / mean", "MB moved", "")
    return table(head, rows, right=(2, 3))


def schedules() -> str:
    """What every schedule costs for the causal example."""
    rows = []
    for name in SCHEDULES:
        problem = problem_of(MASKS_COMPARED["causal"], "zigzag", name)
        _, itineraries = plan_of(problem)
        moved = sum(bytes_sent(problem, itinerary) for itinerary in itineraries)
        hops = [hop for itinerary in itineraries for step in itinerary.steps for hop in step.hops]
        messages_sent = 2 * sum(len(hop.sends) for hop in hops)
        slots = max(rank_memory(problem, itinerary).slots for itinerary in itineraries)
        peers = {len({peer for s in i.steps for hop in s.hops for _, peer in hop.sends}) for i in itineraries}
        rows.append((name, f"{moved / MEGABYTE:.1f}", messages_sent, max(peers), f"{slots / MEGABYTE:.2f}"))
    head = ("schedule", "MB moved", "messages", "peers a rank sends to", "MB of keys and values on a rank")
    return table(head, rows, right=(1, 2, 3, 4))


def memory() -> str:
    """Memory a rank by rank count, for a long causal sequence."""
    rows = []
    for ranks in (1, 2, 4, 8, 16):
        problem = problem_of(Mask.causal(), "zigzag", length=1 << 20, ranks=ranks)
        _, itineraries = plan_of(problem)
        most = max((rank_memory(problem, itinerary) for itinerary in itineraries), key=lambda memory: memory.peak)
        terms = (most.queries, most.slots, most.partial, most.output, most.peak)
        rows.append((ranks, *(f"{term / MIB:,.0f}" for term in terms)))
    return table(("ranks", "queries", "slots", "partial", "output", "peak"), rows, right=range(6))


def trace() -> str:
    """Whose keys each rank meets in each ring step, on 4 ranks."""
    problem = problem_of(Mask.full(), "contiguous", length=16, ranks=4)
    _, itineraries = plan_of(problem)
    rows = []
    for step in range(4):
        visits = [itinerary.steps[step].visits for itinerary in itineraries]
        rows.append((step, *(problem.pieces[piece].owner for [piece] in visits)))
    return table(("ring step", *(f"rank {rank}" for rank in range(4))), rows, right=range(5))


def _quoted(text: str) -> str:
    """As code, in one more backtick than is in it."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def all_messages() -> str:
    """Every error message in the code, by class."""
    parts = []
    for name, group in groupby(messages(ROOT), key=lambda message: message.error):
        found = list(group)
        lines = [f"- {_quoted(message.text)} - `{message.path}`" for message in found]
        parts.append(f"### {name}, exit code {found[0].exit_code}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


TABLES = {
    "datasets": datasets,
    "attributes": attributes,
    "gradient-datasets": gradient_datasets,
    "gradient-attributes": gradient_attributes,
    "placement-datasets": placement_datasets,
    "placement-attributes": placement_attributes,
    "attempts-datasets": attempts_datasets,
    "attempts-attributes": attempts_attributes,
    "computed-by-datasets": computed_by_datasets,
    "computed-by-attributes": computed_by_attributes,
    "record-datasets": record_datasets,
    "record-attributes": record_attributes,
    "map-datasets": map_datasets,
    "map-attributes": map_attributes,
    "manifest": manifest,
    "rank-files": rank_files,
    "certificate": certificate,
    "certificate-arrays": certificate_arrays,
    "certificate-sample": certificate_sample,
    "certificate-quantities": certificate_quantities,
    "options": options,
    "exit-codes": exit_codes,
    "masks": masks,
    "layouts": layouts,
    "balance": balance,
    "schedules": schedules,
    "memory": memory,
    "trace": trace,
    "messages": all_messages,
    **gallery.TABLES,
    **scaling.TABLES,
    **cuda_paper.TABLES,
    **measured.TABLES,
    "in-short": measured_summary.in_short,
}


if __name__ == "__main__":
    for document in sorted(DOCS.rglob("*.md")):
        document.write_text(refreshed(document.read_text(encoding="utf-8")), encoding="utf-8")
