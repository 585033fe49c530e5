#!/bin/bash
# One attention run on plain hosts, without a batch system:
#   jobs/run.sh RANKS RUN.toml [--force ...]
#   HOSTFILE=hosts jobs/run.sh 8 RUN.toml     (ssh without a password, and this folder at the same path, on each host)
# A line of the host file is "node1:4" for MPICH, "node1 slots=4" for Open MPI.
# RINGMPI_VENV: the virtual environment, .venv by default. MPIRUN: a different launcher, with options:
#   MPIRUN="mpirun --bind-to core" jobs/run.sh 4 RUN.toml

set -euo pipefail
ranks=${1:?usage: jobs/run.sh RANKS RUN.toml [OPTION...]}
shift
venv=${RINGMPI_VENV:-.venv}
[ -x "$venv/bin/python" ] || { echo "no $venv: run make install, or set RINGMPI_VENV" >&2; exit 2; }
venv=$(cd "$venv" && pwd) # absolute, for the other hosts
if [ -n "${MPIRUN:-}" ]; then
  read -ra mpirun <<<"$MPIRUN"
elif [ -x "$venv/bin/mpirun" ]; then
  mpirun=("$venv/bin/mpirun")
else
  mpirun=(mpirun) # MPI=site: that of the loaded module
fi

exec "${mpirun[@]}" ${HOSTFILE:+-hostfile "$HOSTFILE"} -n "$ranks" "$venv/bin/python" -m ringmpi run "$@"
