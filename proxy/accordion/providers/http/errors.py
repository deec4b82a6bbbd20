"""Translates aiohttp's exceptions to httpx's, and describes connection failures in plain words."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import aiohttp
import httpx

from accordion.providers.http.aiohttp_compat import HttpProcessingError


def to_httpx_error(error: Exception) -> Exception:
    """Returns the httpx error for a failure on an open connection. Other errors (of a request's body) are unchanged."""
    if isinstance(error, httpx.HTTPError):
        return error
    if isinstance(error, aiohttp.SocketTimeoutError):
        return httpx.ReadTimeout("nothing arrived within the read time-out")
    if isinstance(error, HttpProcessingError):
        return httpx.RemoteProtocolError("the answer is not valid HTTP, or its head is too large")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return httpx.RemoteProtocolError("the connection was closed before the head of the reply was complete")
    if isinstance(error, aiohttp.ClientOSError):
        return httpx.RemoteProtocolError(f"the connection broke ({_describe_os_error(error)})")
    if isinstance(error, aiohttp.ClientError | RuntimeError):
        return httpx.RemoteProtocolError("the connection ended before the reply did")
    return error


def describe_connect_error(error: Exception) -> str:
    """Returns why no connection could be made. The text names no address, URL or credential."""
    prefix = "the HTTP proxy: " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "its name could not be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "the certificate is not valid"
        return f"its certificate is not trusted: {reason}; SSL_CERT_FILE may name a file of trusted certificates"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no common ground'})"
    if isinstance(error, OSError):
        return prefix + _describe_os_error(error)
    if isinstance(error, UnicodeError):
        return "the name of a host is not valid"
    return "the connection failed"


def _describe_os_error(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "this proxy may not open any more files; raise its limit of open files (LimitNOFILE, ulimit -Hn)"
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else "no connection"
