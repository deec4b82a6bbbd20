"""Encryption at rest: AES-256-GCM with a key for each tenant, derived from the configured keys.

An encrypted value has a byte that marks it, 4 bytes that identify the configured key, a random nonce of 12 bytes, and
the ciphertext with its tag. The name under which it is stored is its associated data, so that a value cannot be moved
to another name. Random nonces of 96 bits are safe for about 2^32 values of one key (NIST SP 800-38D, 8.3); each tenant
has its own key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accordion.archive.sealing import SEALED, PlainSealer, unescape
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_log = logging.getLogger("accordion")

_ID, _NONCE, _BYTES = 4, 12, 32
_HEAD = 1 + _ID + _NONCE
_TENANTS = 10_000
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class AesSealer:
    """A Sealer with keys of 32 bytes: the first one encrypts, all decrypt. Imports `cryptography` (about 60 ms)."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != _BYTES for key in keys):
            raise ValueError("expected keys of 32 bytes")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # slow to import, and only needed with a key
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        def derive_cipher(key: bytes, tenant: TenantScope) -> AESGCM:
            return AESGCM(HKDF(SHA256(), _BYTES, None, b"accordion archive " + tenant.key).derive(key))

        self._derive_cipher = derive_cipher
        self._invalid_tag = InvalidTag
        self._keys = {_key_id(key): key for key in reversed(keys)}
        self._first_id = _key_id(keys[0])
        self._ciphers: dict[tuple[bytes, TenantScope], AESGCM] = {}
        self._has_warned = False

    def seal(self, tenant: TenantScope, name: str, value: bytes) -> bytes:
        """See Sealer."""
        nonce = os.urandom(_NONCE)
        sealed = self._cipher(self._first_id, tenant).encrypt(nonce, value, _associated_data(name))
        return b"".join((SEALED, self._first_id, nonce, sealed))

    def open(self, tenant: TenantScope, name: str, value: bytes) -> bytes | None:
        """See Sealer."""
        if value[:1] != SEALED:
            return unescape(value)
        key_id, nonce, sealed = value[1 : 1 + _ID], value[1 + _ID : _HEAD], value[_HEAD:]
        if key_id not in self._keys:
            self._warn("it was encrypted with a key that is not among archive.key")
            return None
        if len(nonce) < _NONCE:
            self._warn("it is damaged")
            return None
        try:
            return self._cipher(key_id, tenant).decrypt(nonce, sealed, _associated_data(name))
        except self._invalid_tag:
            self._warn("it is damaged, or was not written here")
            return None

    def _cipher(self, key_id: bytes, tenant: TenantScope) -> AESGCM:
        cipher = self._ciphers.get((key_id, tenant))
        if cipher is None:
            if len(self._ciphers) >= _TENANTS:
                self._ciphers.clear()
            cipher = self._ciphers[key_id, tenant] = self._derive_cipher(self._keys[key_id], tenant)
        return cipher

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("a stored value cannot be decrypted and counts as missing: %s", reason)


def read_keys(text: str) -> tuple[bytes, ...]:
    """Reads keys of 32 bytes in hexadecimal or base64, separated by commas; an empty text has none.

    Base64 may use either alphabet, with or without padding. Raises ValueError, whose text never contains a key.
    """
    keys = tuple(_decode_key(part.strip()) for part in text.split(",")) if text.strip() else ()
    if any(len(key) != _BYTES for key in keys):
        raise ValueError("Expected 32 bytes in base64 or hexadecimal; of several keys, with a comma between")
    return keys


def open_sealer(text: str) -> Sealer:
    """Returns the Sealer for the keys in `text` (see `read_keys`); without one nothing is encrypted.

    Raises ValueError.
    """
    keys = read_keys(text)
    return AesSealer(keys) if keys else PlainSealer()


def open_block_sealer(text: str) -> Sealer:
    """Returns the Sealer for compaction blocks, which clients keep. Raises ValueError for wrong keys.

    It encrypts also if there are no keys in `text`: then with a key that is derived from the tenant's own alone. So
    a block that was sealed before `archive.key` was set can be opened afterwards.
    """
    return _LazySealer((*read_keys(text), hashlib.sha256(b"accordion compaction block").digest()))


class _LazySealer:
    """An AesSealer that is made when it is first needed, since its import takes some time."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._sealer: AesSealer | None = None

    def seal(self, tenant: TenantScope, name: str, value: bytes) -> bytes:
        """See Sealer."""
        return self._made().seal(tenant, name, value)

    def open(self, tenant: TenantScope, name: str, value: bytes) -> bytes | None:
        """See Sealer."""
        return self._made().open(tenant, name, value)

    def _made(self) -> AesSealer:
        self._sealer = self._sealer or AesSealer(self._keys)
        return self._sealer


def _decode_key(text: str) -> bytes:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        plain = text.rstrip("=").translate(str.maketrans("-_", "+/"))
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _key_id(key: bytes) -> bytes:
    """Returns a short identifier of a key, which reveals nothing about the key."""
    return hashlib.sha256(b"accordion key id " + key).digest()[:_ID]


def _associated_data(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
