"""A server's origin: its host, the HTTP proxy on the way to it, and the head of a request to it."""

from __future__ import annotations

import re
import urllib.request

import aiohttp
import httpx
from yarl import URL

from accordion.model.ports import Headers
from accordion.providers.http.aiohttp_compat import create_connector_request

_URL = re.compile(r"(https?://[^/?#]*)([^#]*)", re.IGNORECASE)


class ServerOrigin:
    """A server. `host` is the Host header's value, and the only part of a URL that error messages may name.

    `proxy` is the HTTP proxy on the way to the server, with its credentials, or None.
    """

    __slots__ = ("_authorization", "_connector_request", "_prefix", "_proxy", "_proxy_headers", "_url", "host", "proxy")

    def __init__(self, url: URL, proxy: URL | None) -> None:
        self.host = url.host_port_subcomponent or ""
        self.proxy = proxy
        self._url = url
        self._proxy = proxy.with_user(None) if proxy is not None else None
        self._authorization = ""
        if proxy is not None and proxy.user:
            self._authorization = aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
        # RFC 9112 3.2.2: a request to a proxy without a tunnel names the whole URL.
        self._prefix = str(url.origin()) if proxy is not None and url.scheme == "http" else ""
        self._proxy_headers: Headers = ()
        if self._prefix and self._authorization:
            self._proxy_headers = ((b"Proxy-Authorization", self._authorization.encode()),)
        self._connector_request: aiohttp.ClientRequest | None = None

    def connector_request(self) -> aiohttp.ClientRequest:
        """Returns this origin as the request object that aiohttp's connector expects."""
        if self._connector_request is not None:
            return self._connector_request
        request = create_connector_request(self._url, self._proxy, self._authorization)
        if self._proxy is None:  # the connector modifies a request that goes through a proxy
            self._connector_request = request
        return request

    def head(self, method: str, target: str, headers: Headers) -> bytes:
        """Returns the bytes of a request's head. Raises LocalProtocolError for a character that would break it."""
        headers += self._proxy_headers
        try:
            first = f"{method} {self._prefix}{target} HTTP/1.1".encode("latin-1")
        except UnicodeEncodeError as error:
            raise httpx.LocalProtocolError("the request target is not percent-encoded") from error
        head = b"\r\n".join((first, *map(b": ".join, headers), b"\r\n"))
        breaks = len(head) - len(head.translate(None, b"\0\r\n"))
        if " " in target or breaks != 2 * (len(headers) + 2):
            raise httpx.LocalProtocolError("the request target or a header holds a character that must not be there")
        return head


def split_url(url: str) -> tuple[str, str]:
    """Splits a URL into the server (`https://host:port`) and the unchanged request target.

    Raises UnsupportedProtocol if it is not an http or https URL.
    """
    match = _URL.match(url)
    if match is None:
        raise httpx.UnsupportedProtocol(
            "the URL does not begin with http:// or https://; check the upstream's base URL"
        )
    base, target = match.groups()
    return base, target if target.startswith("/") else "/" + target


def find_origin(base: str, trust_env: bool) -> ServerOrigin:
    """Returns the server at `base` (`https://host:port`). Raises UnsupportedProtocol."""
    try:
        url = URL(base)
        port = url.port
    except ValueError as error:
        raise httpx.UnsupportedProtocol("the URL has no valid host and port; check the upstream's base URL") from error
    if not url.host or port is None:
        raise httpx.UnsupportedProtocol("the URL has no host; check the upstream's base URL")
    if url.raw_user is not None or url.raw_password is not None:
        raise httpx.UnsupportedProtocol("the upstream's base URL holds credentials; give them as the model's api_key")
    return ServerOrigin(url, _find_proxy(url) if trust_env else None)


def _find_proxy(url: URL) -> URL | None:
    """Returns the HTTP proxy that the environment sets for `url`, if any."""
    proxies = urllib.request.getproxies()
    setting = proxies.get(url.scheme) or proxies.get("all")
    if not setting or urllib.request.proxy_bypass(f"{url.host}:{url.port}"):
        return None
    try:
        proxy = URL(setting if "://" in setting else f"http://{setting}")
        is_plain = bool(proxy.host) and proxy.raw_path_qs in ("", "/") and not proxy.raw_fragment
    except ValueError:
        is_plain = False
    if not is_plain:
        # Raised outside the `except`: the ValueError as its context may quote a part of the password.
        raise httpx.UnsupportedProtocol(
            "the URL of the HTTP proxy in the environment is not valid; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY"
        )
    if proxy.scheme not in {"http", "https"}:
        raise httpx.UnsupportedProtocol(f"a {proxy.scheme} proxy is not supported; set an HTTP proxy or NO_PROXY")
    return proxy
