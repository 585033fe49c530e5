"""What a certificate says, compared with what is found now: one check for each part of it, which names what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringmpi.analysis.certificate import Check
from ringmpi.analysis.evidence import ArrayFacts, Evidence, Quantity, facts_of
from ringmpi.core.tolerance import same_ratio

SHOWN = 60  # characters of a value that differs


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
    seal += "has the digest that was written" if whole else "was changed after it was written: its digest is another"
    return [
        Check("certificate", whole, seal),
        *_arrays("output", then.output, now.output),
        *_arrays("input", then.input, now.input),
        _facts("run", then.run, now.run),
        _facts("question", then.question, now.question),
        _facts("pairs", then.pairs, now.pairs),
        _facts("sample", facts_of(then)["sample"], facts_of(now)["sample"]),
        *_quantities(then.quantities, now.quantities),
        _facts("checks", then.checks | {"verdict": then.verdict}, now.checks | {"verdict": now.verdict}),
    ]


def _arrays(where: str, then: Mapping[str, ArrayFacts], now: Mapping[str, ArrayFacts]) -> Iterator[Check]:
    for name in sorted({*then, *now}):
        yield _facts(f"{where} {name}", _dump(then.get(name)), _dump(now.get(name)))


def _quantities(then: Mapping[str, Quantity], now: Mapping[str, Quantity]) -> Iterator[Check]:
    """Counts are equal, ratios nearly: they rest on how a BLAS rounds the plain formula."""
    for name in sorted({*then, *now}):
        before, here = then.get(name), now.get(name)
        if before is None or here is None or not same_ratio(before.worst_ratio, here.worst_ratio):
            yield _facts(f"rows of {name}", _dump(before), _dump(here))
            continue
        counts = [{"rows": each.rows, "wrong_rows": each.wrong_rows} for each in (before, here)]
        yield _facts(f"rows of {name}", counts[0], counts[1], f", worst ratio {here.worst_ratio:.3g}")


def _dump(record: ArrayFacts | Quantity | None) -> dict[str, Any]:
    return {} if record is None else record.model_dump(mode="json")


def _facts(part: str, then: Mapping[str, Any], now: Mapping[str, Any], more: str = "") -> Check:
    """All facts of a part are equal, or which are not."""
    differing = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    name, facts = f"certified {part}", {"differing": differing}
    if not differing:
        return Check(name, True, f"{part} as in the certificate{more}", facts)
    words = "; ".join(
        f"{each}: the certificate has {_short(then, each)}, found {_short(now, each)}" for each in differing
    )
    return Check(name, False, f"{part} is not as in the certificate: {words}", facts)


def _short(facts: Mapping[str, Any], name: str) -> str:
    if name not in facts:
        return "none"
    text = str(facts[name])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
