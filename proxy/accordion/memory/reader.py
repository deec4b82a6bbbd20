"""Reading memories in full, and reading tokens: signed proofs of the deep searches and the reads of a caller.

Searches and reads return a *reading token*; later calls pass it on and extend it. A consolidation requires one. The
token is signed with the tenant's key, so that no worker has to store it and every worker can verify it, and it expires.
It holds a fingerprint of four bytes for each deep search and each read: for twenty memories it has about 150
characters, which a model can pass on. A memory that was edited after the read counts as unread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from accordion.model.errors import BadRequest
from accordion.model.memories import Memory, MemoryStore
from accordion.model.ports import Clock
from accordion.model.tenant import TenantScope

MOST_IDS: Final = 100
"""Memories that one call may read."""
TOKEN_SECONDS: Final = 3_600.0
MAX_FINGERPRINTS: Final = 512
"""Fingerprints of one token; the oldest are dropped."""

_VERSION, _FINGERPRINT_BYTES, _SIGNATURE_BYTES = b"\x01", 4, 12
_HEADER_BYTES = len(_VERSION) + 4


class ReadProof(msgspec.Struct, frozen=True):
    """The deep searches and the reads of a tenant's caller, as keyed fingerprints, oldest first."""

    tenant: TenantScope
    fingerprints: tuple[bytes, ...] = ()

    def has_searched_deeply(self, topic: str) -> bool:
        """Returns whether a deep search had this topic."""
        return _fingerprint(self.tenant, "deep", _normalize(topic)) in self.fingerprints

    def find_read(self, memories: Iterable[Memory]) -> list[Memory]:
        """Returns the memories that were read in full in their present revision."""
        fingerprints = frozenset(self.fingerprints)
        return [memory for memory in memories if _read_fingerprint(self.tenant, memory) in fingerprints]


def empty_proof(tenant: TenantScope) -> ReadProof:
    """Returns a proof without searches and reads."""
    return ReadProof(tenant)


def with_deep_search(proof: ReadProof, query: str, topics: Iterable[str]) -> ReadProof:
    """Returns the proof extended by a deep search: by its query and its topics."""
    return _add_fingerprints(proof, [_fingerprint(proof.tenant, "deep", _normalize(text)) for text in (query, *topics)])


def with_reads(proof: ReadProof, memories: Iterable[Memory]) -> ReadProof:
    """Returns the proof extended by memories that were read in full."""
    return _add_fingerprints(proof, [_read_fingerprint(proof.tenant, memory) for memory in memories])


def issue_token(proof: ReadProof, *, now: float) -> str:
    """Returns the reading token of a proof. It is valid for an hour."""
    body = _VERSION + int(now + TOKEN_SECONDS).to_bytes(4, "big") + b"".join(proof.fingerprints)
    return base64.urlsafe_b64encode(body + _sign(proof.tenant, body)).rstrip(b"=").decode("ascii")


def verify_tokens(tenant: TenantScope, tokens: str | Sequence[str], *, now: float) -> ReadProof:
    """Returns the combined proof of reading tokens. A string may hold several, separated by spaces.

    Raises BadRequest (`reading_token_invalid`, `reading_token_expired`).
    """
    proof = empty_proof(tenant)
    for token in tokens.split() if isinstance(tokens, str) else tokens:
        if token:
            proof = _add_fingerprints(proof, _open_token(tenant, token, now))
    return proof


class ReadMemories(msgspec.Struct, frozen=True):
    """Memories in full, the ids that do not exist, and the reading token."""

    memories: tuple[Memory, ...]
    missing: tuple[str, ...]
    token: str


class MemoryReader:
    """Reads memories in full."""

    def __init__(self, memories: MemoryStore, clock: Clock) -> None:
        self._memories = memories
        self._clock = clock

    async def read(self, tenant: TenantScope, ids: Sequence[str], token: str | Sequence[str] = "") -> ReadMemories:
        """Returns memories by id. `token` is the caller's reading token so far; the new one extends it.

        Raises BadRequest (`no_ids`, `too_many_ids`, and those of a token) and StoreUnavailable.
        """
        distinct_ids = list(dict.fromkeys(ids))
        if not distinct_ids:
            raise BadRequest(
                "Name at least one memory by its id. memory_search finds the ids.", code="no_ids", param="ids"
            )
        if len(distinct_ids) > MOST_IDS:
            raise BadRequest(
                f"At most {MOST_IDS} memories can be read at once; {len(distinct_ids)} were named.",
                code="too_many_ids",
                param="ids",
            )
        now = self._clock.now()
        proof = verify_tokens(tenant, token, now=now)
        memories = await self._memories.get(tenant, distinct_ids)
        existing = tuple(memory for memory in memories if memory is not None)
        missing = tuple(memory_id for memory_id, memory in zip(distinct_ids, memories, strict=True) if memory is None)
        proof = with_reads(proof, existing)
        return ReadMemories(existing, missing, issue_token(proof, now=now))


def _add_fingerprints(proof: ReadProof, fingerprints: Iterable[bytes]) -> ReadProof:
    return ReadProof(proof.tenant, tuple(dict.fromkeys((*proof.fingerprints, *fingerprints)))[-MAX_FINGERPRINTS:])


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())


def _open_token(tenant: TenantScope, token: str, now: float) -> list[bytes]:
    try:
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        data = b""
    body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    fingerprints = body[_HEADER_BYTES:]
    valid = len(body) >= _HEADER_BYTES and body[:1] == _VERSION and len(fingerprints) % _FINGERPRINT_BYTES == 0
    if not valid or not hmac.compare_digest(signature, _sign(tenant, body)):
        raise BadRequest(
            "This reading token is not valid here. Pass on the token that the search or the read returned, unchanged.",
            code="reading_token_invalid",
            param="token",
        )
    if int.from_bytes(body[1:_HEADER_BYTES], "big") < now:
        raise BadRequest(
            "This reading token has expired. Search and read again, and pass on the new one.",
            code="reading_token_expired",
            param="token",
        )
    return [
        fingerprints[index : index + _FINGERPRINT_BYTES] for index in range(0, len(fingerprints), _FINGERPRINT_BYTES)
    ]


def _fingerprint(tenant: TenantScope, kind: str, value: str) -> bytes:
    return hmac.digest(tenant.key, f"reading {kind}\n{value}".encode("utf-8", "replace"), hashlib.sha256)[
        :_FINGERPRINT_BYTES
    ]


def _read_fingerprint(tenant: TenantScope, memory: Memory) -> bytes:
    return _fingerprint(tenant, "read", f"{memory.revision}\n{memory.id}")


def _sign(tenant: TenantScope, body: bytes) -> bytes:
    return hmac.digest(tenant.key, b"reading token\n" + body, hashlib.sha256)[:_SIGNATURE_BYTES]
