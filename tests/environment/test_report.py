"""The whole report: what is in it, what must never be, and what it says where something is missing."""

import json
import os
import stat
import sys

import pytest

from ringmpi.environment import libraries, missing, settings
from ringmpi.environment.child import Answer
from ringmpi.environment.report import anonymous, environment_report
from tests.backends.natives import ISAS


@pytest.fixture(scope="module")
def report():
    return environment_report()


def sentences(report, **changes):
    """What is said of the report with some sections changed."""
    return missing.sentences(report | changes)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a shell script first on the PATH."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return path

    return write


def test_every_section_is_there_and_it_is_json(report):
    assert list(report) == [
        "ringmpi", "system", "cores", "memory", "packages", "NumPy", "native kernels", "MPI", "launcher", "HDF5", "GPU",
        "Slurm", "variables", "missing",
    ]  # fmt: skip
    json.dumps(report, allow_nan=False)


def test_libraries_are_those_of_this_python(report):
    import h5py
    import numpy

    assert report["NumPy"]["NumPy"] == report["packages"]["numpy"] == numpy.__version__
    assert report["HDF5"]["HDF5"] == h5py.version.hdf5_version
    assert report["HDF5"]["built with MPI"] is h5py.get_config().mpi
    assert report["ringmpi"]["backends"] == ["numpy", *["native"] * bool(ISAS)]
    assert report["native kernels"].get("instruction sets", []) == list(ISAS)
    assert all(pool["num_threads"] >= 1 for pool in report["NumPy"]["BLAS"])


def test_mpi_is_described_or_its_lack_is(report):
    if "error" in report["MPI"]:
        assert any("mpi4py" in sentence for sentence in report["missing"])
    else:
        assert report["MPI"]["flavour"] in report["MPI"]["library"]
        assert report["MPI"]["thread level"] in {"SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"}


def test_a_missing_mpi_library_is_told_with_what_to_do(report, monkeypatch):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    mpi = libraries.mpi()
    assert "cannot load MPI library" in mpi["error"]
    (sentence,) = [text for text in sentences(report, MPI=mpi) if "MPI library" in text]
    assert "pip install 'mpich>=5'" in sentence
    assert "module load" in sentence


def test_a_library_that_does_not_start_is_described_all_the_same(report, monkeypatch):
    found = Answer(
        '{"flavour": "MPICH", "library": "MPICH Version: 4"}\nchatter of the library\n', "no answer for 20 s"
    )
    monkeypatch.setattr(libraries, "ask_python", lambda module: found)
    mpi = libraries.mpi()
    assert mpi == {"flavour": "MPICH", "library": "MPICH Version: 4", "start": "no answer for 20 s"}
    assert any("does not start as a single process (no answer for 20 s)" in text for text in sentences(report, MPI=mpi))


def test_a_child_that_says_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(libraries, "ask_python", lambda module: Answer("", "killed by SIGSEGV"))
    assert libraries.mpi() == {"error": "killed by SIGSEGV"}
    assert libraries.hdf5() == {"error": "killed by SIGSEGV"}


@pytest.mark.parametrize("name", sorted(missing.NEEDED_FOR))
def test_a_package_that_is_not_installed_is_told_with_its_purpose(report, name):
    told = sentences(report, packages=report["packages"] | {name: None})
    assert f"{name} is not installed, which is needed for {missing.NEEDED_FOR[name]}: pip install {name}" in told


@pytest.mark.parametrize(
    ("library", "version", "told"),
    [
        ("MPICH", "mpirun (Open MPI) 5.0.8", True),
        ("Open MPI", "HYDRA build details: Version: 5.0.2", True),
        ("Open MPI", "mpirun (Open MPI) 5.0.8", False),
        ("MPICH", "HYDRA build details: Version: 5.0.2", False),
        ("MPICH", "Intel(R) MPI Library for Linux* OS", False),
        ("MPICH", "slurm 24.05.1", False),
    ],
)
def test_a_launcher_of_another_library_is_told(report, library, version, told):
    changed = {"MPI": {"flavour": library}, "launcher": {"program": "/x/mpirun", "version": version}}
    assert any("each rank would run alone" in text for text in sentences(report, **changed)) is told


def test_no_launcher_is_told(report):
    assert any("no mpirun, mpiexec or srun is found" in text for text in sentences(report, launcher={}))


def test_native_kernels_that_are_not_built_are_told(report):
    built = sentences(report, **{"native kernels": {"instruction sets": ["portable"]}})
    not_built = sentences(report, **{"native kernels": {"error": "the native kernels are not built. Install g++."}})
    assert [text for text in not_built if text not in built] == [
        "the native kernels are not built. Install g++. It is about half as fast"
    ]


def test_more_threads_than_cpu_time_is_told(report):
    cores = report["cores"] | {"CPU time allowed by cgroups": 2.5, "CPUs allowed": 64}
    numpy = {"NumPy": "2", "BLAS": [{"num_threads": 64}]}
    (sentence,) = [text for text in sentences(report, cores=cores, NumPy=numpy) if "threads" in text]
    assert "64 threads where 2.5 CPUs are allowed: export OMP_NUM_THREADS=2" in sentence
    numpy["BLAS"][0]["num_threads"] = 2
    assert not any("threads" in text for text in sentences(report, cores=cores, NumPy=numpy))


def test_gpus_are_listed_by_the_driver(report, program):
    program("nvidia-smi", 'echo "NVIDIA H100 80GB HBM3, 81559 MiB, 570.86.10, 9.0"')
    gpus = libraries.gpus()
    assert gpus["devices"] == ["NVIDIA H100 80GB HBM3, 81559 MiB, 570.86.10, 9.0"]
    assert "cupy" not in sys.modules
    assert any(
        '1 GPUs are here, and cannot be used: backend "cuda" needs CuPy' in text for text in sentences(report, GPU=gpus)
    )


def test_a_driver_that_fails_is_no_device(program):
    program("nvidia-smi", "echo 'Failed to initialize NVML' >&2; exit 9")
    gpus = libraries.gpus()
    assert gpus["devices"] == []
    assert gpus["nvidia-smi"] == "exit code 9: Failed to initialize NVML"


def test_cupy_is_asked_in_a_child(monkeypatch):
    monkeypatch.setattr(libraries, "installed", lambda name: "13.4.0" if name == "cupy-cuda12x" else None)
    gpus = libraries.gpus()
    assert gpus["CuPy"] == {"cupy-cuda12x": "13.4.0"}
    assert "No module named 'cupy'" in gpus["CuPy error"]
    assert gpus["backend cuda"].startswith('backend "cuda" needs CuPy')


def test_a_gpu_that_can_be_used_is_a_backend():
    assert libraries.backends({"backend cuda": libraries.USABLE})[-1] == "cuda"
    assert "cuda" not in libraries.backends({"backend cuda": "no driver"})


def test_the_launcher_beside_this_python_comes_first(program, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    beside = program("mpirun", "echo 'mpirun (Open MPI) 4.1'; echo; echo 'Report bugs'")
    assert libraries.launcher() == {"program": str(beside), "version": "mpirun (Open MPI) 4.1 Report bugs"}
    (tmp_path / "bin").mkdir()
    beside.rename(tmp_path / "bin" / "mpirun")
    program("mpirun", "echo other")
    assert libraries.launcher()["program"] == str(tmp_path / "bin" / "mpirun")


def test_slurm_variables_are_told_by_a_list_of_names():
    environment = {
        "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_USER": "ada", "SLURM_JOB_ACCOUNT": "secret-project",
        "SLURM_SUBMIT_DIR": "/home/ada/x", "SLURM_JWT": "token", "SLURM_JOB_NODELIST": "n[1-2]", "AWS_SECRET": "x",
        "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    assert settings.slurm(environment) == {"SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "4"}
    assert settings.variables(environment) == {"OMP_NUM_THREADS": "4"}


def test_no_listed_name_can_hold_a_user_a_token_or_a_path():
    for name in settings.SLURM + settings.THREADS + settings.OTHERS:
        assert not any(word in name for word in ("USER", "DIR", "JWT", "TOKEN", "ACCOUNT", "NODELIST", "PATH", "NAME"))


def test_homes_and_user_names_in_paths_are_hidden():
    environment = {"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada"}
    told = {
        "a": "/home/ada/env/bin/mpirun", "b": ["/scratch/ada/x.so: cannot open", "/home/adam/x"], "c": 3, "d": None,
        "e": "ada is a word", "f": "cannot load /home/ada: no",
    }  # fmt: skip
    assert anonymous(told, environment) == {
        "a": "~/env/bin/mpirun", "b": ["/scratch/USER/x.so: cannot open", "/home/adam/x"], "c": 3, "d": None,
        "e": "ada is a word", "f": "cannot load ~: no",
    }  # fmt: skip


def test_the_root_directory_is_nobodys_home():
    assert anonymous("/usr/lib", {"HOME": "/", "USER": ""}) == "/usr/lib"


def test_a_report_with_broken_numpy_still_comes(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    report = environment_report()
    assert "error" in report["NumPy"]
    assert any("numpy cannot be loaded" in text for text in report["missing"])


def test_the_report_is_without_the_home_of_its_user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(libraries, "launcher", lambda: {"program": "/home/ada/x/mpirun", "version": "Open MPI"})
    assert environment_report()["launcher"]["program"] == "~/x/mpirun"
