"""The static embedding: looks up the vectors of all-MiniLM-L6-v2's tokens and averages them. No model runs.

scripts/build_embedding.py builds `minilm/`. A text's vector is the weighted mean of its tokens' vectors. The relevance
of a candidate is computed from its nearest token to each token of the query (MaxSim). Tokens that are only in the
candidate's context count less.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from accordion.model.search import NEAR, NEAR_SHARE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

SIGN: Final = b"mlm1"
"""The prefix of this embedding's vectors."""

_CONTEXT_VECTOR = 0.5
_MAX_CHARACTERS = 20_000
"""The characters of a text that are embedded; the rest is ignored."""
_MAX_TOKENS = 4_096


def pack_vector(sign: bytes, vector: NDArray[Any]) -> bytes:
    """Returns a vector in the stored form: its sign, then its numbers as int8, scaled to 127. Empty for zeros."""
    import numpy  # noqa: PLC0415  # slow to import, and not needed by all

    top = numpy.abs(vector).max()
    return sign + numpy.round(vector / top * 127).astype(numpy.int8).tobytes() if top else b""


@functools.lru_cache(maxsize=1)
def load_table() -> EmbeddingTable:
    """Loads the embedding at the first use: 0.25 s, and some 60 MB with its libraries.

    Raises ImportError if numpy or tokenizers are missing.
    """
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

    def embed(self, text: str, context: str) -> tuple[bytes, bytes]:
        """Returns a text's vector and tokens. The context shifts the vector, and its tokens follow the text's own."""
        numpy = self._numpy
        text_ids, context_ids = self._ids(text), self._ids(context)
        vector = pack_vector(SIGN, self._mean_vector(text_ids) + _CONTEXT_VECTOR * self._mean_vector(context_ids))
        unique_text_ids = numpy.unique(text_ids)[:_MAX_TOKENS]
        unique_context_ids = numpy.setdiff1d(context_ids, unique_text_ids)[:_MAX_TOKENS]
        tokens = (
            numpy.concatenate(([len(unique_text_ids)], unique_text_ids, unique_context_ids)).astype("<u2").tobytes()
        )
        return vector, tokens

    def relevance(self, query: str, tokens: Sequence[bytes]) -> list[float]:
        """Returns the relevance of each text, given as its tokens, to the query.

        It is the mean cosine of the text's nearest token to each query token, weighted by the square of the weight of
        the query token.
        """
        numpy = self._numpy
        rows = [numpy.frombuffer(entry, "<u2") for entry in tokens]
        # Each text has two ranges: its own tokens and its context's.
        own_lengths = [int(row[0]) if len(row) else 0 for row in rows]
        lengths = [(own, max(0, len(row) - 1) - own) for own, row in zip(own_lengths, rows, strict=True)]
        token_ids = numpy.concatenate([row[1:] for row in rows] or [numpy.zeros(0)])
        nearest = self._nearest_cosines(query, token_ids, numpy.array(lengths, numpy.intp).reshape(-1))
        return self._weigh(query, nearest[:, 0::2], nearest[:, 1::2])

    def tokens_of(self, texts: Sequence[str]) -> list[bytes]:
        """See TokenEmbedding."""
        encoded = self._tokenizer.encode_batch([text[:_MAX_CHARACTERS] for text in texts], add_special_tokens=False)
        return [self._numpy.unique(self._weighted(each.ids)).astype("<u2").tobytes() for each in encoded]

    def compare(self, query: str, tokens: bytes, lengths: Sequence[int]) -> list[float]:
        """See TokenEmbedding."""
        numpy = self._numpy
        own = self._nearest_cosines(query, numpy.frombuffer(tokens, "<u2"), numpy.array(lengths, numpy.intp) // 2)
        near: NDArray[Any] = own.copy()
        for distance in range(1, NEAR + 1):
            near[:, distance:] = numpy.maximum(near[:, distance:], own[:, :-distance])
            near[:, :-distance] = numpy.maximum(near[:, :-distance], own[:, distance:])
        return self._weigh(query, own, near)

    def _nearest_cosines(self, query: str, token_ids: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
        """Returns the cosine of the nearest token to each token of a query in each text, 0 without tokens.

        `token_ids` are those of all texts, one after the other, and `lengths` the number of each text's.
        """
        numpy = self._numpy
        query_ids = numpy.unique(self._ids(query))
        if not len(query_ids) or not len(token_ids):
            zeros: NDArray[Any] = numpy.zeros((len(query_ids), len(lengths)), numpy.float32)
            return zeros
        starts = numpy.cumsum(lengths) - lengths
        cosines = self._cosines(query_ids, numpy.asarray(token_ids, numpy.intp))
        nearest: NDArray[Any] = numpy.maximum.reduceat(cosines, starts, axis=1)
        clipped: NDArray[Any] = numpy.where(lengths > 0, numpy.maximum(nearest, 0), 0)
        return clipped

    def _weigh(self, query: str, own: NDArray[Any], near: NDArray[Any]) -> list[float]:
        """Returns the weighted means of the cosines of texts; what is only near a text counts less."""
        numpy = self._numpy
        weights = self._weights[numpy.unique(self._ids(query))] ** 2
        if not len(weights):
            return [0.0] * own.shape[1]
        scores = weights @ (own + NEAR_SHARE * numpy.maximum(near - own, 0)) / weights.sum()
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
        all_ids = self._tokenizer.encode(text[:_MAX_CHARACTERS], add_special_tokens=False).ids if text else []
        return self._weighted(all_ids)

    def _weighted(self, all_ids: Sequence[int]) -> NDArray[Any]:
        ids: NDArray[Any] = self._numpy.array(all_ids, self._numpy.intp)
        weighted_ids: NDArray[Any] = ids[self._weights[ids] > 0]
        return weighted_ids

    def _mean_vector(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Returns the weighted mean of the tokens' vectors, with length 1; zero if there are no tokens."""
        numpy = self._numpy
        total = self._weights[ids] @ self._unit_vectors(ids)
        length = float(numpy.linalg.norm(total))
        mean: NDArray[Any] = total / length if length > 1e-9 else total
        return mean
