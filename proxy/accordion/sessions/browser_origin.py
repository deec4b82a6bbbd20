"""Reads the `Origin` header, by which a browser names the page that sends a request. A page cannot change it."""

from __future__ import annotations

import re
from ipaddress import ip_address

# The scheme and authority of a URL without credentials (RFC 3986 3.2), with nothing after them.
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):)?//(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\\]*))(?::(?P<port>[0-9]{0,5}))?",
    re.IGNORECASE,
)
_PORTS = {"http": 80, "https": 443}


def is_loopback_url(url: str) -> bool:
    """Whether a URL's host is this machine, by a name that no other host can have (RFC 6761 6.3)."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        return False
    name = (match["literal"] or match["name"] or "").lower().removesuffix(".")
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def url_port(url: str, scheme: str = "") -> int | None:
    """Returns the port of a URL, or the default port of its scheme (or of `scheme`, where it has none); else None."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        return None
    return int(match["port"]) if match["port"] else _PORTS.get((match["scheme"] or scheme).lower())


def is_web_site(origin: bytes) -> bool:
    """Whether an `Origin` is a web site, or `null`, which may hide one.

    Applications on this machine have schemes of their own, and pages served by this machine have a loopback address.
    """
    url = origin.decode("latin-1")
    return url.partition("://")[0].lower() in ("http", "https", "null") and not is_loopback_url(url)
