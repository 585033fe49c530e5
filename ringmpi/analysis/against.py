"""What a certificate says, compared with what is found now: one check for each part of it, which names what differs."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringmpi.analysis.certificate import Check
from ringmpi.analysis.evidence import ArrayFacts, Evidence, Quantity, Sample
from ringmpi.config.messages import printable
from ringmpi.core.tolerance import RATIO_FACTOR, same_ratio

CONFIGURATION = "configuration"  # of the run: a TOML text, of which the options that differ are named
SAME = 1e-9  # of a ratio and the quotient that it is
SHOWN = 60  # characters of a value that differs
BEFORE = 20  # of these before the first that differs


def compare(then: Evidence, now: Evidence, certificate: str, *, whole: bool) -> list[Check]:
    """Compare a certificate with what was found by the same rows.

    Parameters
    ----------
    then, now : Evidence
        Of the certificate; of the files as they are.
    certificate : str
        Its path, for messages.
    whole : bool
        Whether the digest of the certificate is right.

    Returns
    -------
    list of Check
    """
    seal = f"certificate {Path(certificate).name} "
    seal += "has the digest that was written" if whole else "was changed after it was written: its digest differs"
    return [
        Check("certificate", whole, seal),
        *_arrays("output", then.output, now.output),
        *_arrays("input", then.input, now.input),
        _facts("run", then.run, now.run),
        _facts("question", then.question, now.question),
        _facts("pairs", then.pairs, now.pairs),
        _facts("sample", _dump(then.sample), _dump(now.sample)),
        *_quantities(then.quantities, now.quantities),
        _facts("checks", _verdicts(then), _verdicts(now)),
    ]


def _verdicts(evidence: Evidence) -> dict[str, Any]:
    """All checks and the verdict, and which of them have a finding; its text has paths and numbers of a machine."""
    return evidence.checks | {"verdict": evidence.verdict, "findings": sorted(evidence.findings)}


def _arrays(where: str, then: Mapping[str, ArrayFacts], now: Mapping[str, ArrayFacts]) -> Iterator[Check]:
    for name in sorted({*then, *now}):
        yield _facts(f"{where} {name}", _dump(then.get(name)), _dump(now.get(name)))


def _quantities(then: Mapping[str, Quantity], now: Mapping[str, Quantity]) -> Iterator[Check]:
    """Counts are equal, ratios nearly: they rest on how a BLAS rounds the plain formula.

    So another row may be the worst elsewhere. Its error must give the ratio that stands beside it; and where the same
    element is the worst, what is permitted there is nearly equal too.
    """
    for name in sorted({*then, *now}):
        before, here = then.get(name), now.get(name)
        if before is None or here is None or not _agree(before, here):
            yield _facts(f"rows of {name}", _dump(before), _dump(here))
            continue
        counts = [{"rows": each.rows, "wrong_rows": each.wrong_rows} for each in (before, here)]
        yield _facts(f"rows of {name}", counts[0], counts[1], f", worst ratio {here.worst_ratio:.3g}")


def _agree(then: Quantity, now: Quantity) -> bool:
    """Whether the worst of the same rows may have been found on two machines."""
    if not same_ratio(then.worst_ratio, now.worst_ratio) or len(then.worst_at) != len(now.worst_at):
        return False
    if then.permitted_error > 0 and math.isfinite(then.worst_error / then.permitted_error):
        if not math.isclose(then.worst_error / then.permitted_error, then.worst_ratio, rel_tol=SAME):
            return False
    elif (then.worst_error, then.permitted_error) != (now.worst_error, now.permitted_error):
        return False
    return then.worst_at != now.worst_at or _near(then.permitted_error, now.permitted_error)


def _near(one: float, other: float) -> bool:
    """Within the factor that ratios may have."""
    small, large = sorted((one, other))
    return large <= RATIO_FACTOR * small


def _dump(record: ArrayFacts | Quantity | Sample | None) -> dict[str, Any]:
    return {} if record is None else record.model_dump(mode="json")


def _facts(part: str, then: Mapping[str, Any], now: Mapping[str, Any], more: str = "") -> Check:
    """All facts of a part are equal, or which are not."""
    differing = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    facts, shown = {"differing": differing}, _short(part, 0)
    if not differing:
        return Check("certified", True, f"{shown} matches the certificate{more}", facts, of=shown)
    words = "; ".join(_difference(then, now, each) for each in differing)
    return Check("certified", False, f"{shown} differs from the certificate: {words}", facts, of=shown)


def _difference(then: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    """One fact that differs, in words; of a configuration the first option that does, and the names of others."""
    before, here = (str(facts.get(name, "none")) for facts in (then, now))
    if name == CONFIGURATION:
        options = _options(before), _options(here)
        names = sorted({*options[0], *options[1]})
        changed = {option: both for option in names if (both := _option(*options, option))}
        if changed:
            first, *others = changed
            also = f" (others that differ: {', '.join(others)})" if others else ""
            name, (before, here) = f"{name}, {first}{also}", changed[first]
    at = next((n for n, (a, b) in enumerate(zip(before, here, strict=False)) if a != b), min(len(before), len(here)))
    return f"{_short(name, 0)}: the certificate has {_short(before, at)}, found {_short(here, at)}"


def _options(configuration: str) -> dict[str, Any]:
    """The options of a resolved configuration, as "[table] key"; none where it is no TOML."""
    try:
        tables = tomllib.loads(configuration)
    except (ValueError, RecursionError):
        return {}
    return {
        f"[{table}] {key}": value
        for table, options in tables.items()
        if isinstance(options, dict)
        for key, value in options.items()
    }


def _option(then: Mapping[str, Any], now: Mapping[str, Any], name: str) -> tuple[str, str] | None:
    """Both values of an option that differs; None where it does not."""
    both = str(then.get(name, "none")), str(now.get(name, "none"))
    return both if both[0] != both[1] else None


def _short(text: str, at: int) -> str:
    """A value on one line, cut where it is long, so that character `at` is shown."""
    if len(text) <= SHOWN:
        return printable(text)
    start = max(at - BEFORE, 0) if at >= SHOWN else 0
    cut = text[start : start + SHOWN]
    return ("..." if start else "") + printable(cut) + ("..." if start + SHOWN < len(text) else "")
