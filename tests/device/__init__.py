"""For the day a GPU is at hand: `python -m tests.device` (README of the tier: docs/cuda-kernels.md)."""
