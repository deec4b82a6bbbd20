"""Which of many vectors are near to one. Imports numpy at first need."""

from __future__ import annotations

from collections.abc import Sequence

SIGN = 4
"""Bytes that say whose a vector is; only those of one kind are compared."""


def nearest(query: bytes, vectors: Sequence[bytes], limit: int) -> list[tuple[int, float]]:
    """The indexes of the vectors that are nearest to `query` by cosine, the nearest first, each with its cosine.

    Vectors of another kind or length than the query's, and those that point away from it, are left out.
    """
    size = len(query) - SIGN
    if size <= 0 or not vectors:
        return []
    import numpy as np  # noqa: PLC0415  # slow to import, and not wanted by all

    sign, length = query[:SIGN], len(query)
    fitting = [at for at, vector in enumerate(vectors) if len(vector) == length and vector[:SIGN] == sign]
    if not fitting:
        return []
    joined = b"".join(vectors) if len(fitting) == len(vectors) else b"".join([vectors[at] for at in fitting])
    matrix = np.frombuffer(joined, np.int8).reshape(len(fitting), length)[:, SIGN:].astype(np.float32)
    asked = np.frombuffer(query, np.int8, offset=SIGN).astype(np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.linalg.norm(asked)
    cosines = matrix @ asked / np.maximum(norms, 1e-9)
    best = np.argpartition(-cosines, limit)[:limit] if limit < len(cosines) else np.arange(len(cosines))
    best = best[np.argsort(-cosines[best], kind="stable")]
    return [(fitting[int(at)], float(cosines[at])) for at in best if cosines[at] > 0]
