"""Who is asking: the tenant, and whose credential goes to the provider."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from accordion.core.errors import Unauthorized
from accordion.core.values import dataclass
from accordion.identity.pages import of_a_site

DEFAULT_TENANT = "default"
LISTED = "tenants"
"""The collection that lists tenants by name."""
REMEMBERED = "tenants/memories"
"""The same of those for whom something was remembered; an entry stays until the tenant is erased."""

CREDENTIALS = (b"authorization", b"x-api-key", b"api-key")
"""The headers in which clients send a credential."""


@dataclass(frozen=True, slots=True)
class ProxyKey:
    """A key of the proxy's own: whoever presents `key` is the tenant `id`."""

    id: str
    key: str

    def __repr__(self) -> str:
        return f"ProxyKey(id={self.id!r})"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking. `space` is the tenant's own key: every hash of content starts from it, so none matches another's.

    `keyed` says that a proxy key was presented; `credential` is the caller's own for the provider, empty where what it
    presented was the proxy key. `local` says that this machine asks, and no other can.
    """

    tenant: str
    space: bytes
    keyed: bool
    credential: str
    local: bool = False

    def __repr__(self) -> str:
        return f"Caller(tenant={self.tenant!r}, keyed={self.keyed})"


class Tenants:
    """Tells callers apart.

    With proxy keys configured: the proxy key's id, and nobody enters without one. Else, on a loopback address: one
    tenant, save for web sites. Else: a keyed hash of the credential. A claim in an unverified token names no tenant.
    """

    def __init__(self, secret: bytes, keys: tuple[ProxyKey, ...] = (), *, loopback: bool = True) -> None:
        self._secret = secret
        self._keys = [(key.id, key.key.encode()) for key in keys]
        self.local = loopback and not keys
        """Whether only this machine can ask, and nobody has to show a key."""
        self._spaces: dict[str, bytes] = {}

    def identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        """The caller of a request whose headers (by lower-case name) these are. Raises Unauthorized."""
        credential = presented(headers)
        if not self._keys:
            # A web site that asks through a browser on this machine is not who works at it.
            origin = headers.get(b"origin")
            local = self.local and (origin is None or not of_a_site(origin))
            tenant = DEFAULT_TENANT if local else self._hashed(credential)
            return Caller(tenant, self.space(tenant), False, credential, local=local)
        own = headers.get(b"x-accordion-key")
        found = self._match(own if own is not None else credential.encode("latin-1"))
        if found is None:
            raise Unauthorized(
                "This proxy needs one of its own keys: send it as the API key or in the x-accordion-key header."
            )
        if own is None or self._match(credential.encode("latin-1")) is not None:
            # The proxy key is not the provider's to see, also where a client sends it in both places.
            credential = ""
        return Caller(found, self.space(found), True, credential)

    def knows(self, value: bytes) -> bool:
        """Whether a header's value holds one of the proxy's own keys, which no provider must see."""
        return self._match(value[7:].strip() if value[:7].lower() == b"bearer " else value) is not None

    def name_of(self, space: bytes) -> str:
        """Whose space this is, of those who were identified here; empty for others."""
        return next((name for name, held in self._spaces.items() if held == space), "")

    def _match(self, given: bytes) -> str | None:
        # Every key is compared, in constant time each, so that timing tells nothing about which one came close.
        found = None
        for name, key in self._keys:
            if hmac.compare_digest(key, given):
                found = name
        return found

    def _hashed(self, credential: str) -> str:
        digest = hmac.new(self._secret, credential.encode("latin-1", "replace"), hashlib.sha256)
        return "c-" + digest.hexdigest()[:32]

    def space(self, tenant: str) -> bytes:
        """The key of a tenant, by its name."""
        space = self._spaces.get(tenant)
        if space is None:
            if len(self._spaces) >= 10_000:
                self._spaces.clear()
            space = hmac.new(self._secret, b"space:" + tenant.encode(), hashlib.sha256).digest()
            self._spaces[tenant] = space
        return space


def presented(headers: Mapping[bytes, bytes]) -> str:
    """The credential in a request's headers, whichever of the usual places it stands in; empty where there is none."""
    bearer = headers.get(b"authorization", b"")
    if bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip().decode("latin-1")
    for name in (b"x-api-key", b"api-key"):
        if value := headers.get(name):
            return value.decode("latin-1")
    return bearer.decode("latin-1")
