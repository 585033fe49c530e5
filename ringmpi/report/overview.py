"""The head of the page, and what the run was: who, when, where, with what."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ringmpi import analysis
from ringmpi.analysis import SlowRank, Summary
from ringmpi.analysis.certificate import Certificate
from ringmpi.numbers import counted, listed, percent, ratio, seconds, size
from ringmpi.report.beside import Beside
from ringmpi.report.page import Block, Details, Fact, Listing, Section
from ringmpi.storage.results import Results


def lead(summary: Summary, certificate: Certificate | None = None) -> str:
    """What was computed, in a sentence; not called exact where it is not, or a check of it failed."""
    right = summary.exact and (certificate is None or certificate.passed)
    batch = f"{summary.batch:,} batch entries of " if summary.batch > 1 else ""
    heads = f"{batch}{counted(summary.heads, 'query head')}"
    keys = "" if summary.key_length in (None, summary.query_length) else f" and {summary.key_length:,} keys"
    return (
        f"{'Exact attention' if right else 'Attention'} of {heads} over {summary.query_length:,} queries{keys}, mask "
        f"{shortened(summary.mask)}, on {counted(summary.ranks, 'rank')}."
    )


def shortened(text: str) -> str:
    """A mask in words, without the parentheses around all of it, and not longer than a line."""
    text = text.removeprefix("(").removesuffix(")") if _is_enclosed(text) else text
    return text if len(text) <= MASK_LETTERS else f"{text[:MASK_LETTERS].rstrip()} ..."


def _is_enclosed(text: str) -> bool:
    """Whether the first parenthesis closes with the last one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place > 0 and place == len(text) - 1
    return False


def facts(
    results: Results, summary: Summary, slow: SlowRank | None, certificate: Certificate | None = None
) -> list[Fact]:
    """The figures that one wants first; before all others whether the output is verified, if that was asked."""
    memory, overlaps = analysis.memory(results), [analysis.overlap(results, which) for which in summary.pass_seconds]
    pairs = f"{summary.pairs_attended:,} of {summary.pairs_asked:,} pairs attended"
    passes = listed([f"{name} {seconds(value)}" for name, value in summary.pass_seconds.items()])
    found = [
        *_verified(certificate),
        Fact("Pairs", "exact" if summary.exact else "NOT EXACT", pairs, "good" if summary.exact else "bad"),
        Fact("Time of the run", _took(summary), "; ".join(filter(None, (summary.part_timed, f"passes: {passes}")))),
        Fact("Ranks", f"{summary.ranks:,}", f"on {counted(len(set(summary.hosts)), 'node')}"),
        Fact("Memory per rank", size(memory.largest), "largest resident, any rank"),
    ]
    shares = [(overlap.share, overlap.which) for overlap in overlaps if overlap.share is not None]
    if shares:
        share, which = min(shares)
        where = f"{which} pass" if len(shares) == 1 else f"the least of {len(shares)} passes, {which}"
        found.append(Fact("Overlap", percent(share), f"of the time of messages, hidden behind work; {where}"))
    if slow is not None and slow.stands_out:
        note = f"{slow.label}: {ratio(slow.slowdown)} times the median per pair"
        found.append(Fact("Cost of the slowest rank", seconds(slow.cost_seconds), note, "bad"))
    return found


def _verified(certificate: Certificate | None) -> list[Fact]:
    if certificate is None:
        return []
    answer, mood = ("yes", "good") if certificate.passed else ("NO", "bad")
    return [Fact("Verified", answer, certificate.count, mood)]


def run_section(summary: Summary, beside: Beside) -> Section:
    """Input, options, time, command, versions."""
    table = summary.table()
    csv = beside.table("run", table.columns, table.rows)
    entries = [
        ("Output", f"{summary.path} ({summary.dtype})"),
        ("Input", str(summary.input.get("path", "unknown"))),
        ("Heads", _heads(summary)),
        ("Mask", summary.mask),
        *((label, summary.options[name]) for name, label in _SHOWN.items() if summary.options.get(name)),
        *_computed_by(summary),
        ("Started", _time(summary.started)),
        ("Finished", f"{_time(summary.finished)}, {_took(summary)} later"),
        ("Nodes", listed(_some(sorted(set(summary.hosts))))),
        ("Command", summary.command_line),
        ("Attempts", f"{summary.attempts:,}: it was stopped and went on" if summary.attempts > 1 else ""),
        ("Recorded", listed(list(summary.recorded)) if summary.recorded else "nothing besides the output"),
    ]
    blocks: list[Block] = [
        Details([(name, str(value)) for name, value in entries if value != ""], [csv]),
        Listing("All options", "\n".join(f"{name} = {value}" for name, value in summary.options.items())),
        Listing("Versions", "\n".join(f"{name} {number}" for name, number in summary.versions.items())),
    ]
    return Section("run", "Run", blocks)


_SHOWN = {
    "attention.softcap": "Softcap",
    "attention.dropout": "Dropout",
}
MASK_LETTERS = 120
_NODES_SHOWN = 8


def _computed_by(summary: Summary) -> list[tuple[str, str]]:
    """What was decided where the options say "auto"; of outputs that do not say it, that."""
    found = summary.computed_by
    if found is None:
        asked = (f"{name} {summary.options.get(f'ring.{name}', 'auto')}" for name in ("sharding", "schedule"))
        return [("Computed by", f"not recorded in this output; asked for were {' and '.join(asked)}")]
    return [
        ("Scale", f"{found.problem['scale']:.6g}" if "scale" in found.problem else ""),
        ("Sharding", found.sharding_words),
        ("Schedule", found.schedule),
        ("Backend", f"{found.backend_words}, {found.threads_words}"),
    ]


def _heads(summary: Summary) -> str:
    batch = f"{summary.batch:,} batch entries, " if summary.batch > 1 else ""
    dims = f", value_dim {summary.value_dim}" + (f", head_dim {summary.head_dim}" if summary.head_dim else "")
    keys = f" on {counted(summary.key_heads, 'key head')}" if summary.key_heads else ""
    return f"{batch}{counted(summary.heads, 'query head')}{keys}{dims}"


def _some(names: list[str]) -> list[str]:
    left = len(names) - _NODES_SHOWN
    return names if left <= 0 else [*names[:_NODES_SHOWN], f"{left:,} more"]


def _took(summary: Summary) -> str:
    """From start to finish, which are known in whole seconds."""
    return "under 1 s" if summary.seconds == 0 else seconds(summary.seconds)


def _time(text: str) -> str:
    """A time with its zone, without fractions of a second."""
    try:
        return datetime.fromisoformat(text).isoformat(sep=" ", timespec="seconds")
    except ValueError:
        return text


def title(summary: Summary) -> str:
    """The name of the output file."""
    return Path(summary.path).name
