"""A two-layer transformer learns a text whose positions are spread over MPI ranks. The curve of 1 rank is that of 4.

    mpirun -n 4 python docs/examples/ring_transformer.py --length 2048 --steps 40

Everything except attention is local: embedding, norms, feed-forward and loss look at one position at a time. So each
rank runs the model on its own shard, ring attention brings the shards together in both passes, and two sums over ranks
are left: that of the losses, and that of the gradients of the parameters, which every rank holds.

The text is the tokens of a real tokenizer over the first verses of the King James Bible (data/README.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn import functional

from ringmpi import Mask, Ring, Sharding
from ringmpi.torch import ring_attention

TOKENS = Path(__file__).parents[2] / "data/smollm2_kjv_2048.h5"
LAYERS, WIDTH, HEADS, KEY_HEADS = 2, 48, 4, 2
LEARNING_RATE, MOMENTUM = 0.2, 0.9
NO_TARGET = -1  # nothing follows the last token

Attend = Callable[..., Tensor]  # (q, k, v, sink_logits=...) -> output


class Block(nn.Module):
    """Attention with grouped heads and learned sinks, then a feed-forward layer, each beside a residual path."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        dim = WIDTH // HEADS
        self.split = [HEADS * dim, KEY_HEADS * dim, KEY_HEADS * dim]
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, sum(self.split), bias=False)
        self.sink_logits = nn.Parameter(torch.zeros(HEADS))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[positions, WIDTH] to the same; the attention takes [heads, positions, dim]."""
        parts = self.qkv(self.norms[0](x)).split(self.split, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(0, 1) for part in parts)
        attended = self.attend(q, k, v, sink_logits=self.sink_logits)
        x = x + self.out(attended.transpose(0, 1).flatten(1))
        return x + self.feed_forward(self.norms[1](x))


class Transformer(nn.Module):
    """Tokens in, logits of the next token out, for any subset of the positions of a text."""

    def __init__(self, vocabulary: int, length: int, attend: Attend) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Embedding(length, WIDTH)
        self.blocks = nn.Sequential(*(Block(attend) for _ in range(LAYERS)))
        self.logits = nn.Sequential(nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, vocabulary, bias=False))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[positions], both global numbers, to [positions, vocabulary]."""
        return self.logits(self.blocks(self.token(tokens) + self.place(positions)))


def read_text(length: int) -> tuple[Tensor, int]:
    """The first tokens of the text, numbered from 0 without gaps, and how many different ones there are."""
    with h5py.File(TOKENS) as file:
        kinds, text = np.unique(file["tokens"][:length], return_inverse=True)
    return torch.from_numpy(text), len(kinds)


def train(
    comm: MPI.Intracomm, *, length: int, steps: int, dtype: torch.dtype = torch.float64, attend: Attend | None = None
) -> Iterator[float]:
    """Yield the loss before each step: nats a token, over the whole text, equal on all ranks. Collective.

    `attend` stands in for ring attention where the whole text is on one rank.
    """
    ring = Ring(comm, timeout=60)
    sharding = Sharding.zigzag(length, ring.size)
    attend = attend or partial(ring_attention, ring=ring, sharding=sharding, mask=Mask.causal())
    text, vocabulary = read_text(length)
    positions = torch.from_numpy(sharding.positions(ring.rank))  # what this rank holds; all else follows from it
    targets = torch.cat([text[1:], torch.tensor([NO_TARGET])])[positions]

    torch.manual_seed(0)  # all ranks begin with the same parameters
    model = Transformer(vocabulary, length, attend).to(dtype)
    # Not Adam: it does not see the scale of a gradient, so one that is counted once a rank would not show.
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(text[positions], positions)
        # Divided by what all ranks hold, not by what this one holds: shards may differ in length.
        loss = functional.cross_entropy(logits, targets, ignore_index=NO_TARGET, reduction="sum") / (length - 1)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = sum_over_ranks(comm, parameter.grad)
        optimizer.step()
        yield sum_over_ranks(comm, loss.detach()).item()


def sum_over_ranks(comm: MPI.Intracomm, mine: Tensor) -> Tensor:
    """The sum in the order of ranks, so with the same bits on all of them: parameters must not drift apart."""
    everyone = np.empty((comm.size, *mine.shape), mine.numpy().dtype)
    comm.Allgather(np.ascontiguousarray(mine.numpy()), everyone)
    return torch.from_numpy(np.asarray(everyone.sum(axis=0)))


def main() -> None:
    """Train as the command line says; rank 0 writes the curve."""
    parser = argparse.ArgumentParser(description="train a small transformer, its sequence spread over MPI ranks")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the text, at most 2048")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    curve = train(comm, length=options.length, steps=options.steps, dtype=getattr(torch, options.dtype))
    for step, loss in enumerate(curve):
        if comm.rank == 0:
            sys.stdout.write(f"step {step:3d}  loss {loss:.15f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
