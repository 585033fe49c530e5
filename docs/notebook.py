"""docs/after-the-run.md as a notebook with its results.

    python -m docs.notebook     runs the page and writes docs/notebooks/after_the_run.ipynb (nbclient, ipykernel)

The page is the source: text between blocks becomes cells of text, blocks of Python become cells of code.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parent
PAGE = DOCS / "after-the-run.md"
NOTEBOOK = DOCS / "notebooks" / "after_the_run.ipynb"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([\w./-]+)\.md(#[\w-]*)?\)")
SECONDS = 120


def notebook_of(page: str) -> Any:
    """The cells of a page, without results. Links to other pages lead out of the folder of notebooks."""
    cells = []
    for nth, part in enumerate(PYTHON.split(page)):
        if nth % 2:
            cells.append(nbformat.v4.new_code_cell(part.rstrip("\n")))
        elif text := part.strip():
            cells.append(nbformat.v4.new_markdown_cell(LINK.sub(r"](../\1.md\2)", text)))
    for nth, cell in enumerate(cells):
        cell["id"] = f"cell-{nth}"  # random by default
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook with the results of all its cells, run in `folder`; CellExecutionError if one fails."""
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell["metadata"] = {}  # times
    notebook.metadata.pop("language_info", None)  # version of this Python
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        done = executed(notebook_of(PAGE.read_text(encoding="utf-8")), Path(work))
    NOTEBOOK.parent.mkdir(exist_ok=True)
    nbformat.write(done, NOTEBOOK)
