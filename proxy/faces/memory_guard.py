"""Who may ask for memories: a browser only from a page of this proxy's own address, so that no web site reads them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from proxy.core.errors import RequestError
from proxy.identity.tenants import Caller


class Foreign(RequestError):
    """A browser asks in the name of another site."""

    status = 403
    type = "permission_error"
    code = "foreign_origin"


def check_origin(headers: Mapping[bytes, bytes], caller: Caller) -> None:
    """Raises Foreign for a request of another site's page, and, where only this machine can ask, for one by a name
    that is not this machine's: a site may have its name lead here."""
    host = headers.get(b"host", b"").decode("latin-1")
    if caller.local and not _is_loopback(f"//{host}"):
        raise Foreign(
            f"Host {host[:100]!r} is no name of this machine. Ask by http://127.0.0.1, or configure proxy_keys and a "
            "server.host that others reach."
        )
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and origin.partition("://")[2] != host and not (caller.local and _is_loopback(origin)):
        raise Foreign(f"Pages of {origin[:100]!r} may not ask this proxy.")


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
