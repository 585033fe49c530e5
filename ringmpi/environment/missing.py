"""What is missing for what, in sentences with the command that helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Facts = dict[str, Any]
NEEDED_FOR = {
    "click": "the command line",
    "h5netcdf": "opening netCDF exports with xarray, if you want to",
    "h5py": "reading inputs and writing outputs",
    "jinja2": "ringmpi analyze, if you want reports",
    "matplotlib": "ringmpi analyze and --plot of plan, bench and topology, if you want pictures",
    "ml_dtypes": "bfloat16",
    "mpi4py": "ringmpi run",
    "numpy": "everything but this report",
    "pydantic": "reading RUN.toml",
    "rich": "tables",
    "threadpoolctl": "giving each rank its share of the cores",
    "tomli_w": "writing the configuration into the output",
    "xarray": "opening exports as labelled arrays, if you want to",
    "zarr": "inputs and exports that are Zarr stores, if you have any",
}


def of_import(error: ModuleNotFoundError, python: str) -> str | None:
    """What to do about a module that cannot be imported; None where it is none that ringmpi asks for."""
    name = (error.name or "").split(".")[0]
    if name not in NEEDED_FOR:
        return None
    return (
        f"{name} is not installed for {python}, which is needed for {NEEDED_FOR[name]}: start the Python that "
        f"ringmpi was installed for (after make install: .venv/bin/python), or pip install {name}"
    )


def sentences(report: Facts) -> list[str]:
    """What to do about what the report shows; empty if nothing."""
    return [
        *_of_packages(report["packages"]),
        *of_mpi(report["MPI"]),
        *of_launcher(report["MPI"], report["launcher"]),
        *_of_libraries(report),
        *_of_native_kernels(report["native kernels"]),
        *_of_threads(report),
        *_of_gpus(report),
    ]


def _of_packages(packages: Facts) -> Iterator[str]:
    for name, purpose in NEEDED_FOR.items():
        if packages.get(name) is None:
            yield f"{name} is not installed, which is needed for {purpose}: pip install {name}"


def of_mpi(mpi: Facts) -> Iterator[str]:
    """Why the MPI library cannot be used, if it cannot."""
    error = mpi.get("error", "")
    if "cannot load MPI library" in error or "libmpi" in error:
        yield (
            "mpi4py finds no MPI library, so that ringmpi run cannot start (the other commands need none): "
            "pip install 'mpich>=5', or load the library of your site (module avail mpi, module load ...)"
        )
    elif error and "No module named 'mpi4py'" not in error:
        yield f"mpi4py cannot be loaded ({error}), which ringmpi run needs: pip install --force-reinstall mpi4py"
    if "start" in mpi:
        yield (
            f"the MPI library is found, but does not start as a single process ({mpi['start']}); on some login nodes "
            f"it may not. Ask again in a job: srun -n 1 ringmpi info"
        )


def of_launcher(mpi: Facts, launcher: Facts) -> Iterator[str]:
    """Why ranks cannot be started, if they cannot."""
    if not launcher:
        yield (
            "no mpirun, mpiexec or srun is found, so that ringmpi run has one rank only: pip install 'mpich>=5', "
            "or module load the MPI of your site"
        )
        return
    library, starts = mpi.get("flavour"), _flavour(launcher["version"])
    if library and starts and (library == "Open MPI") != (starts == "Open MPI"):
        yield (
            f"{launcher['program']} belongs to {starts}, but mpi4py has loaded {library}: each rank would run alone. "
            f"Use the mpirun of {library}, or load the library of {starts}"
        )


def _flavour(text: str) -> str | None:
    """Whose launcher this is, by what it says of itself."""
    marks = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "HYDRA": "MPICH", "MPICH": "MPICH", "Intel": "Intel MPI"}
    return next((flavour for mark, flavour in marks.items() if mark in text), None)


def _of_libraries(report: Facts) -> Iterator[str]:
    for section, package in (("HDF5", "h5py"), ("NumPy", "numpy")):
        if report["packages"].get(package) is not None and "error" in report[section]:
            error = report[section]["error"]
            yield f"{package} cannot be loaded ({error}): pip install --force-reinstall {package}"


def _of_native_kernels(kernels: Facts) -> Iterator[str]:
    if "error" in kernels:
        yield f"{kernels['error']} It is about half as fast"


def _of_threads(report: Facts) -> Iterator[str]:
    """Linear algebra looks at the CPUs it sees, not at the CPU time that a cgroup grants."""
    cores, pools = report["cores"], report["NumPy"].get("BLAS", [])
    threads = max((pool["num_threads"] for pool in pools), default=0)
    quota = cores["CPU time allowed by cgroups"] or cores["CPUs allowed"]
    if threads > quota:
        count = max(1, int(quota))
        yield (
            f"linear algebra would use {threads} threads where {quota:g} CPUs are allowed: "
            f"export OMP_NUM_THREADS={count} (divided by the ranks on this node)"
        )


def _of_gpus(report: Facts) -> Iterator[str]:
    found, backends = report["GPU"]["devices"], report["ringmpi"]["backends"]
    if found and "cuda" not in backends:
        yield f"{len(found)} GPUs are here, and cannot be used: {report['GPU']['backend cuda']}"
