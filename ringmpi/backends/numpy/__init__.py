"""Block attention with NumPy and its BLAS: no compiler, no GPU needed."""
