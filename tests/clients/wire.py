"""Recorded connections: a recorder for both directions, and a parser for what it recorded."""

import asyncio
import contextlib
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"}
HOP_BY_HOP |= {"te", "trailer", "transfer-encoding", "upgrade"}
ADDED_BY_THE_PROXY = ("x-accordion-", "x-accel-buffering")
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Request:
    """One request as it stood on the wire; header names in lower case, a chunked body joined."""

    method: str
    target: str
    headers: Headers
    body: bytes
    complete: bool = True

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.split("?", 1)[0]

    @property
    def is_upgrade(self) -> bool:
        """Whether the client asked for a WebSocket."""
        return (self.header("upgrade") or "").lower() == "websocket"


@dataclass(frozen=True)
class Response:
    """One response as it stood on the wire; `complete` is false where its end never came."""

    status: int
    headers: Headers
    body: bytes
    complete: bool = True


@dataclass(frozen=True)
class Exchange:
    """A request, and its response where there was one."""

    request: Request
    response: Response | None
    at: float = field(default=0.0, compare=False)


@dataclass
class Recording:
    """The bytes of one connection: `up` is what the client sent, `down` what it got."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    closed: bool = False
    _times: list[tuple[int, float]] = field(default_factory=list)

    def sent(self, data: bytes) -> None:
        """Note what the client sent, and when."""
        self._times.append((len(self.up), time.monotonic()))
        self.up += data

    def clear(self) -> None:
        """Forget what was recorded; the connection goes on."""
        self.up.clear()
        self.down.clear()
        self._times.clear()

    def exchanges(self) -> Iterator[Exchange]:
        """The requests and responses of the connection, in order."""
        at_up = at_down = 0
        while at_up < len(self.up):
            began = self._times[bisect_right(self._times, (at_up, inf)) - 1][1]
            request, at_up = parse_request(self.up, at_up)
            if request is None:
                return
            response, at_down = parse_response(self.down, at_down, request.method)
            yield Exchange(request, response, began)


def parse_request(data: bytes | bytearray, at: int) -> tuple[Request | None, int]:
    """The request that starts at a place, and the place after it; None where its head is not there yet."""
    head = _head(data, at)
    if head is None:
        return None, len(data)
    first, headers, at = head
    method, target, _ = first.split(" ", 2)
    body, complete, at = _body(data, at, headers, until_close=False)
    return Request(method, target, headers, body, complete), at


def parse_response(data: bytes | bytearray, at: int, method: str) -> tuple[Response | None, int]:
    """The response that starts at a place, interim ones left out, and the place after it."""
    while True:
        head = _head(data, at)
        if head is None:
            return None, len(data)
        first, headers, at = head
        status = int(first.split(" ", 2)[1])
        if status >= 200:
            break
    if method == "HEAD" or status in (204, 304):
        return Response(status, headers, b""), at
    body, complete, at = _body(data, at, headers, until_close=True)
    return Response(status, headers, body, complete), at


def _head(data: bytes | bytearray, at: int) -> tuple[str, Headers, int] | None:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        return None
    first, *lines = bytes(data[at:end]).decode("latin-1").split("\r\n")
    headers = tuple((name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    return first, headers, end + 4


def _body(data: bytes | bytearray, at: int, headers: Headers, until_close: bool) -> tuple[bytes, bool, int]:
    known = dict(headers)
    if "chunked" in known.get("transfer-encoding", "").lower():
        return _chunks(data, at)
    if "content-length" in known:
        end = at + int(known["content-length"])
        return bytes(data[at:end]), len(data) >= end, min(end, len(data))
    if until_close:
        return bytes(data[at:]), True, len(data)
    return b"", True, at


def _chunks(data: bytes | bytearray, at: int) -> tuple[bytes, bool, int]:
    joined = bytearray()
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(bytes(data[at:end]).split(b";")[0], 16)
        at = end + 2
        if size == 0:
            last = data.find(b"\r\n", at)  # trailers are not used here
            return bytes(joined), last >= 0, last + 2 if last >= 0 else len(data)
        joined += data[at : at + size]
        if len(data) < at + size + 2:
            break
        at += size + 2
    return bytes(joined), False, len(data)


class ConnectionRecorder:
    """A loopback port that relays every connection to another one, byte for byte, and records it."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.recordings: list[Recording] = []
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End what is still open."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        record = Recording()
        self.recordings.append(record)
        other: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.CancelledError):
            other_reader, other = await asyncio.open_connection("127.0.0.1", self.target_port)
            pumps = [
                asyncio.ensure_future(_pump(reader, other, record.sent)),
                asyncio.ensure_future(_pump(other_reader, writer, record.down.extend)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        for end in (writer, other):
            if end is not None:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    end.close()
        self._open.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            note(data)
            writer.write(data)
            await writer.drain()


def end_to_end(headers: Headers) -> Headers:
    """The headers that a proxy must hand on: hop-by-hop ones, the host and the framing are left out, sorted by name."""
    named = dict(headers).get("connection", "").lower().replace(" ", "").split(",")
    kept = (
        (name, value)
        for name, value in headers
        if name not in HOP_BY_HOP
        and name not in named
        and name not in ("host", "content-length")
        and not name.startswith(ADDED_BY_THE_PROXY)
    )
    return tuple(sorted(kept, key=lambda header: header[0]))  # stable: equal names keep their order


def differences(client_side: list[Exchange], upstream_side: list[Exchange]) -> list[str]:
    """How the exchanges that a client had differ from those that the upstream had; empty where they are the same."""
    found: list[str] = []
    left = list(upstream_side)
    for exchange in client_side:
        twin = next((other for other in left if not _explained(exchange, other)), None)
        if twin is not None:
            left.remove(twin)
            continue
        nearest = next((other for other in left if other.request.target == exchange.request.target), None)
        if nearest is None:
            found.append(f"the client sent {_describe(exchange.request)}; the upstream never saw it")
        else:
            left.remove(nearest)
            found += _explained(exchange, nearest)
    found += [f"the upstream saw {_describe(other.request)}; the client never sent it" for other in left]
    return found


def in_order(recordings: list[Recording]) -> list[Exchange]:
    """The exchanges of several connections, by the time at which their requests began."""
    return sorted((exchange for record in recordings for exchange in record.exchanges()), key=lambda one: one.at)


def _describe(request: Request) -> str:
    return f"{request.method} {request.target} ({len(request.body)} bytes)"


def _explained(client: Exchange, upstream: Exchange) -> list[str]:
    found: list[str] = []
    name = _describe(client.request)
    asked, seen = client.request, upstream.request
    if (asked.method, asked.target) != (seen.method, seen.target):
        found.append(f"{name}: the upstream saw {seen.method} {seen.target}")
    if asked.body != seen.body:
        found.append(f"{name}: other body bytes upstream: {_first_difference(asked.body, seen.body)}")
    found += _header_differences(f"{name}, request", asked.headers, seen.headers)
    if asked.header("content-length") and asked.header("content-length") != seen.header("content-length"):
        found.append(f"{name}: content-length {asked.header('content-length')} became {seen.header('content-length')}")
    got, sent = client.response, upstream.response
    if got is None or sent is None:
        if sent is not None and sent.complete:
            found.append(f"{name}: the client got no response; the upstream sent a whole one")
        if got is not None and got.status != 502:  # all that a proxy can say for a provider that said nothing
            found.append(f"{name}: the client got a response {got.status}; the upstream sent none")
        return found
    if got.status != sent.status:
        found.append(f"{name}: status {sent.status} became {got.status}: {got.body[:300]!r}")
    found += _header_differences(f"{name}, response", sent.headers, got.headers)
    length = dict(sent.headers).get("content-length")
    if length is not None and dict(got.headers).get("content-length") != length:
        found.append(f"{name}: response content-length {length} became {dict(got.headers).get('content-length')}")
    if got.complete and sent.complete and got.body != sent.body:
        found.append(f"{name}: other response bytes: {_first_difference(sent.body, got.body)}")
    elif got.complete and not sent.complete:
        found.append(f"{name}: the upstream's response never ended, the client's copy did")
    elif not sent.complete and is_stream(sent) and _ERROR_EVENT.fullmatch(got.body.removeprefix(sent.body)):
        pass  # the proxy's one addition: a stream that the provider cut ends in an error event of the client's protocol
    elif not sent.body.startswith(got.body):
        found.append(f"{name}: other response bytes before the cut: {_first_difference(sent.body, got.body)}")
    return found


def _header_differences(name: str, before: Headers, after: Headers) -> list[str]:
    one, two = end_to_end(before), end_to_end(after)
    lost = [header for header in one if header not in two]
    added = [header for header in two if header not in one]
    if not lost and not added:
        return [] if one == two else [f"{name}: repeated headers changed: {one} became {two}"]
    return [f"{name}: headers lost {lost}, added {added}"]


def _first_difference(one: bytes, two: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"{len(one)} and {len(two)} bytes, from {at}: {one[at : at + 60]!r} and {two[at : at + 60]!r}"


def is_stream(response: Response) -> bool:
    """Whether a response is a stream of events."""
    return dict(response.headers).get("content-type", "").startswith("text/event-stream")


_ERROR_EVENT = re.compile(rb'(event: (error|response\.failed)\n)?data: \{[^\n]*"error"[^\n]*\}\n\n')
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_BOUNDARY = re.compile(r"boundary=\"?([^\";]+)")


def comparable(exchange: Exchange) -> Exchange:
    """The same exchange with what is random in every run (UUIDs, multipart boundaries) and the added headers out."""
    request = exchange.request
    boundary = _BOUNDARY.search(request.header("content-type") or "")
    marks = [_UUID] + ([re.compile(re.escape(boundary[1]).encode())] if boundary else [])

    def clean(text: bytes) -> bytes:
        for mark in marks:
            text = mark.sub(b"<random>", text)
        return text

    def headers(given: Headers) -> Headers:
        return tuple((name, clean(value.encode("latin-1")).decode("latin-1")) for name, value in end_to_end(given))

    response = exchange.response
    return Exchange(
        replace(request, headers=headers(request.headers), body=clean(request.body)),
        response and replace(response, headers=headers(response.headers)),
    )


def alike(one: Exchange, other: Exchange) -> bool:
    """Whether two comparable exchanges are the same; where a client left early, as far as both were recorded."""
    if one.request != other.request or one.response is None or other.response is None:
        return one == other
    a, b = one.response, other.response
    if (a.status, a.headers) != (b.status, b.headers):
        return False
    if a.complete and b.complete:
        return a.body == b.body
    return a.body.startswith(b.body) or b.body.startswith(a.body)
