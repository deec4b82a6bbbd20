"""Proxy keys: those of the configuration, and those that an administrator creates, which the store has as hashes.

Theory of operation. A created key is `acc-ID-SECRET`. The store has a record under its id: the tenant and a SHA-256
hash of the whole key, never the key. The secret has 256 random bits, so a plain hash cannot be inverted. Each worker
has all records in memory, and a request is checked there. `poll` reads a version mark each second and the records if
it changed, and once a minute in any case. A creation and a revocation write the record first and the mark second.

While the store is unavailable, the records that were read last stay valid for `GRACE_SECONDS`. After that, or if
they were never read, nobody can say whether a key was revoked: then KeysUnavailable is raised, and not Unauthorized.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.accounting.key_limits import NO_LIMITS, KeyLimits
from accordion.model.errors import BadRequest, KeysUnavailable, NotFound, StoreUnavailable
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Clock, Key, KeyValueStore
from accordion.model.stored_values import decode_stored

RECORDS: Final = "proxy-keys"
"""The collection of the records of created keys; names are ids."""
CHANGED_LIMITS: Final = "proxy-keys/limits"
"""The collection of limits that replace those of a record; names are ids. A change never writes a record, so that it
cannot restore a key that is revoked at the same time."""
VERSION: Final = Key("", "proxy-keys/version")
"""The key of the version mark."""
MOST_KEYS: Final = 10_000
"""Created keys in a store; all of them are in the memory of each worker."""
GRACE_SECONDS: Final = 3_600.0
"""Seconds for which created keys stay valid after they were read last."""
_READ_AGAIN_SECONDS = 60.0
_PAGE = 1_000
_CREATED_KEY = re.compile(rb"acc-([0-9a-f]{12})-[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{12}")
_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ProxyKey(msgspec.Struct, frozen=True):
    """A configured key: a caller that presents `key` is the tenant `id`."""

    id: str
    key: str
    limits: KeyLimits = NO_LIMITS

    def __repr__(self) -> str:
        return f"ProxyKey(id={self.id!r})"


class ProxyKeyRecord(StructWithHiddenFields, frozen=True):
    """What is known of a proxy key: its id, its tenant and the SHA-256 hash of the key.

    `created` is in seconds since the epoch; None for a key of the configuration. The record in the store has the limits
    with which the key was created.
    """

    hidden_fields = frozenset({"digest"})

    id: str
    tenant: str
    digest: bytes
    created: float | None = None
    limits: KeyLimits = NO_LIMITS


_RECORD = msgspec.json.Decoder(ProxyKeyRecord)
_LIMITS = msgspec.json.Decoder(KeyLimits)


def hash_key(key: bytes) -> bytes:
    """Returns the hash of a key."""
    return hashlib.sha256(key).digest()


def is_created_key(value: bytes) -> bool:
    """Whether a text has the form of a created key, whether or not it is valid."""
    return _CREATED_KEY.fullmatch(value) is not None


class CreatedKeys:
    """The created keys of a store, as this worker read them last."""

    def __init__(self, store: KeyValueStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._records: dict[str, ProxyKeyRecord] = {}
        self._version: bytes | None = None
        self._changes = 0
        self._read_at: float | None = None
        """The time of the last successful check of the version; None before the first."""
        self._all_read_at = 0.0

    def match(self, value: bytes, digest: bytes) -> ProxyKeyRecord | None:
        """Returns the record of the key `value` with the hash `digest`; None if it is no created key.

        Raises KeysUnavailable if the records are not known, or are too old.
        """
        parts = _CREATED_KEY.fullmatch(value)
        if parts is None:
            return None
        record = self.find(parts[1].decode())
        return record if record is not None and hmac.compare_digest(record.digest, digest) else None

    def find(self, key_id: str) -> ProxyKeyRecord | None:
        """Returns the record of an id; None if there is none. Raises KeysUnavailable as `match` does."""
        if self._read_at is None or self._clock.monotonic() - self._read_at > GRACE_SECONDS:
            raise KeysUnavailable
        return self._records.get(key_id)

    async def list_records(self) -> list[ProxyKeyRecord]:
        """Returns the records of the store, the latest last. Raises StoreUnavailable."""
        return sorted((await self._read_records()).values(), key=lambda record: (record.created or 0.0, record.id))

    @property
    def has_day_limits(self) -> bool:
        """Whether any key has a limit of tokens or dollars."""
        return any(record.limits.has_day_limit for record in self._records.values())

    async def create(self, tenant: str, limits: KeyLimits = NO_LIMITS) -> tuple[ProxyKeyRecord, str]:
        """Creates a key of a tenant; returns its record and the key itself, which nothing stores.

        Raises BadRequest for an impossible name or too many keys, and StoreUnavailable.
        """
        if not _TENANT.fullmatch(tenant):
            raise BadRequest(
                "The name of a tenant has 1 to 128 letters, digits and the characters _ . : -", param="tenant"
            )
        if len(await self._read_records()) >= MOST_KEYS:
            raise BadRequest(f"There are {MOST_KEYS:,} keys, which is the most. Revoke some.", param="tenant")
        key_id = secrets.token_hex(6)
        key = f"acc-{key_id}-{secrets.token_urlsafe(32)}"
        record = ProxyKeyRecord(key_id, tenant, hash_key(key.encode()), self._clock.now(), limits)
        stored, value = Key(RECORDS, key_id), msgspec.json.encode(record)
        if await self._store.put_if_absent(stored, value) != value:
            raise BadRequest("The new key has the id of another one. Try again.")
        self._changes += 1
        self._records[key_id] = record
        await self._publish()
        return record, key

    async def set_limits(self, key_id: str, limits: KeyLimits) -> ProxyKeyRecord:
        """Replaces the limits of a key; returns its record. Raises NotFound and StoreUnavailable."""
        record = await self.read(key_id)
        await self._store.put(Key(CHANGED_LIMITS, key_id), msgspec.json.encode(limits))
        self._changes += 1
        if key_id in self._records:
            self._records[key_id] = replace(record, limits=limits)
        await self._publish()
        return replace(record, limits=limits)

    async def read(self, key_id: str) -> ProxyKeyRecord:
        """Returns a record of the store, with its present limits. Raises NotFound and StoreUnavailable."""
        value = limits = None
        if _ID.fullmatch(key_id):
            value, limits = await self._store.get_many([Key(RECORDS, key_id), Key(CHANGED_LIMITS, key_id)])
        record = decode_stored(_RECORD, value) if value is not None else None
        if record is None:
            raise NotFound("There is no created key with this id.", code="key_not_found")
        changed = decode_stored(_LIMITS, limits) if limits is not None else None
        return record if changed is None else replace(record, limits=changed)

    async def revoke(self, key_id: str) -> None:
        """Removes a key. This worker refuses it at once. Raises NotFound and StoreUnavailable."""
        count = await self._store.delete([Key(RECORDS, key_id)]) if _ID.fullmatch(key_id) else 0
        if count:
            await self._store.delete([Key(CHANGED_LIMITS, key_id)])
        self._changes += 1
        self._records.pop(key_id, None)
        # Also for a key that is gone: an earlier attempt may have failed in between.
        await self._publish()
        if not count:
            raise NotFound("There is no created key with this id.", code="key_not_found")

    async def poll(self) -> None:
        """Reads what other processes changed; to be called about every second. Never fails."""
        with suppress(StoreUnavailable):
            before, version = self._changes, await self._store.get(VERSION)
            now = self._clock.monotonic()
            is_unread = self._read_at is None or now - self._all_read_at >= _READ_AGAIN_SECONDS
            if is_unread or version != self._version:
                records = await self._read_records()
                if self._changes != before:
                    # What was read may be older than what this worker changed meanwhile.
                    return
                self._records, self._version, self._all_read_at = records, version, now
            self._read_at = now

    async def _publish(self) -> None:
        await self._store.put(VERSION, secrets.token_bytes(8))

    async def _read_records(self) -> dict[str, ProxyKeyRecord]:
        records = dict[str, ProxyKeyRecord]()
        for name, value in await self._scan(RECORDS):
            # A record of a later version may not be readable; its key is not valid here.
            with suppress(msgspec.MsgspecError):
                records[name] = _RECORD.decode(value)
        for name, value in await self._scan(CHANGED_LIMITS):
            if name in records:
                with suppress(msgspec.MsgspecError):
                    records[name] = replace(records[name], limits=_LIMITS.decode(value))
        return records

    async def _scan(self, collection: str) -> list[tuple[str, bytes]]:
        rows, after = list[tuple[str, bytes]](), ""
        while len(rows) < MOST_KEYS and (page := await self._store.scan(collection, after=after, limit=_PAGE)):
            rows += page
            after = page[-1][0]
            if len(page) < _PAGE:
                break
        return rows
