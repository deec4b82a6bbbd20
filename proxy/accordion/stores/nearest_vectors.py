"""Finds the nearest of many vectors. Imports numpy at first use."""

from __future__ import annotations

from collections.abc import Sequence

KIND_BYTES = 4
"""Bytes of a vector that name its embedder. Only vectors of the same kind are compared."""


def find_nearest(query: bytes, vectors: Sequence[bytes], limit: int) -> list[tuple[int, float]]:
    """Returns the indexes of the vectors nearest to `query`, the nearest first, each with its cosine.

    Vectors of another kind or length, and those with a negative cosine, are left out.
    """
    kind, length = query[:KIND_BYTES], len(query)
    comparable = [at for at, vector in enumerate(vectors) if len(vector) == length and vector[:KIND_BYTES] == kind]
    if length <= KIND_BYTES or not comparable:
        return []
    import numpy as np  # noqa: PLC0415  # slow to import, and not always needed

    joined = b"".join([vectors[at] for at in comparable])
    matrix = np.frombuffer(joined, np.int8).reshape(-1, length)[:, KIND_BYTES:].astype(np.float32)
    query_vector = np.frombuffer(query, np.int8, offset=KIND_BYTES).astype(np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.linalg.norm(query_vector)
    cosines = matrix @ query_vector / np.maximum(norms, 1e-9)
    best = np.argpartition(-cosines, limit)[:limit] if limit < len(cosines) else np.arange(len(cosines))
    best = best[np.argsort(-cosines[best], kind="stable")]
    return [(comparable[at], float(cosines[at])) for at in best if cosines[at] > 0]
