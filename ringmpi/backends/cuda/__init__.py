"""Block attention in CUDA C++; kernels/forward.cuh is the kernel, attend.py the way in."""
