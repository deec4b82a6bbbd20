"""The failures of a connection to a provider, in plain words. No text names an address, a URL or a credential."""

from __future__ import annotations


class TransportError(Exception):
    """A request to a provider that failed on its connection."""


class ConnectError(TransportError):
    """No connection could be made, so nothing was sent."""


class ConnectTimeout(TransportError):
    """No connection was made in time, so nothing was sent."""


class ProxyError(TransportError):
    """The HTTP proxy on the way refused the connection, so nothing was sent."""


class UnsupportedUrl(TransportError):
    """The URL, or the URL of the HTTP proxy on the way, cannot be used."""


class UnsendableRequest(TransportError):
    """The request's target or a header has a character that would break HTTP."""


class WriteError(TransportError):
    """The request's body does not have the length that its headers declare."""


class TransferTimeout(TransportError):
    """Nothing was sent, or nothing arrived, within the time-out."""


class ConnectionBroken(TransportError):
    """The connection ended before the response did, or the response is not valid HTTP."""
