"""Tells from a request's headers where it comes from: this machine, a web site in a browser, or another proxy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

# The scheme and authority of a URL without credentials (RFC 3986 3.2), with nothing after them.
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):)?//(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\\]*))(?::(?P<port>[0-9]{0,5}))?",
    re.IGNORECASE,
)
_PORTS = {"http": 80, "https": 443}

HTTP_1_0_HEADER = b"x-accordion-http-1-0"
"""The header that `http/proxy_app.py` adds to requests of HTTP/1.0. It is never forwarded."""

FORWARDING_HEADERS = frozenset(
    {
        HTTP_1_0_HEADER,
        b"x-forwarded", b"x-forwarded-by", b"x-forwarded-client-cert", b"x-forwarded-email", b"x-forwarded-for",
        b"x-forwarded-groups", b"x-forwarded-host", b"x-forwarded-method", b"x-forwarded-path", b"x-forwarded-port",
        b"x-forwarded-prefix", b"x-forwarded-preferred-username", b"x-forwarded-proto", b"x-forwarded-protocol",
        b"x-forwarded-scheme", b"x-forwarded-server", b"x-forwarded-ssl", b"x-forwarded-tls-client-cert",
        b"x-forwarded-uri", b"x-forwarded-url", b"x-forwarded-user",
        # RFC 7239, RFC 9110 7.6.3, RFC 8586, and what came before them.
        b"forwarded", b"via", b"cdn-loop", b"forwarded-for", b"front-end-https", b"x-client-ip", b"x-cluster-client-ip",
        b"x-original-forwarded-for", b"x-original-host", b"x-original-uri", b"x-original-url", b"x-proxyuser-ip",
        b"x-real-ip", b"x-real-port", b"x-remote-addr", b"x-rewrite-url", b"x-scheme",
        # Akamai, Azure, Cloudflare, Envoy, Fastly, Fly, Google, Netlify, ngrok, Tailscale, WebLogic.
        b"true-client-ip", b"x-azure-clientip", b"x-azure-fdid", b"x-azure-socketip", b"cf-connecting-ip",
        b"cf-connecting-ipv6", b"cf-ipcountry", b"cf-ray", b"cf-visitor", b"x-envoy-external-address",
        b"x-envoy-internal", b"x-envoy-peer-metadata", b"fastly-client-ip", b"fly-client-ip", b"fly-forwarded-port",
        b"x-appengine-user-ip", b"x-nf-client-connection-ip", b"ngrok-trace-id", b"tailscale-user-login",
        b"wl-proxy-client-ip",
    }
)  # fmt: skip
"""Headers that reverse proxies, load balancers and tunnels add, and clients do not send."""

_MAX_HOST = 300
"""Bytes of the longest Host that can be a name: a name has at most 253 (RFC 1035 2.3.4)."""


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
    """Returns the port of a URL, or the default port of its scheme (or of `scheme`, if it has none); else None."""
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


def has_forwarding_header(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request has a header that proxies add."""
    return not FORWARDING_HEADERS.isdisjoint(headers)


def find_forwarding_sign(headers: Mapping[bytes, bytes]) -> str:
    """Returns what shows that another proxy passed a request on to an address that only this machine reaches.

    Empty if nothing does. It is a header that proxies add, a Host that does not name this machine, or HTTP/1.0: nginx
    before 1.29.7 speaks it by default and sends its upstream's address as Host, and clients have not spoken it for
    long. A later nginx that adds no header cannot be recognized. A Host with another port is no sign: it comes from a
    tunnel, such as that of `ssh -L`, which is its owner's alone.
    """
    if has_forwarding_header(headers):
        name = min(FORWARDING_HEADERS.intersection(headers))
        return "it is in HTTP/1.0" if name == HTTP_1_0_HEADER else f"it has the header {name.decode()}"
    host = headers.get(b"host")
    if host is None or (len(host) <= _MAX_HOST and _names_this_machine(host)):
        return ""
    return f"its Host is {host[:_MAX_HOST].decode('latin-1')!r}"


@lru_cache(64)
def _names_this_machine(host: bytes) -> bool:
    return is_loopback_url(f"//{host.decode('latin-1')}")
