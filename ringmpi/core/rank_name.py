"""What a rank is called in messages, tables and pictures."""

from __future__ import annotations


def rank_name(rank: int, launch_rank: int, node: str) -> str:
    """With its node, and with its launch rank where that is another: "rank 1 (launch rank 3, node b)"."""
    return f"rank {rank} ({f'launch rank {launch_rank}, ' if launch_rank != rank else ''}node {node})"
