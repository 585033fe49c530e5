"""What HDF5 h5py brings: a program of its own, `python -m ringmpi.storage.about_hdf5`.

An h5py that is built with MPI loads MPI when it is imported, so whoever is curious asks a child process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

FILTERS = {"gzip": 1, "szip": 4, "lzf": 32000}


def build() -> dict[str, Any]:
    """Versions of h5py and HDF5, whether it is built with MPI, its filters; "error" if it cannot be loaded."""
    try:
        import h5py
    except Exception as error:  # ImportError, or what a broken library brings
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    return {
        "h5py": h5py.version.version,
        "HDF5": h5py.version.hdf5_version,
        "built with MPI": bool(h5py.get_config().mpi),
        "filters": [name for name, code in FILTERS.items() if h5py.h5z.filter_avail(code)],
    }


if __name__ == "__main__":
    json.dump(build(), sys.stdout)
