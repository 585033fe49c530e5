"""Files beside the page: every figure as SVG and PNG, every table as CSV."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ringmpi.plotting import LIGHT, new_axes, png_bytes, svg_bytes
from ringmpi.regular_file import regular_bytes
from ringmpi.report.figures import THEME, inline
from ringmpi.report.page import Picture
from ringmpi.storage.files import prepare_directory, replace_text, storage_errors

WIDE, NARROW = (7.4, 3.3), (3.9, 3.1)  # inches: text of 10 points is then 12 to 14 pixels high on a desktop and a phone
LIST, MADE_BY = "report-files.json", "ringmpi analyze"
OURS = re.compile(r"[a-z][a-z-]*\.(svg|png|csv|html|json)")  # names that a report can make: never a path
LARGE = 150_000  # characters of a picture, from which there is one alone, for wide and narrow pages

Lines = Iterable[Sequence[int | float | str]]


class Beside:
    """The directory of a report.

    Parameters
    ----------
    directory : path
        Made where it is missing. Files that an earlier report has left there are removed, others left alone: its list
        (`LIST`) says which are which.

    Attributes
    ----------
    paths : list of path
        Written so far.

    Raises
    ------
    StorageError
        Where nothing can be written there; of every method, too.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.paths = directory, list[Path]()
        with storage_errors("write to", directory):
            prepare_directory(directory)
            _remove_earlier(directory)

    def picture(
        self, name: str, title: str, result: Any, *, files: Sequence[str] = (), shape: float = 1.0, **chosen: Any
    ) -> Picture:
        """The figure that `result.plot` draws, on the page and as files.

        Parameters
        ----------
        name, title
            As of a `Picture`.
        result : object of ringmpi.analysis
        files : sequence of str
            Others that belong to it.
        shape : float
            Times the usual height, so that many ranks have room.
        **chosen
            Of `result.plot`.
        """
        drawn = dict.fromkeys(("wide", "narrow"), "")
        for where, (width, height) in (("wide", WIDE), ("narrow", NARROW)):
            if len(drawn["wide"]) < LARGE:
                axes = new_axes(width, height * shape)
                result.plot(axes, style=THEME, **chosen)
                drawn[where] = inline(axes.figure, f"{name}-{where}", f"{title}. {result.caption}")
        axes = new_axes(WIDE[0], WIDE[1] * shape)
        result.plot(axes, style=LIGHT, **chosen)
        made = [self.file(f"{name}.svg", svg_bytes(axes.figure))]
        axes.figure.set_layout_engine("none")  # everything has its place by now
        made.append(self.file(f"{name}.png", png_bytes(axes.figure)))
        return Picture(name, title, result.caption, drawn["wide"], drawn["narrow"], [*made, *files])

    def table(self, name: str, columns: Sequence[str], lines: Lines) -> str:
        """A CSV file, line by line; its name. Numbers are not rounded."""
        path = self.directory / f"{name}.csv"
        escaped = "backslashreplace"  # file names may be no UTF-8
        with storage_errors("write", path), path.open("w", encoding="utf-8", errors=escaped, newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(lines)
        self.paths.append(path)
        return path.name

    def file(self, name: str, data: bytes) -> str:
        """A file of these bytes; its name."""
        path = self.directory / name
        with storage_errors("write", path):
            path.write_bytes(data)
        self.paths.append(path)
        return name

    def finish(self, page: str) -> None:
        """Write down which files are of this report, so that the next one here can remove them."""
        names = sorted({page, *(path.name for path in self.paths)})
        replace_text(self.directory / LIST, json.dumps({"written_by": MADE_BY, "files": names}, indent=1) + "\n")


def _remove_earlier(directory: Path) -> None:
    """Remove what the list of an earlier report names; nothing where there is no such list, or it is not ours."""
    try:
        found = json.loads(regular_bytes(directory / LIST))
        names = found["files"] if found["written_by"] == MADE_BY else []
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    for name in [*names, LIST]:  # the list last: until then it says what is still there
        if isinstance(name, str) and OURS.fullmatch(name):
            (directory / name).unlink(missing_ok=True)
