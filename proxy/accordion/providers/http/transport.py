"""HTTP/1.1 over aiohttp's connector (TLS, proxies, happy eyeballs) and parser, without its session and its pool.

A session would parse URL and headers again, store cookies, add headers of its own and cost twice as much. Here the
given head is written unchanged and the response is returned unchanged. `AiohttpTransport` sends a request to a
`ServerOrigin` on a `ProviderConnection`, an idle one of `IdleConnections` or a new one. It returns an
`IncomingResponse` when the head of the response has arrived. When the response has ended, its connection is idle again.
aiohttp's exceptions become those of transport_errors.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import socket
import ssl as tls
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic

import aiohttp
from yarl import URL

from accordion.model.ports import Headers
from accordion.providers.http.aiohttp_compat import (
    EMPTY_PAYLOAD,
    Connection,
    HttpProcessingError,
    RawResponseMessage,
    ResponseHandler,
    StreamReader,
    StreamWriter,
    connect,
    create_connector,
    create_connector_request,
    expect_response,
    take_rest,
)
from accordion.providers.http.transport_errors import (
    ConnectError,
    ConnectionBroken,
    ConnectTimeout,
    ProxyError,
    TransferTimeout,
    TransportError,
    UnsendableRequest,
    UnsupportedUrl,
    WriteError,
)
from accordion.providers.trusted_certificates import advise_on_certificates

# -- servers -----------------------------------------------------------------------------------------------------------


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
        """Returns the bytes of a request's head. Raises UnsendableRequest for a character that would break it."""
        headers += self._proxy_headers
        try:
            first = f"{method} {self._prefix}{target} HTTP/1.1".encode("latin-1")
        except UnicodeEncodeError as error:
            raise UnsendableRequest("the request target is not percent-encoded") from error
        head = b"\r\n".join((first, *map(b": ".join, headers), b"\r\n"))
        breaks = len(head) - len(head.translate(None, b"\0\r\n"))
        if " " in target or breaks != 2 * (len(headers) + 2):
            raise UnsendableRequest("the request target or a header holds a character that must not be there")
        return head


def split_url(url: str) -> tuple[str, str]:
    """Splits a URL into the server (`https://host:port`) and the unchanged request target.

    Raises UnsupportedUrl if it is not an http or https URL.
    """
    match = _URL.match(url)
    if match is None:
        raise UnsupportedUrl("the URL does not begin with http:// or https://; check the upstream's base URL")
    base, target = match.groups()
    return base, target if target.startswith("/") else "/" + target


def find_origin(base: str, trust_env: bool) -> ServerOrigin:
    """Returns the server at `base` (`https://host:port`). Raises UnsupportedUrl."""
    try:
        url = URL(base)
        port = url.port
    except ValueError as error:
        raise UnsupportedUrl("the URL has no valid host and port; check the upstream's base URL") from error
    if not url.host or port is None:
        raise UnsupportedUrl("the URL has no host; check the upstream's base URL")
    if url.raw_user is not None or url.raw_password is not None:
        raise UnsupportedUrl("the upstream's base URL holds credentials; give them as the model's api_key")
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
        raise UnsupportedUrl(
            "the URL of the HTTP proxy in the environment is not valid; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY"
        )
    if proxy.scheme not in {"http", "https"}:
        raise UnsupportedUrl(f"a {proxy.scheme} proxy is not supported; set an HTTP proxy or NO_PROXY")
    return proxy


# -- errors ------------------------------------------------------------------------------------------------------------


def _to_transport_error(error: Exception) -> Exception:
    """Returns the error for a failure on an open connection. Other errors (of a request's body) are unchanged."""
    if isinstance(error, TransportError):
        return error
    if isinstance(error, aiohttp.SocketTimeoutError):
        return TransferTimeout("nothing arrived within the read time-out")
    if isinstance(error, HttpProcessingError):
        return ConnectionBroken("the answer is not valid HTTP, or its head is too large")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ConnectionBroken("the connection was closed before the head of the reply was complete")
    if isinstance(error, aiohttp.ClientOSError):
        return ConnectionBroken(f"the connection broke ({_describe_os_error(error)})")
    if isinstance(error, aiohttp.ClientError | RuntimeError):
        return ConnectionBroken("the connection ended before the reply did")
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
    if isinstance(error, tls.SSLCertVerificationError):
        reason = error.verify_message or "the certificate is not valid"
        return f"its certificate is not trusted: {reason}; {advise_on_certificates()}"
    if isinstance(error, tls.SSLError):
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


# -- the transport -----------------------------------------------------------------------------------------------------


_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 9.2.2
_LARGEST_COPY = 64 * 1024  # a larger body is not copied behind its head
_MAX_ORIGINS = 1024
_LARGEST_WHOLE = 1024 * 1024
"""The largest body in bytes that is written at once. A larger one is written while the response is awaited."""

_SLICE = 256 * 1024


@dataclass(frozen=True, slots=True)
class TransportTimeouts:
    """Time-outs in seconds; None: no limit.

    `connect` covers name lookup, TCP and TLS. `read` is the longest silence between two arrivals of bytes. `write` is
    the longest time until the upstream accepts the next piece of a body that is streamed or larger than 1 MiB. A
    smaller body is written at once, and then its `read` time-out starts. A whole response has no limit.
    """

    connect: float | None = 10.0
    read: float | None = 600.0
    write: float | None = 60.0


class AiohttpTransport:
    """Connections to all upstreams.

    An idle connection stays open for `keepalive` seconds. Servers wait longer (uvicorn, Node: 5 s), so a request rarely
    uses a connection that the server is closing. The number of connections is not limited. `ssl` replaces the system's
    trust (which honours SSL_CERT_FILE). `trust_env` honours HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.
    """

    def __init__(
        self,
        timeouts: TransportTimeouts | None = None,
        *,
        keepalive: float = 4.0,
        ssl: tls.SSLContext | None = None,
        trust_env: bool = True,
    ) -> None:
        self._timeouts = timeouts or TransportTimeouts()
        self._connect_limits = aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect)
        self._idle = IdleConnections(keepalive)
        self._ssl = ssl
        self._trust_env = trust_env
        self._connector: aiohttp.TCPConnector | None = None
        self._closed = False
        self._origins: dict[str, ServerOrigin] = {}

    def locate(self, url: str) -> tuple[ServerOrigin, str]:
        """Splits a URL into the server and the unchanged request target.

        Raises UnsupportedUrl unless it is an http or https URL with a host and without credentials.
        """
        base, target = split_url(url)
        origin = self._origins.get(base)
        if origin is None:
            if len(self._origins) >= _MAX_ORIGINS:
                self._origins.clear()
            origin = self._origins[base] = find_origin(base, self._trust_env)
        return origin, target

    async def open(
        self,
        origin: ServerOrigin,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] = b"",
        length: int | None = None,
    ) -> IncomingResponse:
        """Sends a request with exactly these headers and waits for the head of the response.

        `length` is the length that the headers declare of a streamed body; None: it is sent chunked. Raises
        ConnectError, ConnectTimeout or ProxyError if nothing was sent, else ConnectionBroken, TransferTimeout,
        WriteError, UnsendableRequest, and any error of `body`.
        """
        head = origin.head(method, target, headers)
        while True:
            connection = self._idle.take(origin)
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect(origin)
            try:
                return await self._exchange(connection, method, head, body, length)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # RFC 9112 9.3.1: the server may have closed an idle connection while the request was on its way.
                if not (is_reused and isinstance(body, bytes) and method in _IDEMPOTENT):
                    raise _to_transport_error(error) from error
            except (aiohttp.ClientError, HttpProcessingError) as error:
                raise _to_transport_error(error) from error

    async def _connect(self, origin: ServerOrigin) -> ProviderConnection:
        if self._closed:
            raise ConnectError("the proxy is shutting down")
        connector = self._connector
        if connector is None:
            connector = self._connector = create_connector(self._ssl)
        try:
            connection = await connect(connector, origin.connector_request(), self._connect_limits)
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection within {self._timeouts.connect:g} s") from error
        except aiohttp.ClientHttpProxyError as error:
            raise ProxyError(f"the HTTP proxy answered {error.status} {error.message}") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise ConnectError(describe_connect_error(error)) from error
        if (protocol := connection.protocol) is None:
            raise ConnectError("the connection closed at once")
        return ProviderConnection(connection, protocol, origin, self._idle)

    async def _exchange(
        self,
        connection: ProviderConnection,
        method: str,
        head: bytes,
        body: bytes | AsyncIterator[bytes],
        length: int | None,
    ) -> IncomingResponse:
        protocol, transport = connection.protocol, connection.protocol.transport
        upload_task: asyncio.Task[None] | None = None
        try:
            if transport is None:
                raise aiohttp.ServerDisconnectedError
            expect_response(protocol, without_body=method == "HEAD", read_timeout=self._timeouts.read)
            if isinstance(body, bytes) and len(body) <= _LARGEST_WHOLE:
                if len(body) <= _LARGEST_COPY:
                    transport.write(head + body)
                else:
                    transport.writelines((head, body))
                protocol.start_timeout()
            else:
                transport.write(head)
                upload_task = _start_upload(protocol, body, length, self._timeouts.write)
            message, payload = await protocol.read()
            while message.code < 200:
                if message.code == 101:
                    raise ConnectionBroken("the upstream changed the protocol without being asked to")
                message, payload = await protocol.read()
        except BaseException:
            _abort_exchange(connection, upload_task)
            raise
        connection.body = payload
        return IncomingResponse(connection, message, payload, upload_task)

    async def close(self) -> None:
        """Closes all connections; responses that are still arriving are cut."""
        self._closed = True
        self._idle.close()
        if self._connector is not None:
            await self._connector.close()


class IncomingResponse:
    """A response whose head has arrived. It raises TransportError only.

    `is_delimited`: a length or the last chunk marks the end of the body. Otherwise the body ends with the connection.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_payload",
        "_read_size",
        "_upload",
        "headers",
        "is_delimited",
        "reason",
        "status",
    )

    def __init__(
        self,
        connection: ProviderConnection,
        message: RawResponseMessage,
        payload: StreamReader,
        upload: asyncio.Task[None] | None,
    ) -> None:
        self.status = message.code
        self.reason = message.reason or ""
        self.headers: Headers = message.raw_headers
        self.is_delimited = bool(message.chunked) or payload is EMPTY_PAYLOAD or "Content-Length" in message.headers
        self._connection: ProviderConnection | None = connection
        self._payload = payload
        self._upload = upload
        self._read_size = 0
        self._failure: Exception | None = None

    async def read(self) -> bytes:
        """Returns the bytes that have arrived since the last call, waiting for some; empty at the end of the body.

        Raises ConnectionBroken if the connection ended before the body did, and TransferTimeout.
        """
        if self._connection is None:
            if self._failure is not None:
                raise self._failure
            return b""
        if self.is_delimited and self._payload.is_eof():
            return self._read_buffered()
        try:
            piece = await self._payload.readany()
        except Exception as error:
            return self._read_before_error(error)
        if piece:
            self._read_size += len(piece)
            if self.is_delimited and self._payload.at_eof():
                # The last piece arrived together with the end of the body.
                self._release()
            return piece
        if isinstance(self._connection.protocol.exception(), aiohttp.ClientOSError):
            # A reset cut a body that lasts until the connection closes. The parser takes the reset for its end.
            self._fail(ConnectionBroken("the connection was reset in the middle of the reply"))
        else:
            self._release()
        return await self.read()

    def _read_buffered(self) -> bytes:
        """Returns the rest of a body that has arrived completely."""
        piece = self._payload.read_nowait()
        self._release()
        return piece

    def _read_before_error(self, error: Exception) -> bytes:
        """Returns the bytes that arrived before `error` and were not read yet."""
        if self._payload.total_bytes > self._read_size:
            remaining = take_rest(self._payload)
            self._read_size += len(remaining)
            return remaining
        raise self._fail(_to_transport_error(error)) from error

    def _fail(self, error: Exception) -> Exception:
        self._failure = error
        self._abort()
        return error

    def _release(self) -> None:
        """Makes the connection available for the next request, unless it cannot be used again."""
        if self._upload is not None and not self._upload.done():
            self._abort()
        elif self._connection is not None:
            self._connection.release()
            self._connection = None

    def _abort(self) -> None:
        if self._connection is not None:
            _abort_exchange(self._connection, self._upload)
            self._connection = None

    async def close(self) -> None:
        """Releases the connection; closes it at once if the response is unfinished, even with unsent bytes."""
        if self._connection is None:
            return
        if self._payload.is_eof() and self._payload.exception() is None:
            self._release()
        else:
            self._fail(ConnectionBroken("the reply was closed before its end"))


def _abort_exchange(connection: ProviderConnection, upload: asyncio.Task[None] | None) -> None:
    """Cancels the upload and closes the connection at once, without sending what is buffered."""
    if upload is not None:
        upload.cancel()
    connection.abort()


class IdleConnections:
    """The idle connections to each server. Each waits up to `keepalive` seconds for its next request.

    aiohttp's connector has a pool too, but that takes many times as long. Here the connector only opens connections; it
    considers all of them in use until they are closed.
    """

    def __init__(self, keepalive: float) -> None:
        self._keepalive = keepalive
        self._connections: dict[ServerOrigin, deque[ProviderConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, origin: ServerOrigin) -> ProviderConnection | None:
        """Removes and returns the connection that was used last, if one is usable. So the surplus ones expire."""
        connections = self._connections.get(origin)
        while connections:
            connection = connections.pop()
            if monotonic() - connection.since <= self._keepalive and connection.is_usable:
                return connection
            connection.close()
        return None

    def put(self, connection: ProviderConnection) -> None:
        """Adds a connection whose response has ended."""
        connection.since = monotonic()
        connections = self._connections.get(connection.origin)
        if connections is None:
            connections = self._connections[connection.origin] = deque()
        connections.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._sweep)

    def close(self) -> None:
        """Closes all idle connections."""
        if self._timer is not None:
            self._timer.cancel()
        for connections in self._connections.values():
            for connection in connections:
                connection.close()
        self._connections.clear()

    def _sweep(self) -> None:
        expiry = monotonic() - self._keepalive
        for origin, connections in list(self._connections.items()):
            while connections and connections[0].since <= expiry:
                connections.popleft().close()
            if not connections:
                del self._connections[origin]
        again = bool(self._connections)
        self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._sweep) if again else None


class ProviderConnection:
    """An open connection. `body` is that of the current or last response; `since` is when it ended (monotonic)."""

    __slots__ = ("_connection", "_has_input", "_idle", "body", "origin", "protocol", "since")

    def __init__(
        self, connection: Connection, protocol: ResponseHandler, origin: ServerOrigin, idle: IdleConnections
    ) -> None:
        self.protocol = protocol
        self.origin = origin
        self.body: StreamReader | None = None
        self.since = 0.0
        self._connection = connection
        self._idle = idle
        self._has_input: Callable[[], object] | None = None
        if (closed := protocol.closed) is not None:
            closed.add_done_callback(self._on_lost)

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent. Input on an idle connection is its end, or data without a request."""
        if self._has_input is None or self.protocol.should_close or not self.protocol.is_connected():
            return False
        return not self._has_input()

    def release(self) -> None:
        """Puts the connection among the idle ones after its response, or closes it if it cannot be used again."""
        transport = self.protocol.transport
        if self.protocol.should_close or transport is None or transport.is_closing():
            self.close()
            return
        if self._has_input is None:
            # Not earlier: a connection that is lost right after it was made has no socket.
            self._has_input = _readable_probe(transport)
        self._idle.put(self)

    def close(self) -> None:
        """Closes the connection after all buffered bytes are sent."""
        self._connection.close()

    def abort(self) -> None:
        """Closes the connection at once, without sending what is buffered."""
        self.protocol.abort()
        self._connection.close()

    def _on_lost(self, closed: asyncio.Future[None]) -> None:
        """Ends a pending read of the body with an error; aiohttp does not after malformed chunks."""
        if not closed.cancelled():
            closed.exception()
        body, self.body = self.body, None
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(str(self.protocol.exception() or "connection lost")))


def _readable_probe(transport: asyncio.Transport) -> Callable[[], object]:
    """Returns a function whose result is true if the socket has bytes to read."""
    descriptor = transport.get_extra_info("socket").fileno()
    if not hasattr(select, "poll"):
        return lambda: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)


def _start_upload(
    protocol: ResponseHandler, body: bytes | AsyncIterator[bytes], length: int | None, piece_timeout: float | None
) -> asyncio.Task[None]:
    """Writes `body` in the background, no faster than the upstream reads it.

    The body is sent chunked if `length` (in bytes) is None. The upstream may take up to `piece_timeout` seconds for
    each piece. Errors, those of `body` included, are raised where the response is awaited.
    """
    pieces: AsyncIterator[bytes | memoryview]
    pieces, length = (_slice_body(body), len(body)) if isinstance(body, bytes) else (body, length)
    task = asyncio.get_running_loop().create_task(_write(protocol, pieces, length, piece_timeout))

    def on_done(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        # An upstream that stops reading may have sent a response already. That response, or its absence, counts.
        if error is not None and not isinstance(error, aiohttp.ClientConnectionError | ConnectionError):
            protocol.set_exception(error)
            protocol.abort()

    task.add_done_callback(on_done)
    return task


async def _write(
    protocol: ResponseHandler,
    pieces: AsyncIterator[bytes | memoryview],
    length: int | None,
    piece_timeout: float | None,
) -> None:
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    if length is None:
        writer.enable_chunking()
    sent_size = 0
    async for piece in pieces:
        sent_size += len(piece)
        if length is not None and sent_size > length:
            raise WriteError("the request body is longer than its Content-Length")
        await _with_timeout(piece_timeout, writer.write(piece))
    if length is not None and sent_size < length:
        raise WriteError("the request body is shorter than its Content-Length")
    await _with_timeout(piece_timeout, writer.write_eof())
    protocol.start_timeout()


async def _with_timeout(piece_timeout: float | None, writing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(piece_timeout):
            await writing
    except TimeoutError as error:
        raise TransferTimeout(f"nothing of the request was taken for {piece_timeout:g} s") from error


async def _slice_body(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _SLICE):
        yield view[start : start + _SLICE]
