"""Whose page a browser asks for: it says so in `Origin`, and no page can make it say anything else."""

from __future__ import annotations

import re
from ipaddress import ip_address

# The scheme and authority of a URL without credentials (RFC 3986 3.2), and nothing behind them.
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):)?//(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\\]*))(?::(?P<port>[0-9]{0,5}))?",
    re.IGNORECASE,
)
_PORTS = {"http": 80, "https": 443}


def on_this_machine(url: str) -> bool:
    """Whether a URL's host is this machine by a name that can be nobody else's (RFC 6761 6.3)."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return False
    name = (found["literal"] or found["name"] or "").lower().removesuffix(".")
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def port_of(url: str, scheme: str = "") -> int | None:
    """The port of a URL, by its own scheme or `scheme` where it names none; None where there is none."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return None
    return int(found["port"]) if found["port"] else _PORTS.get((found["scheme"] or scheme).lower())


def of_a_site(origin: bytes) -> bool:
    """Whether an `Origin` is that of a web site, or may be one that hides itself (`null`). Applications on this machine
    have schemes of their own, and pages that are served here have its address."""
    url = origin.decode("latin-1")
    return url.partition("://")[0].lower() in ("http", "https", "null") and not on_this_machine(url)
