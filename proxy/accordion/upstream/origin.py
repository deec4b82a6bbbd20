"""Where requests go: a server, the HTTP proxy on the way to it, and what a request's head looks like there."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import aiohttp
import httpx
from yarl import URL

from accordion.core.ports import Headers

_URL = re.compile(r"(https?://[^/?#]*)([^#]*)", re.IGNORECASE)


class Origin:
    """A server. `host` is what stands in the Host header, and all that messages may say of a URL; `proxy` is the HTTP
    proxy on the way to it, with its credentials, or None."""

    __slots__ = ("_added", "_authorization", "_place", "_prefix", "_proxy", "_url", "host", "proxy")

    def __init__(self, url: URL, proxy: URL | None) -> None:
        self.host = url.host_port_subcomponent or ""
        self.proxy = proxy
        self._url = url
        self._proxy = proxy.with_user(None) if proxy is not None else None
        self._authorization = ""
        if proxy is not None and proxy.user:
            self._authorization = aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
        # RFC 9112 3.2.2: a proxy without a tunnel is told the whole URL.
        self._prefix = str(url.origin()) if proxy is not None and url.scheme == "http" else ""
        self._added: Headers = ()
        if self._prefix and self._authorization:
            self._added = ((b"Proxy-Authorization", self._authorization.encode()),)
        self._place: aiohttp.ClientRequest | None = None

    def place(self) -> aiohttp.ClientRequest:
        """The same for aiohttp's connector, which asks for it in the shape of a request."""
        if self._place is not None:
            return self._place
        authorization = {"Proxy-Authorization": self._authorization} if self._authorization else None
        place = aiohttp.ClientRequest(
            "GET",
            self._url,
            loop=asyncio.get_running_loop(),
            proxy=self._proxy,
            proxy_headers=authorization,
        )
        if self._proxy is None:  # the connector writes into one that goes through a proxy
            self._place = place
        return place

    def head(self, method: str, target: str, headers: Headers) -> bytes:
        """The head of a request, as it goes out. Raises LocalProtocolError for what would not be one head."""
        headers += self._added
        try:
            first = f"{method} {self._prefix}{target} HTTP/1.1".encode("latin-1")
        except UnicodeEncodeError as error:
            raise httpx.LocalProtocolError("the request target is not percent-encoded") from error
        head = b"\r\n".join((first, *map(b": ".join, headers), b"\r\n"))
        breaks = len(head) - len(head.translate(None, b"\0\r\n"))
        if " " in target or breaks != 2 * (len(headers) + 2):
            raise httpx.LocalProtocolError("the request target or a header holds a character that must not be there")
        return head


def parted(url: str) -> tuple[str, str]:
    """The server's part of a URL (`https://host:port`), and the request target exactly as it stands there.

    Raises UnsupportedProtocol for what is not an http or https URL.
    """
    match = _URL.match(url)
    if match is None:
        raise httpx.UnsupportedProtocol(
            "the URL does not begin with http:// or https://; check the upstream's base URL"
        )
    base, target = match.groups()
    return base, target if target.startswith("/") else "/" + target


def find_origin(base: str, trust_env: bool) -> Origin:
    """The server that `base` (`https://host:port`) names. Raises UnsupportedProtocol."""
    try:
        url = URL(base)
        port = url.port
    except ValueError as error:
        raise httpx.UnsupportedProtocol("the URL has no valid host and port; check the upstream's base URL") from error
    if not url.host or port is None:
        raise httpx.UnsupportedProtocol("the URL has no host; check the upstream's base URL")
    if url.raw_user is not None or url.raw_password is not None:
        raise httpx.UnsupportedProtocol("the upstream's base URL holds credentials; give them as the model's api_key")
    return Origin(url, _proxy(url) if trust_env else None)


def _proxy(url: URL) -> URL | None:
    """The HTTP proxy that the environment names for `url`, if any."""
    proxies = urllib.request.getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    if not found or urllib.request.proxy_bypass(f"{url.host}:{url.port}"):
        return None
    try:
        proxy = URL(found if "://" in found else f"http://{found}")
        plain = bool(proxy.host) and proxy.raw_path_qs in ("", "/") and not proxy.raw_fragment
    except ValueError:
        plain = False
    if not plain:
        # Not with the ValueError as its context, which may quote a part of the password.
        raise httpx.UnsupportedProtocol(
            "the URL of the HTTP proxy in the environment is not valid; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY"
        )
    if proxy.scheme not in {"http", "https"}:
        raise httpx.UnsupportedProtocol(f"a {proxy.scheme} proxy is not supported; set an HTTP proxy or NO_PROXY")
    return proxy
