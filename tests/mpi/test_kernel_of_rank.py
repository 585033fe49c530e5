"""Whatever is computed on a ring: each rank asks for a kernel with its cores, on the GPU that is dealt to it."""

import numpy as np
import pytest
from mpi4py import MPI

import ringmpi.ring
from ringmpi import Ring, Sharding, ring_attention, ring_attention_backward, ring_attention_map


@pytest.mark.parallel([1, 2, 3])
def test_every_function_of_a_ring_says_which_rank_of_its_node_asks(monkeypatch):
    asked, get_backend = [], ringmpi.ring.get_backend

    def recorded(name, *, threads, local_rank, **options):
        asked.append((threads, local_rank))
        return get_backend(name, threads=threads, **options)

    with Ring(MPI.COMM_WORLD, timeout=30) as ring:
        monkeypatch.setattr("ringmpi.ring.get_backend", recorded)
        sharding = Sharding.zigzag(24, ring.size)
        q = sharding.take(np.random.default_rng(1).standard_normal((2, 24, 8)), ring)
        where = {"ring": ring, "sharding": sharding, "backend": "numpy"}
        out = ring_attention(q, q, q, **where)
        ring_attention_backward(q, q, q, q, out, **where)
        ring_attention_map(q, q, out.log_sum_exp, block=8, **where)
        assert asked == 3 * [(ring.threads, ring.local_rank)]
        node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)  # its ranks need not be in the launcher's order
        assert sorted(node.allgather(ring.local_rank)) == list(range(node.size))
