"""The static embedding: a vector for each token of all-MiniLM-L6-v2, looked up and averaged. No model runs.

`minilm/` is built by scripts/build_embedding.py. A text's vector is the mean of its tokens' by how much each says; a
candidate is judged by the nearest of its tokens to each of the query's (MaxSim). Tokens that stand in the candidate's
context only count for less.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from accordion.core.memories import Candidate, Embedded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

SIGN: Final = b"mlm1"
"""What this embedding's vectors begin with."""

_CONTEXT_VECTOR = 0.5
_CONTEXT_TOKEN = 0.5
_MOST = 20_000
"""Characters of a text that are looked at."""
_MOST_TOKENS = 4_096


def packed(sign: bytes, vector: NDArray[Any]) -> bytes:
    """A vector as stores keep it: whose it is, and its numbers as int8, the greatest 127. Of zeros: empty."""
    import numpy  # noqa: PLC0415  # slow to import, and not wanted by all

    top = numpy.abs(vector).max()
    return sign + numpy.round(vector / top * 127).astype(numpy.int8).tobytes() if top else b""


class StaticEmbedder:
    """An Embedder that needs no network. Loads at first need, in a thread: 0.25 s, and some 60 MB with its libraries.

    `offload` runs a function in a thread. Raises what importing numpy and tokenizers raises where they are missing.
    """

    def __init__(self, offload: Callable[..., Any] = asyncio.to_thread) -> None:
        self._offload = offload

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedded]:
        """See the port."""
        found: list[Embedded] = await self._offload(_embed_all, tuple(texts))
        return found

    async def query(self, text: str) -> bytes:
        """See the port."""
        found: Embedded = (await self._offload(_embed_all, ((text, ""),)))[0]
        return found.vector

    async def relevance(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        """See the port."""
        scores: list[float] = await self._offload(_relevance, query, [candidate.tokens for candidate in candidates])
        return scores


def _embed_all(texts: Sequence[tuple[str, str]]) -> list[Embedded]:
    table = _table()
    return [table.embed(text, context) for text, context in texts]


def _relevance(query: str, tokens: Sequence[bytes]) -> list[float]:
    return _table().relevance(query, tokens)


@functools.lru_cache(maxsize=1)
def _table() -> Table:
    return Table()


class Table:
    """The tokens' vectors, and what is made of them. Safe to use from several threads."""

    def __init__(self) -> None:
        import numpy  # noqa: PLC0415  # slow to import, and not wanted by all
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers  # noqa: PLC0415

        self._numpy = numpy
        folder = files("accordion.models") / "minilm"
        names = (folder / "vocabulary.txt").read_text("utf-8").splitlines()
        with (folder / "vectors.npy").open("rb") as file:
            self._vectors: NDArray[Any] = numpy.load(file)
        with (folder / "weights.npy").open("rb") as file:
            self._weights: NDArray[Any] = numpy.load(file).astype(numpy.float32)
        self._norms: NDArray[Any] = numpy.linalg.norm(self._vectors.astype(numpy.float32), axis=1)
        vocabulary = {name: at for at, name in enumerate(names)}
        self._tokenizer: Tokenizer = Tokenizer(
            models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)  # noqa: S106
        )
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def embed(self, text: str, context: str) -> Embedded:
        """A text's vector and tokens. The context shifts the vector, and its tokens come behind the text's own."""
        numpy = self._numpy
        own, around = self._ids(text), self._ids(context)
        vector = packed(SIGN, self._mean(own) + _CONTEXT_VECTOR * self._mean(around))
        body = numpy.unique(own)[:_MOST_TOKENS]
        rest = numpy.setdiff1d(around, body)[:_MOST_TOKENS]
        tokens = numpy.concatenate(([len(body)], body, rest)).astype("<u2").tobytes()
        return Embedded(vector, tokens)

    def relevance(self, query: str, tokens: Sequence[bytes]) -> list[float]:
        """For each text, given as its tokens: the mean of how near its nearest token is to each of the query's, by the
        square of how much that says."""
        numpy = self._numpy
        asked = numpy.unique(self._ids(query))
        if not len(asked) or not tokens:
            return [0.0] * len(tokens)
        rows = [numpy.frombuffer(entry, "<u2") for entry in tokens]
        flat = numpy.concatenate([row[1:] for row in rows]).astype(numpy.intp)
        # Each text has its own tokens and its context's, and a place for nothing, which is as near as 0.
        bounds, starts = [], []
        at = 0
        for row in rows:
            own = int(row[0]) if len(row) else 0
            starts += [at, at + own]
            at += max(0, len(row) - 1)
            bounds.append((own > 0, max(0, len(row) - 1) > own))
        near = self._near(asked, flat)
        found = numpy.maximum.reduceat(near, starts, axis=1)
        there = numpy.array(bounds).reshape(-1)
        found = numpy.where(there, numpy.maximum(found, 0), 0)
        own_near, around_near = found[:, 0::2], found[:, 1::2]
        near_enough = own_near + _CONTEXT_TOKEN * numpy.maximum(around_near - own_near, 0)
        weights = self._weights[asked] ** 2
        scores = weights @ near_enough / weights.sum()
        return [float(score) for score in numpy.clip(scores, 0, 1)]

    def _near(self, asked: NDArray[Any], flat: NDArray[Any]) -> NDArray[Any]:
        """The cosine of each of `asked` to each of `flat`, and a last column of zeros. Each token is looked at once."""
        numpy = self._numpy
        marked = numpy.zeros(len(self._vectors), bool)
        marked[flat] = True
        different = numpy.flatnonzero(marked)
        places = numpy.zeros(len(self._vectors), numpy.intp)
        places[different] = numpy.arange(len(different))
        near = self._units(asked) @ self._units(different).T
        padded: NDArray[Any] = numpy.pad(near[:, places[flat]], ((0, 0), (0, 1)))
        return padded

    def _units(self, ids: NDArray[Any]) -> NDArray[Any]:
        vectors: NDArray[Any] = self._vectors[ids].astype(self._numpy.float32) / self._norms[ids, None]
        return vectors

    def _ids(self, text: str) -> NDArray[Any]:
        """The tokens of a text that say something, as rows of the table."""
        numpy = self._numpy
        found = self._tokenizer.encode(text[:_MOST], add_special_tokens=False).ids if text else []
        ids: NDArray[Any] = numpy.array(found, numpy.intp)
        telling: NDArray[Any] = ids[self._weights[ids] > 0]
        return telling

    def _mean(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The mean of tokens by how much each says, of length 1; zero where there are none."""
        numpy = self._numpy
        total = self._weights[ids] @ self._units(ids)
        length = float(numpy.linalg.norm(total))
        mean: NDArray[Any] = total / length if length > 1e-9 else total
        return mean
