#!/bin/sh
# The tests of tests/lab: a cluster of network namespaces, a real Slurm on it. Root and Linux.
#   tests/lab/run.sh PYTHON [ARGUMENT of pytest...]
#   tests/lab/run.sh install                          only what they need
# As root on Debian and its kin it installs what is missing. Without root it says so and is content, but not in CI.
set -eu
python=$1
shift
cd "$(dirname "$0")/../.."

if [ "$(id -u)" -ne 0 ]; then
  echo "test-lab: not run: needs root, for network namespaces and Slurm's daemons: sudo make test-lab" >&2
  [ -z "${CI:-}" ]
  exit
fi

PATH=$PATH:/usr/sbin
needed="ip:iproute2 tc:iproute2 setpriv:util-linux munged:munge slurmctld:slurm-wlm slurmd:slurm-wlm ibsim:ibsim-utils \
  opensm:opensm ibnetdiscover:infiniband-diags smpirun:libsimgrid-dev chromium:chromium"
missing=
for pair in $needed; do # a command and the package that has it
  command -v "${pair%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ] && command -v apt-get >/dev/null; then
  # shellcheck disable=SC2086  # a list of packages
  if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >/tmp/test-lab-apt.log 2>&1; then
    tail -n 5 /tmp/test-lab-apt.log >&2
    echo "test-lab: cannot install$missing" >&2
    exit 1
  fi
fi

[ "$python" != install ] || exit 0
# The limits of the tests are for what they do: their first step may be to wait for another run of these tests to end.
lab() { "$python" -m pytest -q --lab -o timeout_func_only=true -o cache_dir=build/lab-cache tests/lab "$@"; }

# Shaped links share this machine's cores with whatever else it does: what misses its time gets one more chance, aloud.
lab "$@" && exit
[ $? -eq 1 ] || exit 1
echo "test-lab: what has failed is run once more" >&2
lab --last-failed --last-failed-no-failures none "$@"
