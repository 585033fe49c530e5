"""All options of RUN.toml, table by table: type, unit, default, check. Relative paths: from the working directory."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from ringmpi.config.checks import Count, Finite, FromArray, Name, Options, PositiveNumber, needs
from ringmpi.config.masks import MaskSpec
from ringmpi.config.record_options import RecordOptions
from ringmpi.core.whole_numbers import LARGEST_POSITION

SinkLogit: TypeAlias = Annotated[float, Field(lt=float("inf"))]
Dataset: TypeAlias = Annotated[
    Name,
    needs(
        "the name of a dataset [heads, length, head_dim] or [batch, heads, length, head_dim] of the input file",
        'write for example "layer12/q"',
    ),
]


class InputOptions(Options):
    """[input]: where queries, keys and values are.

    file is an HDF5 file, an .npz file of numpy.savez, a Zarr store (extra "zarr"), or a directory of .npy files, in
    which query = "q.npy" names one.
    """

    file: Annotated[
        Name,
        needs(
            "the path of an HDF5 file, an .npz file, a Zarr store or a directory of .npy files",
            "name what holds query, key and value",
        ),
    ]
    query: Dataset
    key: Dataset
    value: Dataset


class AttentionOptions(Options):
    """[attention]: who sees whom, and from q . k to a score (core/scoring.py)."""

    mask: MaskSpec = "full"
    # Score units. None: 1 / sqrt(head_dim).
    scale: Annotated[
        PositiveNumber | None, needs("a finite number > 0", "leave it out for the default 1 / sqrt(head_dim)")
    ] = None
    # Score units: cap(s) = softcap * tanh(s / softcap). None: no cap.
    softcap: Annotated[PositiveNumber | None, needs("a finite number > 0", "leave it out for no cap")] = None
    # Score units, one per query head; -inf: this head has no sink. A dataset's name, or the numbers.
    sink_logits: Annotated[
        Name | Annotated[tuple[SinkLogit, ...], FromArray, Field(min_length=1)] | None,
        needs(
            "a list of numbers < inf, one per query head, or the name of a dataset of them",
            "leave it out for no sinks; -inf is a head without one",
        ),
    ] = None
    # Score units per position, one slope per query head. A dataset's name, or the numbers.
    alibi: Annotated[
        Name | Annotated[tuple[Finite, ...], FromArray, Field(min_length=1)] | None,
        needs(
            "a list of finite slopes, one per query head, or the name of a dataset of them",
            "leave it out for no ALiBi",
        ),
    ] = None
    # Chance that a pair is dropped, by a function of seed, head and positions.
    dropout: Annotated[float, Field(ge=0, lt=1), needs("a number from 0 to below 1", "leave it out for none")] = 0.0
    seed: Annotated[
        int,
        Field(ge=0, lt=1 << 64),
        needs("a whole number from 0 to 2^64 - 1", "leave it out for 0; only dropout uses it"),
    ] = 0


class RingOptions(Options):
    """[ring]: who owns which positions, and how keys and values travel."""

    # auto: balanced where the mask allows less than a quarter of all pairs (windows, documents), else zigzag.
    sharding: Annotated[
        Literal["auto", "contiguous", "zigzag", "striped", "balanced"],
        needs('"auto", "contiguous", "zigzag", "striped" or "balanced"', "leave it out for auto"),
    ] = "auto"
    # auto: ring; with reproducible, broadcast.
    schedule: Annotated[
        Literal["auto", "ring", "bidirectional", "all-gather", "broadcast"],
        needs('"auto", "ring", "bidirectional", "all-gather" or "broadcast"', "leave it out for auto"),
    ] = "auto"
    # The same bits on any number of ranks, for any sharding, at some cost (docs/numerics.md).
    reproducible: Annotated[bool, needs("true or false", "leave it out for false")] = False
    # Positions: shards are cut at multiples of it. None: 512 where reproducible, else 1.
    block: Annotated[
        int | None,
        Field(ge=1, le=LARGEST_POSITION),
        needs("a whole number of positions >= 1", "leave it out for 1, or for 512 where reproducible"),
    ] = None
    # launcher: in the order in which mpirun or srun numbered the ranks. auto: the best ring by what Slurm and
    # names of hosts tell, else that order. measure: by rates between hosts. Files: by what they say (docs/topology.md).
    placement: Annotated[
        Name | Annotated[tuple[Name, ...], FromArray, Field(min_length=1)],
        needs(
            '"auto", "launcher", "measure", or the path of a file that describes the network, or a list of paths',
            "leave it out for auto",
        ),
    ] = "auto"


class BackendOptions(Options):
    """[backend]: what computes a block; see [how far "cuda" is tested](how-to/gpu.md)."""

    name: Annotated[
        Literal["auto", "cuda", "native", "numpy"],
        needs('"auto", "cuda", "native" or "numpy"', "leave it out for auto"),
    ] = "auto"


class BackwardOptions(Options):
    """[backward]: gradients too, of the sum of grad_output x output. Without this table there are none."""

    grad_output: Annotated[
        Name,
        needs(
            "the name of a dataset of the input file with the shape of the output and the dtype of query",
            "it is the gradient of a scalar with respect to the output",
        ),
    ]
    # Score units: where the scalar depends on log_sum_exp too.
    grad_log_sum_exp: Annotated[
        Name | None,
        needs(
            "the name of a dataset of the input file with the shape and dtype of log_sum_exp",
            "leave it out where the scalar does not depend on log_sum_exp",
        ),
    ] = None
    # keys: keys and values visit the queries, as in the forward pass. queries: they visit the keys.
    travel: Annotated[
        Literal["auto", "keys", "queries"],
        needs('"auto", "keys" or "queries"', "leave it out for auto: the one that moves fewer bytes"),
    ] = "auto"


class OutputOptions(Options):
    """[output]: what the run leaves behind."""

    file: Annotated[Name, needs("the path of the HDF5 file to write", "name a file that the input file is not")]
    # merged: one file. virtual: a file that shows the shard files of the ranks, which stay beside it, as one array.
    layout: Annotated[Literal["merged", "virtual"], needs('"merged" or "virtual"', "leave it out for merged")] = (
        "merged"
    )
    # serial: each rank writes a file, rank 0 merges them. parallel: all ranks write one file, with an h5py of MPI.
    writer: Annotated[Literal["serial", "parallel"], needs('"serial" or "parallel"', "leave it out for serial")] = (
        "serial"
    )
    # Rows that the run recomputes at its end, in wider precision. 0: none.
    verify_rows: Annotated[Count, needs("a whole number of rows >= 0", "leave it out for 0, no recomputation")] = 0


class CheckpointOptions(Options):
    """[checkpoint]: keep the state of the run, so that it can go on after a stop. Without this table none is kept."""

    directory: Annotated[
        Name, needs("the path of a directory that all ranks see", 'write for example directory = "checkpoints"')
    ]
    # Seconds from the end of one save to the beginning of the next.
    every_seconds: Annotated[
        PositiveNumber, needs("a finite number of seconds > 0", "leave it out for 600; plan advises")
    ] = 600.0


class RunConfig(Options):
    """One run, fully described."""

    input: InputOptions
    attention: AttentionOptions = AttentionOptions()
    ring: RingOptions = RingOptions()
    backend: BackendOptions = BackendOptions()
    backward: BackwardOptions | None = None
    record: RecordOptions | None = None
    output: OutputOptions
    checkpoint: CheckpointOptions | None = None
