"""The notebook is the page, and runs from its first cell to the last."""

import nbformat
import pytest

from docs.notebook import NOTEBOOK, PAGE, executed, notebook_of

LARGEST_BYTES = 400_000


def sources(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_the_notebook_has_the_cells_of_the_page_and_small_results():
    found = nbformat.read(NOTEBOOK, as_version=4)
    assert sources(found) == sources(notebook_of(PAGE.read_text(encoding="utf-8"))), "run: python -m docs.notebook"
    assert NOTEBOOK.stat().st_size < LARGEST_BYTES
    pictures = [out for cell in found.cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert len(pictures) >= 4


@pytest.mark.timeout(180)
def test_the_notebook_runs(tmp_path):
    done = executed(notebook_of(PAGE.read_text(encoding="utf-8")), tmp_path)
    errors = [out for cell in done.cells for out in cell.get("outputs", ()) if out.output_type == "error"]
    assert errors == []
    assert (tmp_path / "out.nc").exists()
