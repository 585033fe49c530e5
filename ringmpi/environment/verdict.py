"""What one check of a site has found."""

from __future__ import annotations

from typing import NamedTuple

OK, NOTE, PROBLEM = "ok", "note", "problem"


class Verdict(NamedTuple):
    """One line.

    level : "ok"; "note": it works, and could work better; "problem": a run fails, or may fail, until it is solved
    what : what was checked
    found : what there is
    advice : what to do; empty where nothing is to be done
    """

    level: str
    what: str
    found: str
    advice: str = ""
