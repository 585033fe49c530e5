"""`ringmpi` with files that go wrong on one rank: python unwell.py HOW RANK ARGUMENT...

DENIED     the input may not be opened            BROKEN    its bytes cannot be read
FULL       no room for the shard file             LOCKED    a file system with locks that are refused
READONLY   nothing can be written                 REPLACED  another process replaces the input in mid-run
EDITED     another process writes into the input in mid-run
TOUCHED    another process touches the input in mid-run
"""

import errno
import os
import resource
import sys
from pathlib import Path

import h5py
from mpi4py import MPI

from ringmpi import cli
from ringmpi.job import writing
from ringmpi.storage import source

HOW, RANK = sys.argv[1], int(sys.argv[2])
sys.argv = ["ringmpi", *sys.argv[3:]]
UNWELL = MPI.COMM_WORLD.rank == RANK
open_file, read_bits, write_shard = h5py.File, source.read_bits, writing.write_shard


class File(open_file):
    def __init__(self, name, mode="r", **options):
        if mode == "r" and HOW in ("DENIED", "LOCKED"):
            denied = HOW == "DENIED"
            code, text = (errno.EACCES, "Permission denied") if denied else (errno.EAGAIN, "unable to lock file")
            raise OSError(code, f"Unable to synchronously open file ({text})")
        super().__init__(name, mode, **options)


def create(name, *arguments, **options):
    raise OSError(errno.EROFS, "Unable to synchronously create file (Read-only file system)")


def broken(dataset, start, count, bits):
    raise OSError("Can't synchronously read data (file read failed: errno = 5, error message = 'Input/output error')")


def full(*arguments, **options):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    write_shard(*arguments, **options)


def meddling(*arguments, **options):
    path = Path("in.h5")
    if HOW == "REPLACED":
        with open_file(path) as old, open_file("new.h5", "w") as new:
            for name in old:
                new[name] = old[name][...] + (name == "k")
        Path("new.h5").replace(path)
    if HOW == "EDITED":
        with open_file(path) as file:
            place = file["k"].id.get_offset()
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"1234")
    os.utime(path)
    write_shard(*arguments, **options)


if UNWELL:
    h5py.File = File
    h5py.h5f.create = create if HOW == "READONLY" else h5py.h5f.create
    source.read_bits = broken if HOW == "BROKEN" else read_bits
    writing.write_shard = {"FULL": full, "REPLACED": meddling, "EDITED": meddling, "TOUCHED": meddling}.get(
        HOW, write_shard
    )
cli.main()
