"""The report on what real ranks have written, with every part that can be recorded, verified and made as users do."""

import json
from pathlib import Path

import pytest

from ringmpi.cli import exit_code
from tests.report.parsed import Parsed, faults

OPTIONS = """layout = "LAYOUT"
[attention]
mask = "causal"
[record]
sinks = 3
map_block = 16
received = true
top_rows = [0, 5, 149]
"""


@pytest.mark.parametrize("layout", ["merged", "virtual"])
def test_a_run_that_recorded_everything_has_a_report_without_gaps(mpirun, job, tmp_path, capsys, layout):
    done = mpirun(3, "run", job(150, options=OPTIONS.replace("LAYOUT", layout)))
    assert done.code == 0, done.err
    words = ["analyze", str(tmp_path / "out.h5"), "-o", str(tmp_path / "report"), "--verify", "8", "--json"]
    assert exit_code(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["missing"] == []
    text = Path(answer["report"]).read_text(encoding="utf-8")
    assert faults(text) == []
    shown = {name for name in Parsed(text).ids() if name.startswith("figure-")}
    assert {f"figure-{name}" for name in ("map", "entropy", "timeline", "timeline-map", "slow-rank", "memory")} <= shown
    assert "NOT verified" not in text
    assert "Both are equal. What else was checked, and with which result, is listed below." in text
    for name in ("Schedule", "Sharding", "Backend", "Scale"):
        assert f"<dt>{name}</dt>" in text
    assert "not recorded in this output" not in text
