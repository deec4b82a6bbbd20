"""Identifies the caller of a request: its tenant, and the credential for the provider."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping

import msgspec

from accordion.model.cache import BoundedCache, string_size
from accordion.model.errors import KeysUnavailable, Unauthorized
from accordion.model.tenant import TenantScope
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKey, ProxyKeyRecord, hash_key, is_created_key
from accordion.sessions.request_origins import find_forwarding_sign, is_web_site

DEFAULT_TENANT = "default"
TENANTS = "tenants"
"""The collection that lists tenants by name."""

_CAPACITY, _SCOPE_BYTES = 8 * 2**20, 500
"""Bytes of all scopes in memory, and of one without its name."""

CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
"""The headers in which clients send a credential."""

OWNER_TOKEN_HEADER = b"x-accordion-token"
OWNER_TOKEN_FILE = "~/.local/state/accordion/token"  # noqa: S105  # a path
"""The file with the owner's token, which only the user that runs the proxy can read (cli/serve.py)."""

_NO_TENANT = ""
"""The tenant in a ticket of the owner's who has not chosen one yet."""
_ADMIN_ID = "*"
"""The id of the administrator's key in a ticket; no proxy key can have it."""
_EXPIRY = re.compile(r"[0-9a-f]{1,10}")

_log = logging.getLogger("accordion")


class Caller(msgspec.Struct, frozen=True):
    """The caller of a request.

    `has_proxy_key` is True if the caller presented a proxy key. `credential` is the caller's credential for the
    provider, empty if it presented only the proxy key. `is_local` is True if only this machine can be the caller.
    `can_erase` is True if the caller may erase and export what the tenant has.
    `key` is the record of the proxy key.
    """

    tenant: TenantScope
    has_proxy_key: bool
    credential: str
    is_local: bool = False
    can_erase: bool = False
    key: ProxyKeyRecord | None = None
    is_anonymous: bool = False
    """Whether nothing tells the caller from others, so that nothing is stored for it and it can read nothing."""

    @property
    def has_day_limit(self) -> bool:
        """Whether the caller's proxy key has a limit of tokens or dollars."""
        return self.key is not None and self.key.limits.has_day_limit

    @property
    def can_use_configured_keys(self) -> bool:
        """Whether requests use the keys and machine identities that the operator configured for models."""
        return self.has_proxy_key or self.is_local

    def __repr__(self) -> str:
        return f"Caller(tenant={self.tenant.name!r}, keyed={self.has_proxy_key})"


class Tenants:
    """Identifies callers and derives the scopes of tenants.

    If there are proxy keys or an `admin_key`, the tenant is that of the proxy key, and a request without one is
    refused. Keys of `created` are valid only beside an `admin_key`. Otherwise, on a loopback address, there is one
    tenant, except for requests of web sites and requests that came through another proxy. Otherwise the tenant is a
    keyed hash of the credential; a caller without one is anonymous. Claims in unverified tokens are ignored.

    Any program and any user of this machine can be the one local tenant. To erase and to export, such a caller also
    needs `owner_token`; if that is empty, nobody can. Without proxy keys, a ticket for that token opens the page, for
    any tenant that its owner chooses: the owner runs the machine, which has the store and its keys. It opens no API.
    """

    def __init__(
        self,
        secret: bytes,
        keys: tuple[ProxyKey, ...] = (),
        *,
        loopback: bool = True,
        admin_key: str = "",
        created: CreatedKeys | None = None,
        owner_token: str = "",
    ) -> None:
        self._secret = secret
        self.configured_keys = {
            key.id: ProxyKeyRecord(key.id, key.id, hash_key(key.key.encode()), limits=key.limits) for key in keys
        }
        """The keys of the configuration, by id."""
        self._admin = ProxyKeyRecord(_ADMIN_ID, "", hash_key(admin_key.encode())) if admin_key else None
        self._created = created if admin_key else None
        self._owner_token = owner_token.encode()
        self.has_proxy_keys = bool(keys or admin_key)
        """Whether callers need one of the proxy's own keys."""
        self.has_owner = bool(owner_token) and not self.has_proxy_keys
        """Whether the owner's token opens the page."""
        self.is_local_only = loopback and not self.has_proxy_keys
        """Whether only this machine can send requests, and no proxy key is required."""
        self._scopes = BoundedCache[str, TenantScope](_CAPACITY, lambda name, _: _SCOPE_BYTES + string_size(name))
        self._has_warned = False

    def identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Returns the caller of a request with these headers (by lower-case name).

        Raises Unauthorized, and KeysUnavailable if it is not known whether a key is valid.
        """
        credential = read_credential(headers)
        if not self.has_proxy_keys:
            # A web site that sends requests through a browser on this machine is not the person at this machine.
            origin = headers.get(b"origin")
            is_site = origin is not None and is_web_site(origin)
            is_local = self.is_local_only and not is_site and not self.find_forwarding(headers)
            tenant = DEFAULT_TENANT if is_local else self._hash_credential(credential)
            can_erase = not self.is_local_only or self._is_owner_token(headers.get(OWNER_TOKEN_HEADER, b""))
            return Caller(
                self.scope(tenant),
                False,
                credential,
                is_local=is_local,
                can_erase=can_erase,
                is_anonymous=not is_local and not credential,
            )
        own_header = headers.get(b"x-accordion-key")
        key = self._match_proxy_key(own_header if own_header is not None else credential.encode("latin-1"))
        if key is None:
            raise Unauthorized(
                "This proxy needs one of its own keys: send it as the API key or in the x-accordion-key header."
            )
        if own_header is None or (credential and self.is_proxy_key(credential.encode("latin-1"))):
            # The provider must not see the proxy key, even if a client sends it in both headers.
            credential = ""
        return Caller(self.scope(key.tenant), True, credential, can_erase=True, key=key)

    def find_forwarding(self, headers: Mapping[bytes, bytes]) -> str:
        """Returns what shows that a request which must be this machine's came through another proxy, so that anybody
        may have sent it; empty if nothing does, or if other machines can connect anyway. The first one is logged.
        """
        sign = find_forwarding_sign(headers) if self.is_local_only else ""
        if sign and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a request came through another proxy (%s), and no proxy_keys are configured: it is forwarded, but "
                "such callers get nothing that is stored, and the credential of each is a tenant of its own. "
                "Configure proxy_keys, and let callers send one",
                sign,
            )
        return sign

    def authorizes(self, headers: Mapping[bytes, bytes]) -> bool:
        """Returns whether the caller of a request with these headers may use the proxy at all."""
        try:
            self.identify(headers)
        except (Unauthorized, KeysUnavailable):
            return False
        return True

    @property
    def has_day_limits(self) -> bool:
        """Whether any proxy key has a limit of tokens or dollars."""
        if any(record.limits.has_day_limit for record in self.configured_keys.values()):
            return True
        return self._created is not None and self._created.has_day_limits

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Unauthorized unless a request with these headers has the administrator's key."""
        own_header = headers.get(b"x-accordion-key")
        value = own_header if own_header is not None else read_credential(headers).encode("latin-1")
        if not self._is_admin_key(hash_key(value)):
            raise Unauthorized(
                "This needs the administrator's key: send `admin_key` of the proxy's config as the API key."
                if self._admin is not None
                else "This is for administrators only: set `admin_key` in the proxy's config."
            )

    def is_proxy_key(self, value: bytes) -> bool:
        """Whether a header's value is one of the proxy's own keys, valid or not, which no provider must see."""
        value = value[7:].strip() if value[:7].lower() == b"bearer " else value
        digest = hash_key(value)
        return is_created_key(value) or self._is_admin_key(digest) or self._match_configured(digest) is not None

    def contains_proxy_key(self, text: str) -> bool:
        """Whether a WebSocket's subprotocol is one of the proxy's own keys, bare or after a dot."""
        starts = (0, *(match.end() for match in re.finditer(r"\.", text)))
        return self.has_proxy_keys and any(self.is_proxy_key(text[start:].encode()) for start in starts)

    def issue_ticket(self, key: str, until: float) -> str | None:
        """Returns a ticket for a browser in place of a proxy key, the administrator's key or the owner's token.

        None if the key is none of these. It is valid until `until` (seconds since the epoch), and as long as the key is
        valid. The key cannot be computed from it. Raises KeysUnavailable.
        """
        value = key.encode()
        if self._is_admin_key(hash_key(value)):
            record = self._admin
        elif self.has_proxy_keys:
            record = self._match_proxy_key(value)
        else:
            tenant = DEFAULT_TENANT if self.is_local_only else _NO_TENANT
            record = _owner_record(tenant, value) if self._is_owner_token(value) else None
        return None if record is None else self._make_ticket(record.id, record.digest, int(until))

    def choose_tenant(self, ticket: str, tenant: str, now: float) -> str | None:
        """Returns the owner's ticket for another tenant, valid as long as `ticket`; None if that is not the owner's."""
        if not self.is_owner_ticket(ticket, now):
            return None
        record = _owner_record(tenant, self._owner_token)
        return self._make_ticket(record.id, record.digest, int(ticket.partition(".")[0], 16))

    def find_by_ticket(self, ticket: str, now: float) -> Caller | None:
        """Returns the caller of a ticket; None if it is not valid (any more), the administrator's, or the owner's who
        has not chosen a tenant.

        Raises KeysUnavailable.
        """
        record = self._check_ticket(ticket, now)
        if record is None or record is self._admin or record.tenant == _NO_TENANT:
            return None
        return Caller(self.scope(record.tenant), self.has_proxy_keys, "", is_local=self.is_local_only, can_erase=True)

    def is_admin_ticket(self, ticket: str, now: float) -> bool:
        """Whether a ticket is valid and the administrator's. Raises KeysUnavailable."""
        return self._admin is not None and self._check_ticket(ticket, now) is self._admin

    def is_owner_ticket(self, ticket: str, now: float) -> bool:
        """Whether a ticket is valid and the owner's."""
        return not self.has_proxy_keys and self._check_ticket(ticket, now) is not None

    def _check_ticket(self, ticket: str, now: float) -> ProxyKeyRecord | None:
        """Returns the record of the key that a ticket was issued for; None if the ticket is not valid."""
        expiry_text, _, rest = ticket.partition(".")
        key_id = rest.rpartition(".")[0]
        if not _EXPIRY.fullmatch(expiry_text) or (expiry := int(expiry_text, 16)) <= now:
            return None
        record = self._find_record(key_id)
        if record is None:
            return None
        valid_ticket = self._make_ticket(key_id, record.digest, expiry)
        return record if hmac.compare_digest(valid_ticket.encode(), ticket.encode()) else None

    def _find_record(self, key_id: str) -> ProxyKeyRecord | None:
        """Returns the record of a proxy key, the administrator's key or the owner's token; None for an unknown id."""
        if key_id == _ADMIN_ID:
            return self._admin
        if not self.has_proxy_keys:
            return _owner_record(key_id, self._owner_token) if self._owner_token else None
        record = self.configured_keys.get(key_id)
        return self._created.find(key_id) if record is None and self._created is not None else record

    def _make_ticket(self, key_id: str, digest: bytes, expiry: int) -> str:
        content = f"ticket:{expiry}:{key_id}:".encode() + digest
        return f"{expiry:x}.{key_id}.{hmac.new(self._secret, content, hashlib.sha256).hexdigest()}"

    def _is_owner_token(self, value: bytes) -> bool:
        return bool(self._owner_token) and hmac.compare_digest(self._owner_token, value)

    def _match_proxy_key(self, value: bytes) -> ProxyKeyRecord | None:
        digest = hash_key(value)
        record = self._match_configured(digest)
        return self._created.match(value, digest) if record is None and self._created is not None else record

    def _match_configured(self, digest: bytes) -> ProxyKeyRecord | None:
        # Compares every key, each in constant time, so that the timing reveals nothing about a key.
        match = None
        for record in self.configured_keys.values():
            if hmac.compare_digest(record.digest, digest):
                match = record
        return match

    def _is_admin_key(self, digest: bytes) -> bool:
        return self._admin is not None and hmac.compare_digest(self._admin.digest, digest)

    def _hash_credential(self, credential: str) -> str:
        digest = hmac.new(self._secret, credential.encode("latin-1", "replace"), hashlib.sha256)
        return "c-" + digest.hexdigest()[:32]

    def scope(self, name: str) -> TenantScope:
        """Returns the scope of the tenant of this name."""
        scope = self._scopes.get(name)
        if scope is None:
            key = hmac.new(self._secret, b"space:" + name.encode(), hashlib.sha256).digest()
            scope = self._scopes[name] = TenantScope(name, key)
        return scope


def _owner_record(tenant: str, token: bytes) -> ProxyKeyRecord:
    """Returns the owner's token as the key of a tenant, in a ticket."""
    return ProxyKeyRecord(tenant, tenant, hash_key(token))


def read_credential(headers: Mapping[bytes, bytes]) -> str:
    """Returns the credential in a request's headers, from the first of the usual ones that has it; else empty."""
    bearer = headers.get(b"authorization", b"")
    if bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip().decode("latin-1")
    for name in CREDENTIAL_HEADERS[1:]:
        if value := headers.get(name):
            return value.decode("latin-1")
    return bearer.decode("latin-1")
