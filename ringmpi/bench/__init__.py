"""`ringmpi bench`: how fast and how exact, here and beside others. Nothing in this package is needed for a run.

    measured     figures.py, report.py, machine.py    medians with intervals, the JSON file, what it was measured on
    contenders   peers/, child.py, worker.py          each in a process of its own, in its own Python if need be
    benchmarks   kernel.py, hop.py, ring.py, disk.py, exactness.py
    rates        measure.py                           what kernels and hops take with all ranks at work, for the planner

Rounds are interleaved: every contender runs once, then all again. A machine that slows down slows all of them, and
ratios are formed round by round.
"""
