"""Whose page a browser asks for: it says so in `Origin`, and no page can make it say anything else."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def on_this_machine(url: str) -> bool:
    """Whether a URL's host is this machine by a name that can be nobody else's (RFC 6761 6.3)."""
    try:
        name = (urlsplit(url).hostname or "").removesuffix(".")
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def of_a_site(origin: bytes) -> bool:
    """Whether an `Origin` is that of a web site, or may be one that hides itself (`null`). Applications on this machine
    have schemes of their own, and pages that are served here have its address."""
    url = origin.decode("latin-1")
    return url.partition("://")[0].lower() in ("http", "https", "null") and not on_this_machine(url)
