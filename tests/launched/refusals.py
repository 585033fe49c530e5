"""`ringmpi` many times over in one MPI job: mpirun -n P python refusals.py COMMANDS.json

COMMANDS.json is a list of command lines. Rank 0 writes a JSON list: of each command and rank, the exit code, what went
to stderr, and how often the kernel was called.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from mpi4py import MPI

from ringmpi import cli
from ringmpi.backends import get_backend

Kernel = type(get_backend())
attend, calls = Kernel.attend, []


def counted(self, *arguments, **options):
    calls.append(1)
    return attend(self, *arguments, **options)


Kernel.attend = counted
outcomes = []
for command in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
    calls.clear()
    said, results = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(results):
        code = cli.exit_code(command)
    outcomes.append(MPI.COMM_WORLD.gather((code, said.getvalue(), len(calls))))
if MPI.COMM_WORLD.rank == 0:
    sys.stdout.write(json.dumps(outcomes))
