"""One trip round the ring: what moves, what is computed with it, and where it lies. Start reading at ring_loop.py."""
