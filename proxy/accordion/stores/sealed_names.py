"""Encryption of a tenant's memories at rest: sealed values, and keyed digests instead of names.

Each tenant has a random secret, which the configured keys seal. The store holds a name (an id, a topic, an entity, a
word's stem) as an HMAC under this secret, so that it can be looked up but not guessed. The digests stay valid when the
configured keys change. Without a key, the store holds names and values in plain form.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

from accordion.archive.sealing import SEALED
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope

_SECRET_BYTES, _NAME_BYTES = 32, 16
_KEY_PREFIX: Final = 5
"""Bytes at the beginning of a sealed value that identify the seal and its key."""
_RECORD_NAME: Final = "memories/secret"


class SealedNames:
    """Seals and opens a tenant's names and values. `sealed_secret` is empty for a tenant without a secret.

    Raises StoreUnavailable if the secret, or later a value, cannot be opened.
    """

    def __init__(self, sealer: Sealer, tenant: TenantScope, sealed_secret: bytes = b"") -> None:
        self._sealer, self._tenant, self.sealed_secret = sealer, tenant, sealed_secret
        self._secret = self.open(_RECORD_NAME, sealed_secret) if sealed_secret else b""

    def name(self, text: str) -> str:
        """Returns a name's form in the store. Equal names have equal forms."""
        if not self._secret:
            return text
        return hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256")[:_NAME_BYTES].hex()

    def seal(self, record_name: str, value: bytes) -> bytes:
        """Seals a value for a name of the store."""
        return self._sealer.seal(self._tenant, record_name, value)

    def open(self, record_name: str, value: bytes) -> bytes:
        """Opens a sealed value. Raises StoreUnavailable."""
        plain = self._sealer.open(self._tenant, record_name, value)
        if plain is None:
            raise StoreUnavailable("these memories are encrypted with a key that is not among archive.key, or damaged")
        return plain

    def renew(self) -> SealedNames:
        """Returns the SealedNames for new writes: usually this one.

        It is another one if a key was configured since, or another key is the first one now.
        """
        new_secret = self._sealer.seal(self._tenant, _RECORD_NAME, self._secret or os.urandom(_SECRET_BYTES))
        if new_secret[:1] != SEALED or new_secret[:_KEY_PREFIX] == self.sealed_secret[:_KEY_PREFIX]:
            return self
        return SealedNames(self._sealer, self._tenant, new_secret)
