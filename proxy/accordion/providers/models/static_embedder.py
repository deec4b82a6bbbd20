"""The static embedding: looks up the vectors of all-MiniLM-L6-v2's tokens and averages them. No model runs.

scripts/build_embedding.py builds `minilm/`. A text's vector is the weighted mean of its tokens' vectors. The relevance
of a candidate is computed from its nearest token to each token of the query (MaxSim). Tokens that are only in the
candidate's context count less.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from accordion.model.memories import Embedding, SearchCandidate

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

SIGN: Final = b"mlm1"
"""The prefix of this embedding's vectors."""

_CONTEXT_VECTOR = 0.5
_CONTEXT_TOKEN = 0.5
_MAX_CHARACTERS = 20_000
"""The characters of a text that are embedded; the rest is ignored."""
_MAX_TOKENS = 4_096


def pack_vector(sign: bytes, vector: NDArray[Any]) -> bytes:
    """Returns a vector in the stored form: its sign, then its numbers as int8, scaled to 127. Empty for zeros."""
    import numpy  # noqa: PLC0415  # slow to import, and not needed by all

    top = numpy.abs(vector).max()
    return sign + numpy.round(vector / top * 127).astype(numpy.int8).tobytes() if top else b""


class StaticEmbedder:
    """An Embedder without network. It loads at first use, in a thread: 0.25 s, and some 60 MB with its libraries.

    `offload` runs a function in a thread. Raises ImportError if numpy or tokenizers are missing.
    """

    def __init__(self, offload: Callable[..., Any] = asyncio.to_thread) -> None:
        self._offload = offload

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        """See the port."""
        embeddings: list[Embedding] = await self._offload(_embed_all, tuple(texts))
        return embeddings

    async def embed_query(self, text: str) -> bytes:
        """See the port."""
        embedding: Embedding = (await self._offload(_embed_all, ((text, ""),)))[0]
        return embedding.vector

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        """See the port."""
        scores: list[float] = await self._offload(_relevance, query, [candidate.tokens for candidate in candidates])
        return scores

    @property
    def least_relevance(self) -> float:
        """See the port. With it, recall on recorded questions is the same (bench/README.md)."""
        return 0.55


def _embed_all(texts: Sequence[tuple[str, str]]) -> list[Embedding]:
    table = _load_table()
    return [table.embed(text, context) for text, context in texts]


def _relevance(query: str, tokens: Sequence[bytes]) -> list[float]:
    return _load_table().relevance(query, tokens)


@functools.lru_cache(maxsize=1)
def _load_table() -> EmbeddingTable:
    return EmbeddingTable()


class EmbeddingTable:
    """The tokens' vectors and weights, with the computations on them. Safe to use from several threads."""

    def __init__(self) -> None:
        import numpy  # noqa: PLC0415  # slow to import, and not needed by all
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers  # noqa: PLC0415

        self._numpy = numpy
        folder = files("accordion.providers.models") / "minilm"
        names = (folder / "vocabulary.txt").read_text("utf-8").splitlines()
        with (folder / "vectors.npy").open("rb") as file:
            self._vectors: NDArray[Any] = numpy.load(file)
        with (folder / "weights.npy").open("rb") as file:
            self._weights: NDArray[Any] = numpy.load(file).astype(numpy.float32)
        self._norms: NDArray[Any] = numpy.linalg.norm(self._vectors.astype(numpy.float32), axis=1)
        vocabulary = {name: index for index, name in enumerate(names)}
        self._tokenizer: Tokenizer = Tokenizer(
            models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)  # noqa: S106
        )
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def embed(self, text: str, context: str) -> Embedding:
        """Returns a text's vector and tokens. The context shifts the vector, and its tokens follow the text's own."""
        numpy = self._numpy
        text_ids, context_ids = self._ids(text), self._ids(context)
        vector = pack_vector(SIGN, self._mean_vector(text_ids) + _CONTEXT_VECTOR * self._mean_vector(context_ids))
        unique_text_ids = numpy.unique(text_ids)[:_MAX_TOKENS]
        unique_context_ids = numpy.setdiff1d(context_ids, unique_text_ids)[:_MAX_TOKENS]
        tokens = (
            numpy.concatenate(([len(unique_text_ids)], unique_text_ids, unique_context_ids)).astype("<u2").tobytes()
        )
        return Embedding(vector, tokens)

    def relevance(self, query: str, tokens: Sequence[bytes]) -> list[float]:
        """Returns the relevance of each text, given as its tokens, to the query.

        It is the mean cosine of the text's nearest token to each query token, weighted by the square of the weight of
        the query token.
        """
        numpy = self._numpy
        query_ids = numpy.unique(self._ids(query))
        if not len(query_ids) or not tokens:
            return [0.0] * len(tokens)
        rows = [numpy.frombuffer(entry, "<u2") for entry in tokens]
        token_ids = numpy.concatenate([row[1:] for row in rows]).astype(numpy.intp)
        # Each text has two ranges: its own tokens and its context's. An empty range has the cosine 0.
        has_tokens, starts = [], []
        position = 0
        for row in rows:
            text_length = int(row[0]) if len(row) else 0
            starts += [position, position + text_length]
            position += max(0, len(row) - 1)
            has_tokens.append((text_length > 0, max(0, len(row) - 1) > text_length))
        cosines = self._cosines(query_ids, token_ids)
        nearest_cosines = numpy.maximum.reduceat(cosines, starts, axis=1)
        is_filled = numpy.array(has_tokens).reshape(-1)
        nearest_cosines = numpy.where(is_filled, numpy.maximum(nearest_cosines, 0), 0)
        text_cosines, context_cosines = nearest_cosines[:, 0::2], nearest_cosines[:, 1::2]
        combined = text_cosines + _CONTEXT_TOKEN * numpy.maximum(context_cosines - text_cosines, 0)
        weights = self._weights[query_ids] ** 2
        scores = weights @ combined / weights.sum()
        return [float(score) for score in numpy.clip(scores, 0, 1)]

    def _cosines(self, query_ids: NDArray[Any], token_ids: NDArray[Any]) -> NDArray[Any]:
        """Returns the cosine of each query token to each of `token_ids`, and a last column of zeros.

        Each different token is multiplied once.
        """
        numpy = self._numpy
        is_present = numpy.zeros(len(self._vectors), bool)
        is_present[token_ids] = True
        distinct_ids = numpy.flatnonzero(is_present)
        columns = numpy.zeros(len(self._vectors), numpy.intp)
        columns[distinct_ids] = numpy.arange(len(distinct_ids))
        cosines = self._unit_vectors(query_ids) @ self._unit_vectors(distinct_ids).T
        padded: NDArray[Any] = numpy.pad(cosines[:, columns[token_ids]], ((0, 0), (0, 1)))
        return padded

    def _unit_vectors(self, ids: NDArray[Any]) -> NDArray[Any]:
        vectors: NDArray[Any] = self._vectors[ids].astype(self._numpy.float32) / self._norms[ids, None]
        return vectors

    def _ids(self, text: str) -> NDArray[Any]:
        """Returns the tokens of a text with a weight above 0, as rows of the table."""
        numpy = self._numpy
        all_ids = self._tokenizer.encode(text[:_MAX_CHARACTERS], add_special_tokens=False).ids if text else []
        ids: NDArray[Any] = numpy.array(all_ids, numpy.intp)
        weighted_ids: NDArray[Any] = ids[self._weights[ids] > 0]
        return weighted_ids

    def _mean_vector(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Returns the weighted mean of the tokens' vectors, with length 1; zero if there are no tokens."""
        numpy = self._numpy
        total = self._weights[ids] @ self._unit_vectors(ids)
        length = float(numpy.linalg.norm(total))
        mean: NDArray[Any] = total / length if length > 1e-9 else total
        return mean
