"""Builds the native kernels where there is a C++ compiler; without one the install succeeds and NumPy is used.

All else about the package stands in pyproject.toml. One source, several shared libraries: one for each instruction set
(ringmpi/backends/native/shared_library.py chooses at run time). They know nothing of Python's headers.
"""

import copy
import platform
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

FOLDER = Path("ringmpi/backends/native")
COMMON = "-std=c++17 -O3 -g0 -fvisibility=hidden -pthread -Wno-psabi"
ARITHMETIC = (
    "-fno-math-errno -fno-trapping-math -ffp-contract=fast"  # NaN, inf and the order of sums stay what they are
)
INSTRUCTION_SETS = {"portable": (16, "")}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS |= {
        "avx2": (32, "-mavx2 -mfma"),
        "avx512": (64, "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma -mprefer-vector-width=512"),
    }


class BuildAnew(build):
    """Builds from nothing: an earlier build may have left modules that were removed, and kernels of old sources."""

    def run(self):
        """Empty the folder that is packed first, unless it is one that the user has named."""
        if Path(self.build_lib).is_relative_to(self.build_base):
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildEach(build_ext):
    """Compiles the same sources once for each library: so each has a folder of its own for its objects.

    A checkout keeps its libraries: another environment, or a change of pyproject.toml, does not build them again.
    """

    def build_extension(self, ext):
        """Build one library in its folder, where there is none that is younger than all that it is made of."""
        kept = Path(self.get_ext_filename(ext.name))
        changed = max(Path(path).stat().st_mtime for path in [*ext.sources, *ext.depends, "setup.py"])
        if self.editable_mode and kept.exists() and kept.stat().st_mtime > changed:
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept, target)
            return
        apart = copy.copy(self)
        apart.build_temp = str(Path(self.build_temp) / ext.name)
        build_ext.build_extension(apart, ext)


def library(name, vector_bytes, flags):
    """The library for one instruction set; one that cannot be built is left out, with a warning."""
    return Extension(
        f"ringmpi.backends.native._native_{name}",
        [str(path) for path in sorted(FOLDER.glob("*.cpp"))],
        depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
        define_macros=[("RINGMPI_VECTOR_BYTES", str(vector_bytes))],
        extra_compile_args=[*COMMON.split(), *ARITHMETIC.split(), *flags.split()],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


setup(
    cmdclass={"build": BuildAnew, "build_ext": BuildEach},
    ext_modules=[library(name, *how) for name, how in INSTRUCTION_SETS.items()],
    options={"build_ext": {"parallel": len(INSTRUCTION_SETS)}},
)
