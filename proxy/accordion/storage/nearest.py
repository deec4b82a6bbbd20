"""Which of many vectors are near to one. Imports numpy at first need."""

from __future__ import annotations

from collections.abc import Sequence

SIGN = 4
"""Bytes that say whose a vector is; only those of one kind are compared."""


def nearest(query: bytes, vectors: Sequence[bytes], limit: int) -> list[tuple[int, float]]:
    """The indexes of the vectors that are nearest to `query` by cosine, the nearest first, each with its cosine.

    Vectors of another kind or length than the query's, and those that point away from it, are left out.
    """
    sign, length = query[:SIGN], len(query)
    fitting = [at for at, vector in enumerate(vectors) if len(vector) == length and vector[:SIGN] == sign]
    joined = b"".join(vectors) if len(fitting) == len(vectors) else b"".join([vectors[at] for at in fitting])
    return [(fitting[at], cosine) for at, cosine in nearest_of(query, joined, limit)]


def nearest_of(query: bytes, joined: bytes, limit: int) -> list[tuple[int, float]]:
    """The same for vectors that are all of the query's kind and length, one behind the other."""
    length = len(query)
    if length <= SIGN or not joined:
        return []
    import numpy as np  # noqa: PLC0415  # slow to import, and not wanted by all

    matrix = np.frombuffer(joined, np.int8).reshape(-1, length)[:, SIGN:].astype(np.float32)
    asked = np.frombuffer(query, np.int8, offset=SIGN).astype(np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.linalg.norm(asked)
    cosines = matrix @ asked / np.maximum(norms, 1e-9)
    best = np.argpartition(-cosines, limit)[:limit] if limit < len(cosines) else np.arange(len(cosines))
    best = best[np.argsort(-cosines[best], kind="stable")]
    return [(int(at), float(cosines[at])) for at in best if cosines[at] > 0]
