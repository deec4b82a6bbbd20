"""How a tenant's memories are kept from who reads the store's files: values sealed, names told by nothing but a digest.

A tenant has a secret of its own, made at random and itself sealed by the configured keys. A name (an id, a topic, an
entity, a word's stem) stands in the store as an HMAC under it, so that it can be looked up and not be guessed; names
outlive the keys that way. Without a key names and values stand there as they are.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

from accordion.archive.sealing import SEALED
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Sealer

_BYTES, _NAME = 32, 16
_KEY: Final = 5
"""Bytes at the head of a sealed value that say that it is sealed, and with which key."""
_PLACE: Final = "memories/secret"


class Veil:
    """What a tenant's names and values look like in the store. `held` is the sealed secret, empty where there is none.

    Raises StoreUnavailable where the secret, or later a value, cannot be opened."""

    def __init__(self, sealer: Sealer, space: bytes, held: bytes = b"") -> None:
        self._sealer, self._space, self.held = sealer, space, held
        self._secret = self.open(_PLACE, held) if held else b""

    def name(self, text: str) -> str:
        """A name as it stands in the store. Equal names are equal there."""
        if not self._secret:
            return text
        return hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256")[:_NAME].hex()

    def seal(self, place: str, value: bytes) -> bytes:
        """A value as it stands in a place of the store."""
        return self._sealer.seal(self._space, place, value)

    def sealed(self, place: str, value: bytes) -> bytes:
        """The same for what is kept in lists of one width: as long as others of its length, and as it is without a
        veil."""
        return self.seal(place, value) if self.held and value else value

    def open(self, place: str, value: bytes) -> bytes:
        """The other way round."""
        opened = self._sealer.open(self._space, place, value)
        if opened is None:
            raise StoreUnavailable("these memories are encrypted with a key that is not among archive.key, or damaged")
        return opened

    def renewed(self) -> Veil:
        """The veil that things are to be written under now: itself, as a rule; another one where a key was set since,
        or another key is the first now."""
        now = self._sealer.seal(self._space, _PLACE, self._secret or os.urandom(_BYTES))
        if now[:1] != SEALED or now[:_KEY] == self.held[:_KEY]:
            return self
        return Veil(self._sealer, self._space, now)
