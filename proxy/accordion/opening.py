"""How a reply opens: a provider's overflow error is found before the client has seen anything.

Only then can the request be folded and sent once more. What is read for it is a copy; the reply goes on as it came.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from accordion.accounting.overflow import NEVER, Overflow, read_overflow
from accordion.core.ports import UpstreamReply
from accordion.core.values import dataclass
from accordion.dialects.base import Dialect, Tap
from accordion.dialects.encodings import Decoder, decoded
from accordion.dialects.keys import read
from accordion.dialects.shared import entries, error_text, mapping
from accordion.dialects.sse import Event, Events, parse, pieces
from accordion.relay import content, length_of

_log = logging.getLogger("accordion")

MOST_IDLE = 4
"""How many comments and pings are held in a row. They are sent so that nobody gives up waiting."""
SMALL = 65_536
"""How long a whole document (no stream, no error) may be that is waited for, in bytes."""

# Events that open a reply and hold no content (Responses, Messages), and those that only keep it alive.
_OPENING = frozenset({"response.created", "response.in_progress", "response.queued", "message_start"})
_IDLE = frozenset({"ping", "keepalive"})
_FULL = frozenset({"model_context_window_exceeded"})
_SPOKEN = ("content", "output", "tool_calls", "function_call", "refusal", "reasoning_content", "reasoning", "audio")


@dataclass(frozen=True, slots=True)
class Opened:
    """A reply that still gives everything, what was read of it included, and the overflow that it tells of."""

    reply: UpstreamReply
    overflow: Overflow | None
    refusal: bytes = b""
    """The whole body of an error, without content encoding, where it was read and tells of no overflow."""


async def opened(reply: UpstreamReply, dialect: Dialect, *, near: bool, max_bytes: int = 1 << 20) -> Opened:
    """Reads the beginning of a reply, as far as it takes to know whether it says that the request was too long.

    Of an error (from 400 on) the whole body is read. Where the request is `near` its window, an event stream is held
    until its first event that does more than open it or keep it alive, and a small document is read whole; where it
    is not near, neither is touched. At most `max_bytes` are held, and never a part of a reply that has begun to say
    something. What goes wrong while reading is raised to whoever reads the reply returned, behind what came before it.
    Cancelled, it closes the reply; else that is the caller's to do, of the reply returned, also before another try.
    """
    if reply.status >= 400:
        if reply.status in NEVER or length_of(reply.headers) > max_bytes:
            return Opened(reply, None)
        _, encoding = content(reply.headers)
        return await _judged(_Opening(reply), _Whole(reply.status, encoding, near, dialect), max_bytes)
    if not near or not 200 <= reply.status < 300:
        return Opened(reply, None)
    kind, encoding = content(reply.headers)
    if kind == "text/event-stream":
        return await _judged(_Opening(reply), _Stream(dialect, encoding, max_bytes), max_bytes)
    if kind.endswith("json") and 0 < length_of(reply.headers) < min(SMALL, max_bytes + 1):
        return await _judged(_Opening(reply), _Whole(reply.status, encoding, near, dialect), max_bytes)
    return Opened(reply, None)


class _Opening:
    """An UpstreamReply whose first pieces were read already."""

    __slots__ = ("_held", "_pieces", "_reply", "delimited", "failure", "headers", "size", "status")

    def __init__(self, reply: UpstreamReply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self.delimited = reply.delimited
        self.size = 0
        self._reply = reply
        self._pieces = reply.chunks()
        self._held: deque[bytes] = deque()
        self.failure: Exception | None = None

    async def more(self) -> bytes | None:
        """Reads and holds one more piece; None at the end, or where reading failed, which is held likewise."""
        try:
            piece = await anext(self._pieces, None)
        except Exception as error:
            self.failure = error
            return None
        if piece is not None:
            self._held.append(piece)
            self.size += len(piece)
        return piece

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body in pieces: those held, as they came, then the rest as it arrives."""
        while self._held:
            yield self._held.popleft()
        if self.failure is not None:
            raise self.failure
        async for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        """Lets go of the real reply."""
        try:
            # While a piece is waited for it cannot be closed; then closing the reply ends the wait.
            with suppress(RuntimeError):
                await self._pieces.aclose()
        finally:
            await self._reply.close()


class _Whole:
    """Understands a body once it is whole: an error's, or that of an answer in one document."""

    def __init__(self, status: int, encoding: str, near: bool, dialect: Dialect) -> None:
        self.decided = False
        self._status, self._encoding, self._near, self._dialect = status, encoding, near, dialect
        self._body = bytearray()
        self.refusal = b""

    def feed(self, piece: bytes) -> None:
        self._body += piece

    def overflow(self, limit: int) -> Overflow | None:
        body = decoded(bytes(self._body), self._encoding, limit)
        if body is None:
            return None
        if self._status >= 400:
            self.refusal = body
            return read_overflow(self._status, body.decode(errors="replace"), near=self._near)
        return _said(body, self._dialect.tap(stream=False), body)


class _Stream:
    """Understands the beginning of an event stream, up to the first event that is more than a beginning."""

    refusal = b""

    def __init__(self, dialect: Dialect, encoding: str, limit: int) -> None:
        self.decided = False
        self._dialect = dialect
        self._decoder = Decoder(encoding, limit)
        self._events = Events(limit)
        self._idle = 0
        self._overflow: Overflow | None = None

    def feed(self, piece: bytes) -> None:
        block = self._events.feed(self._decoder.feed(piece))
        self._take(block)
        self.decided = self.decided or not self._decoder.readable

    def overflow(self, limit: int) -> Overflow | None:
        if not self.decided:
            # The stream ended; its last event may lack the empty line.
            self._take(self._events.flush())
        return self._overflow

    def _take(self, block: bytes) -> None:
        for piece in pieces(block):
            if self.decided:
                return
            event = parse(piece)
            if event is not None:
                self._judge(event, piece)
            elif piece.strip(b"\n"):
                self._kept_alive()

    def _judge(self, event: Event, piece: bytes) -> None:
        kind = mapping(_json(event.data)).get("type")
        if kind in _OPENING:
            self._idle = 0
        elif kind in _IDLE:
            self._kept_alive()
        else:
            self.decided = True
            if event.name == b"error":
                self._overflow = read_overflow(200, event.data.decode(errors="replace"))
            else:
                self._overflow = _said(event.data, self._dialect.tap(stream=True), piece + b"\n\n")

    def _kept_alive(self) -> None:
        self._idle += 1
        self.decided = self._idle > MOST_IDLE


async def _judged(reply: _Opening, judge: _Whole | _Stream, max_bytes: int) -> Opened:
    """Reads until `judge` has decided, or the body ends, fails or is too long."""
    try:
        while not judge.decided and (piece := await reply.more()) is not None:
            if reply.size > max_bytes:
                return Opened(reply, None)
            judge.feed(piece)
        if reply.failure is not None:
            return Opened(reply, None)
        overflow = judge.overflow(max_bytes)
        return Opened(reply, overflow, judge.refusal if overflow is None else b"")
    except Exception:
        # Listening is a favour; the reply goes on unheard.
        _log.exception("the beginning of a response could not be read; it is passed on unchanged")
        return Opened(reply, None)
    except BaseException:
        await reply.close()
        raise


def _said(body: bytes, tap: Tap, heard: bytes) -> Overflow | None:
    """What a document or an event's data says of the window: an error does, and an answer that ended for lack of room
    before it held anything. `heard` is what the tap is given of it."""
    data = _json(body)
    tap.feed(heard)
    seen = tap.seen()
    if seen.error or error_text(data):
        return read_overflow(200, body.decode(errors="replace"))
    return Overflow() if seen.finish in _FULL and _silent(mapping(data)) else None


def _json(raw: bytes) -> Any:
    try:
        return read(raw)
    except ValueError:
        return None


def _silent(data: dict[str, Any]) -> bool:
    """Whether an answer, or the piece of one, holds nothing that a model said."""
    choices = [mapping(choice) for choice in entries(data.get("choices"))]
    said = [data, mapping(data.get("response"))]
    said += [mapping(choice.get(name)) for choice in choices for name in ("delta", "message")]
    return not any(part.get(name) for part in said for name in _SPOKEN)
