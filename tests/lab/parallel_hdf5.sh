#!/bin/sh
# Tests of the output that all ranks write together: needs an h5py that is built with MPI, which PyPI does not have.
# Builds one (about 3 minutes of CPU) into .venv-hdf5 with Debian's parallel HDF5 and the Open MPI wheel; once.
#
#   tests/lab/parallel_hdf5.sh install    only build it
#   tests/lab/parallel_hdf5.sh            as root, on Debian or Ubuntu; RANKS="2 3" for other counts of ranks
set -eu
cd "$(dirname "$0")/../.."
VENV=.venv-hdf5
PY=$VENV/bin/python

install() {
    if ! pkg-config --exists hdf5-openmpi 2>/dev/null || ! command -v mpicc.openmpi >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q pkg-config libhdf5-openmpi-dev
    fi
    "${PYTHON:-python3}" -m venv "$VENV"
    # What ringmpi needs, but not ringmpi: a second installation would build the native kernels over those in use.
    "$PY" -c 'if True:
        import tomllib
        project = tomllib.load(open("pyproject.toml", "rb"))["project"]
        extras = project["optional-dependencies"]
        print(*project["dependencies"], *extras["test"], *extras["openmpi"], sep="\n")' >"$VENV/requirements.txt"
    "$PY" -m pip install --quiet --disable-pip-version-check -r "$VENV/requirements.txt" \
        'setuptools>=77' pkgconfig 'cython>=3.1,<4'
    CFLAGS='-O1 -g0' HDF5_MPI=ON CC=mpicc.openmpi HDF5_PKGCONFIG_NAME=hdf5-openmpi \
        "$PY" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps \
        --no-binary=h5py --force-reinstall h5py
    touch "$VENV/.installed"
}

[ -e "$VENV/.installed" ] || install
[ "${1:-}" != install ] || exit 0

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm
export OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:OVERSUBSCRIBE
"$PY" -c 'import h5py; assert h5py.get_config().mpi, "h5py in .venv-hdf5 has no MPI: remove the directory and try again"'
PYTEST_ARGS="-k parallel_output" tests/run_mpi.sh "${RANKS:-1 2 3 5}" "$PY" "$VENV/bin/mpirun"
timeout 300 "$PY" -m pytest -q -p no:cacheprovider tests/launched/test_parallel_output.py
