"""Is the output right: the pairs it counts, and what `ringmpi verify` says, if it was asked."""

from __future__ import annotations

import shlex

from ringmpi.analysis import Summary
from ringmpi.analysis.certificate import Certificate
from ringmpi.report.page import Block, Checks, Missing, Section, Text

COUNTED = (
    "Both are equal. That is a count: a pair that was lost and another that was met twice would cancel in it. "
    "Recomputed rows tell these apart."
)
COUNTED_AND_RECOMPUTED = "Both are equal. What else was checked, and with which result, is listed below."


def certificate_section(summary: Summary, certificate: Certificate | None) -> Section:
    """What is known of the output, and how to know more."""
    blocks: list[Block] = [
        Text(
            f"The kernels counted {summary.pairs_attended:,} pairs of query and key; the mask asks for "
            f"{summary.pairs_asked:,}. "
            + (
                (COUNTED if certificate is None else COUNTED_AND_RECOMPUTED)
                if summary.exact
                else "They differ: this output is not what was asked for."
            ),
            "finding",
        )
    ]
    if certificate is None:
        blocks.append(
            Missing(
                "Digests and rows were not checked for this report. Check them, with rows recomputed in wider "
                "precision from the input, by adding --verify 64 to this command, or by",
                f"ringmpi verify {shlex.quote(summary.path)}",
            )
        )
        return Section("certificate", "Certificate", blocks)
    blocks.append(Text(certificate.lines()[-1], "" if certificate.passed else "bad"))
    failed = [(False, check.text) for check in certificate.checks if not check.passed]
    passed = [(True, check.text) for check in certificate.checks if check.passed]
    blocks += [Checks(failed)] if failed else []
    blocks.append(Checks(passed, f"All {len(passed):,} checks that passed"))
    return Section("certificate", "Certificate", blocks)
