"""Write a report: the page, its figures and its tables, into one directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringmpi import __version__, analysis
from ringmpi.analysis.certificate import Certificate
from ringmpi.analysis.verify import verify_file
from ringmpi.report.beside import Beside
from ringmpi.report.certificate_section import certificate_section
from ringmpi.report.map_section import map_section
from ringmpi.report.overview import facts, lead, run_section, title
from ringmpi.report.page import Missing, Page, Section
from ringmpi.report.ranks_section import balance_section, memory_section, overlap_section, slowest, timeline_section
from ringmpi.report.rendering import check_installed, rendered
from ringmpi.report.rows_section import rows_section
from ringmpi.report.several_section import several_section
from ringmpi.storage.files import replace_text
from ringmpi.storage.results import Results

PAGE = "report.html"


@dataclass(frozen=True)
class Written:
    """What a report consists of.

    Attributes
    ----------
    page : path
        The page, which needs none of the other files.
    beside : tuple of path
        Figures and tables.
    missing : tuple of str
        What the page does not show, a sentence each.
    certificate : Certificate or None
        None where nothing was verified.
    """

    page: Path
    beside: tuple[Path, ...]
    missing: tuple[str, ...]
    certificate: Certificate | None


def write_report(paths: Sequence[Path], directory: Path, *, rows: int | None = None) -> Written:
    """Write the report on the first of some outputs, with all of them beside each other where there are several.

    Outputs are read in pieces: they may be larger than the memory.

    Parameters
    ----------
    paths : sequence of path
        Outputs of `ringmpi run`; at least one.
    directory : path
        Made where it is missing. Files of an earlier report are removed, others left alone.
    rows : int or None
        Rows to recompute for the certificate (analysis/verify.py). None: nothing is verified.

    Raises
    ------
    ConfigError
        If jinja2 or matplotlib is not installed.
    StorageError
        If an output cannot be read or the directory cannot be written to.
    """
    check_installed()
    certificate = None if rows is None else verify_file(paths[0], rows=rows)
    with Results(paths[0]) as results:
        summary, slow = analysis.summary(results), slowest(results)
        passes, slabs = tuple(summary.pass_seconds), summary.batch * summary.heads
        beside = Beside(directory)
        sections = [
            run_section(summary, beside),
            certificate_section(summary, certificate),
            map_section(results, slabs, beside),
            rows_section(results, beside),
            timeline_section(results, summary, slow, beside),
            overlap_section(results, passes, beside),
            balance_section(results, passes, beside),
            memory_section(results, beside),
        ]
        overview = facts(results, summary, slow, certificate)
    if len(paths) > 1:
        sections.append(several_section(paths, beside))
    page = Page(title(summary), lead(summary, certificate), overview, sections, f"Written by ringmpi {__version__}.")
    replace_text(directory / PAGE, rendered(page))
    beside.finish(PAGE)
    return Written(directory / PAGE, tuple(beside.paths), tuple(_missing(sections)), certificate)


def _missing(sections: Sequence[Section]) -> list[str]:
    blocks = [block for section in sections for block in section.blocks if isinstance(block, Missing)]
    return [f"{block.text} {block.option}".strip() for block in blocks]
