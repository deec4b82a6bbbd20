"""What memories are called."""

from __future__ import annotations

import hashlib
from typing import Final

_ID: Final = 20


def memory_id(*pieces: str) -> str:
    """An id made of what tells a memory from others: the same pieces make the same id."""
    digest = hashlib.sha256()
    for piece in pieces:
        held = piece.encode("utf-8", "replace")
        digest.update(len(held).to_bytes(8, "big") + held)
    return "mem-" + digest.hexdigest()[:_ID]
