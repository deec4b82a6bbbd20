"""Reading memories in full, and the proof of what was searched and read.

Searches and reads return a *reading token*, which later calls take along and extend. It is signed with the tenant's
key, so that nothing has to be kept and every worker can check it, and it expires. What it proves are fingerprints of
four bytes, so that a model can pass it on: of twenty memories it has about 150 characters. A memory that was edited
since it was read counts as unread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from accordion.core.errors import BadRequest
from accordion.core.memories import Memories, Memory
from accordion.core.ports import Clock
from accordion.core.values import dataclass

MOST_IDS: Final = 100
"""Memories that are read at once."""
TOKEN_SECONDS: Final = 3_600.0
MOST_SEEN: Final = 512
"""Things that one token proves; the oldest are dropped."""

_VERSION, _MARK, _SIGNATURE = b"\x01", 4, 12
_HEAD = len(_VERSION) + 4


@dataclass(frozen=True, slots=True)
class Proof:
    """What a tenant's caller has searched and read, as keyed fingerprints, in the order it was seen."""

    space: bytes
    seen: tuple[bytes, ...] = ()

    def searched(self, text: str) -> bool:
        """Whether a search of any kind asked for this text or topic."""
        return _mark(self.space, "search", _plain(text)) in self.seen

    def searched_deeply(self, topic: str) -> bool:
        """Whether a deep search asked for this topic."""
        return _mark(self.space, "deep", _plain(topic)) in self.seen

    def read(self, memories: Iterable[Memory]) -> list[Memory]:
        """Those of the memories that were read in full, as they are now."""
        seen = frozenset(self.seen)
        return [memory for memory in memories if _read_mark(self.space, memory) in seen]


def nothing(space: bytes) -> Proof:
    """The proof of nothing."""
    return Proof(space)


def with_search(proof: Proof, query: str, topics: Iterable[str], *, deep: bool) -> Proof:
    """The proof with a search: for its query, and for the topics that it asked for."""
    asked = dict.fromkeys(_plain(text) for text in (query, *topics))
    kinds = ("search", "deep") if deep else ("search",)
    return _with(proof, [_mark(proof.space, how, text) for how in kinds for text in asked])


def with_reads(proof: Proof, memories: Iterable[Memory]) -> Proof:
    """The proof with memories that were read in full."""
    return _with(proof, [_read_mark(proof.space, memory) for memory in memories])


def issue(proof: Proof, *, now: float) -> str:
    """The reading token of a proof; good for an hour."""
    body = _VERSION + int(now + TOKEN_SECONDS).to_bytes(4, "big") + b"".join(proof.seen)
    return base64.urlsafe_b64encode(body + _signature(proof.space, body)).rstrip(b"=").decode("ascii")


def verified(space: bytes, tokens: str | Sequence[str], *, now: float) -> Proof:
    """What reading tokens prove together; several may stand in one text, with spaces between. None proves nothing.

    Raises BadRequest (`reading_token_invalid`, `reading_token_expired`).
    """
    proof = nothing(space)
    for token in tokens.split() if isinstance(tokens, str) else tokens:
        if token:
            proof = _with(proof, _opened(space, token, now))
    return proof


@dataclass(frozen=True, slots=True)
class Reading:
    """Memories in full, the ids that led nowhere, and the reading token that proves it."""

    memories: tuple[Memory, ...]
    missing: tuple[str, ...]
    token: str


class Reader:
    """Reads memories in full."""

    def __init__(self, memories: Memories, clock: Clock) -> None:
        self._memories = memories
        self._clock = clock

    async def read(self, space: bytes, ids: Sequence[str], token: str | Sequence[str] = "") -> Reading:
        """Memories by id. `token` is the reading token of what came before; the new one proves both.

        Raises BadRequest (`no_ids`, `too_many_ids`, and those of a token) and StoreUnavailable.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            raise BadRequest(
                "Name at least one memory by its id. memory_search finds the ids.", code="no_ids", param="ids"
            )
        if len(wanted) > MOST_IDS:
            raise BadRequest(
                f"At most {MOST_IDS} memories can be read at once; {len(wanted)} were named.",
                code="too_many_ids",
                param="ids",
            )
        now = self._clock.now()
        proof = verified(space, token, now=now)
        found = await self._memories.get(space, wanted)
        there = tuple(memory for memory in found if memory is not None)
        missing = tuple(memory_id for memory_id, memory in zip(wanted, found, strict=True) if memory is None)
        proof = with_reads(proof, there)
        return Reading(there, missing, issue(proof, now=now))


def _with(proof: Proof, seen: Iterable[bytes]) -> Proof:
    return Proof(proof.space, tuple(dict.fromkeys((*proof.seen, *seen)))[-MOST_SEEN:])


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _opened(space: bytes, token: str, now: float) -> list[bytes]:
    try:
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        data = b""
    body, signature = data[:-_SIGNATURE], data[-_SIGNATURE:]
    seen = body[_HEAD:]
    sound = len(body) >= _HEAD and body[:1] == _VERSION and len(seen) % _MARK == 0
    if not sound or not hmac.compare_digest(signature, _signature(space, body)):
        raise BadRequest(
            "This reading token is not valid here. Pass on the token that the search or the read returned, unchanged.",
            code="reading_token_invalid",
            param="token",
        )
    if int.from_bytes(body[1:_HEAD], "big") < now:
        raise BadRequest(
            "This reading token has expired. Search and read again, and pass on the new one.",
            code="reading_token_expired",
            param="token",
        )
    return [seen[at : at + _MARK] for at in range(0, len(seen), _MARK)]


def _mark(space: bytes, how: str, what: str) -> bytes:
    return hmac.digest(space, f"reading {how}\n{what}".encode("utf-8", "replace"), hashlib.sha256)[:_MARK]


def _read_mark(space: bytes, memory: Memory) -> bytes:
    return _mark(space, "read", f"{memory.revision}\n{memory.id}")


def _signature(space: bytes, body: bytes) -> bytes:
    return hmac.digest(space, b"reading token\n" + body, hashlib.sha256)[:_SIGNATURE]
