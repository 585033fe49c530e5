"""Which benchmarks docs/measured.py runs, and what a reader is told of each."""

from __future__ import annotations

from typing import NamedTuple


class Benchmark(NamedTuple):
    """The words after `ringmpi bench`; what stands above its table, below a title where a new part begins."""

    command: str
    about: str
    title: str = ""


BENCHMARKS = {
    "kernel": Benchmark(
        "kernel --shapes 8x4096x64,4x8192x128,8/2x4096x64 --threads 1,2 --contenders native,torch",
        "Forward attention, beside PyTorch and beside what the processor can do.",
        "One process",
    ),
    "kernel-peers": Benchmark("kernel --shapes 8x4096x64", "Beside every peer that is installed:"),
    "kernel-long": Benchmark(
        "kernel --shapes 1x32768x64 --mask causal --contenders native,torch", "A longer sequence, of one head:"
    ),
    "kernel-backward": Benchmark(
        "kernel --shapes 8x4096x64,2x4096x128 --threads 1,2 --backward --contenders native,torch",
        "Forward and backward:",
    ),
    "kernel-masks": Benchmark(
        "kernel --shapes 8x16384x64 --mask causal,window:511,documents:64 --contenders native",
        "Time follows the pairs that the mask allows: GF/s should stay as they are. They do for long rows. Where a row "
        "sees few keys (documents of 256 positions, a window of 512), reading its query and writing its output weigh "
        "as much.",
    ),
    "kernel-storage": Benchmark(
        "kernel --shapes 8x4096x64 --dtype bfloat16 --backward --contenders native,torch",
        "16 bits are for storage and transport; products and sums are float32, so the time is that of float32.",
    ),
    "hop": Benchmark(
        "hop",
        "Messages between two ranks, alone and beside a kernel; [tuning](tuning.md) says what to do where polling "
        "hides nothing.",
        "Hops",
    ),
    "ring": Benchmark("ring --shapes 8x8192x64 --ranks 1,2 --peer torch", "Beside PyTorch on as many cores:", "Rings"),
    "ring-threads": Benchmark(
        "ring --shapes 8x8192x64 --ranks 2 --peer native --no-plan",
        "Two ranks beside two threads of ringmpi in one process: what messages and agreements cost.",
    ),
    "ring-grouped": Benchmark(
        "ring --shapes 8x4096x64,9/3x4096x64 --mask causal --peer torch",
        "Backward over forward, in time and in bytes, beside the same ratio of the peer. On two cores four ranks share "
        "them, so their efficiency cannot exceed one half:",
    ),
    "ring-weak": Benchmark("ring --shapes 8x2048x64 --scaling weak --forward", "Twice the ranks, twice the length:"),
    "io": Benchmark(
        "io",
        "`checkpoint` is what each rank does when a run saves its state, `check` what a resumed run does first.",
        "Files",
    ),
    "exactness": Benchmark("exactness", ""),
}
