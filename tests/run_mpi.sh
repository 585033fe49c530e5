#!/bin/sh
# Run tests/mpi on real ranks, one mpirun for each number of ranks.
#   tests/run_mpi.sh "1 2 3" PYTHON LAUNCHER [ARGUMENT...]
# PYTEST_ARGS: more for pytest, for example PYTEST_ARGS="-k launch -x"
set -eu
counts=$1 python=$2
shift 2
cd "$(dirname "$0")/.."

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 # ranks share the cores
export PYTHONDONTWRITEBYTECODE=1 # and the folder
export HYPOTHESIS_PROFILE=ci # and must draw the same examples

# shellcheck disable=SC2086  # PYTEST_ARGS is meant to be split
for n in $counts; do
  printf 'tests/mpi on %s ranks\n' "$n"
  # The inner limit names the test that hangs, even inside MPI; the outer one ends everything.
  RANKS_ASKED=$n timeout -k 5 "${MPI_TEST_SECONDS:-300}" "$@" -n "$n" "$python" -m mpi4py -m pytest tests/mpi \
    -p pytest_mpi.plugin -p no:cacheprovider -m "parallel[$n]" -q --no-header --capture=sys \
    --timeout=60 --timeout-method=thread ${PYTEST_ARGS:-} || {
    status=$?
    printf 'tests/mpi on %s ranks: failed, exit status %s%s\n' "$n" "$status" \
      "$([ "$status" -ne 124 ] || echo ' (out of time)')" >&2
    exit "$status"
  }
done
