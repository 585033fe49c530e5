"""Spack recipe (Spack 1.0 or newer), from this folder: docs/how-to/packages.md.

It takes the MPI that Spack knows of, for example an external one: `spack install py-ringmpi ^cray-mpich`.
"""

from spack.package import default_args, depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyRingmpi(PythonPackage):
    """Exact attention over long sequences, on a ring of MPI ranks."""

    license("Apache-2.0")

    version("0.1.0")  # built where it lies (spack develop), so there is nothing to fetch

    variant("plot", default=True, description="Draw what bench, plan and topology show")
    variant("analyze", default=True, description="Reports of runs")

    depends_on("cxx", type="build")  # of the native kernels
    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-click@8.1:")
        depends_on("py-h5py@3.11:")  # with MPI or without: every rank reads and writes by itself
        depends_on("py-ml-dtypes@0.5:")
        depends_on("py-mpi4py@4.1:")
        depends_on("py-numpy@2:")
        depends_on("py-pydantic@2.9:")
        depends_on("py-rich@13.7:")
        depends_on("py-threadpoolctl@3.5:")
        depends_on("py-tomli-w@1.1:")
        depends_on("py-matplotlib@3.8:", when="+plot")
        depends_on("py-matplotlib@3.8:", when="+analyze")
        depends_on("py-jinja2@3.1:", when="+analyze")
