"""A loopback provider: answers by rule, records every byte, can be slow, cut its answer, or wait until one leaves."""

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import replies
from wire import ConnectionRecorder, Exchange, Recording, Request, in_order, parse_request

T = TypeVar("T")
Rule = Callable[[Request], "replies.Reply | None"]
PATIENCE = 30.0


@dataclass
class ReceivedRequest:
    """One request that arrived, and whether its client left before the answer was through."""

    request: Request
    left: bool = False
    answered: bool = False


class Upstream:
    """The provider's end. It runs in a thread of its own; the public methods may be called from any thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="upstream", daemon=True)
        self._thread.start()
        self.port = 0
        self.rule: Rule | None = None
        self.script: list[replies.Reply] = []
        self.sockets = ""
        """What is done with upgrades: `` (refused), `echo`, or `responses` (Responses over the socket)."""
        self.messages: list[str] = []
        """The messages that came over sockets of Responses."""
        self.received: list[ReceivedRequest] = []
        self._recordings: list[Recording] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the upstream's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    def start(self) -> None:
        """Listen on a free port."""
        self.call(self._start())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """End everything."""
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Forget rules and requests of the test before; connections that a client keeps open stay."""
        self.rule, self.script, self.received, self.sockets, self.messages = None, [], [], "", []
        self._recordings = [recording for recording in self._recordings if not recording.closed]
        for recording in self._recordings:
            recording.clear()

    def record_connections(self, port: int) -> ConnectionRecorder:
        """A recording relay in front of a port."""
        recorder = ConnectionRecorder(port)
        self.call(recorder.start())
        return recorder

    def exchanges(self) -> list[Exchange]:
        """All requests and responses since the reset."""
        return in_order(list(self._recordings))

    def wait_for(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Wait, up to a generous bound, until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        recording = Recording()
        self._recordings.append(recording)
        client = _Client(reader, writer, recording)
        listener = asyncio.ensure_future(client.listen())
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while (request := await client.next_request()) is not None:
                seen = ReceivedRequest(request)
                self.received.append(seen)
                number = len(self.received)
                if request.is_upgrade and self.sockets:
                    await (client.echo(request, seen) if self.sockets == "echo" else self._converse(client, request))
                    break
                if not await client.send(self._reply(request), request, number, seen):
                    break
        listener.cancel()
        recording.closed = True
        with contextlib.suppress(OSError):
            writer.close()
        self._tasks.discard(task)

    async def _converse(self, client: "_Client", upgrade: Request) -> None:
        """Speaks Responses over a socket, by the rule for requests over HTTP.

        The connection knows its last response, as a provider's does where nothing is stored.
        """
        client.accept(upgrade)
        last_id, last_items = "", list[Any]()
        while (frame := await client.frame()) is not None:
            kind, payload = frame
            if kind != 0x1:
                client.write_frame({0x9: 0xA}.get(kind, kind), payload)
                continue
            self.messages.append(payload.decode())
            body = json.loads(payload)
            previous = body.pop("previous_response_id", None)
            if previous not in (None, last_id):
                error = {"code": "previous_response_not_found", "message": f"No response {previous}"}
                client.write_text(json.dumps({"type": "error", "status": 400, "error": error}))
                continue
            body["input"] = [*(last_items if previous else []), *body["input"]]
            is_warm, body["stream"] = body.pop("generate", True) is False, True
            request = replace(upgrade, method="POST", headers=(), body=json.dumps(body).encode())
            seen = ReceivedRequest(request)
            reply = replies.warmed(body) if is_warm else self._reply(request)
            if not is_warm:
                self.received.append(seen)
            for event in replies.data_of(reply):
                client.write_text(event)
            response = json.loads(event).get("response", {})
            last_id, last_items = response.get("id", ""), [*body["input"], *response.get("output", ())]
            seen.answered = True

    def _reply(self, request: Request) -> "replies.Reply":
        try:
            if request.is_upgrade:
                return replies.refused_upgrade()
            by_rule = self.rule(request) if self.rule else None
            if by_rule is not None:
                return by_rule
            if self.script and request.method == "POST":
                return self.script.pop(0)
            return replies.default(request)
        except Exception as error:  # a fault of these tests must show in the client, not hang it
            return replies.failure(599, "fault_in_the_loopback_upstream", repr(error))


class _Client:
    """The upstream's view of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, recording: Recording) -> None:
        self._reader, self._writer, self._recording = reader, writer, recording
        self._pending = bytearray()
        self._more = asyncio.Event()
        self.gone = asyncio.Event()

    async def listen(self) -> None:
        """Collect what the client sends until it leaves."""
        with contextlib.suppress(OSError):
            while data := await self._reader.read(65536):
                self._recording.sent(data)
                self._pending += data
                self._more.set()
        self.gone.set()
        self._more.set()

    async def next_request(self) -> Request | None:
        """The next whole request; None once the client has left."""
        while True:
            request, end = parse_request(self._pending, 0)
            if request is not None and request.complete:
                del self._pending[:end]
                return request
            if self.gone.is_set():
                return None
            self._more.clear()
            await self._more.wait()

    async def send(self, reply: "replies.Reply", request: Request, number: int, seen: ReceivedRequest) -> bool:
        """Write an answer; false where the connection is to be closed after it."""
        if reply.silent:
            return False
        if reply.late and await self._left_within(reply.late):
            seen.left = True
            return False
        self._write(reply.head(number))
        if request.method == "HEAD":
            return True
        for piece in reply.pieces:
            if isinstance(piece, float):
                await self._left_within(piece)
            elif not self.gone.is_set():
                self._write(reply.framed(piece))
                await self._writer.drain()
            if self.gone.is_set():
                seen.left = True
                return False
        if reply.cut:
            return False
        self._write(reply.end())
        await self._writer.drain()
        seen.answered = True
        return not reply.hangs_up

    async def echo(self, request: Request, seen: ReceivedRequest) -> None:
        """Accept a WebSocket and send back every message until the client closes it."""
        self.accept(request)
        while (frame := await self.frame()) is not None:
            kind, payload = frame
            self.write_frame({0x9: 0xA}.get(kind, kind), payload)
            if kind == 0x8:
                break
        seen.left = self.gone.is_set()
        seen.answered = True

    def accept(self, request: Request) -> None:
        """Accepts a WebSocket."""
        key = (request.header("sec-websocket-key") or "").encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
        answer = (
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\nX-Request-Id: req_ws\r\n"
        )
        self._write(f"HTTP/1.1 101 Switching Protocols\r\n{answer}\r\n".encode())

    def write_text(self, text: str) -> None:
        """Sends a text message."""
        self.write_frame(0x1, text.encode())

    def write_frame(self, kind: int, payload: bytes) -> None:
        """Sends a frame."""
        size = bytes([len(payload)]) if len(payload) < 126 else b"\x7f" + len(payload).to_bytes(8, "big")
        if 126 <= len(payload) < 65_536:
            size = b"\x7e" + len(payload).to_bytes(2, "big")
        self._write(bytes([0x80 | kind]) + size + payload)

    async def frame(self) -> tuple[int, bytes] | None:
        """The next frame of a client, unmasked; unfragmented ones are enough here. None once it has left."""
        first, second = await self._exactly(2)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(await self._exactly(2 if size == 126 else 8), "big")
        mask, payload = await self._exactly(4), await self._exactly(size)
        if self.gone.is_set() and not payload:
            return None
        return first & 0xF, bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))

    async def _exactly(self, size: int) -> bytes:
        while len(self._pending) < size and not self.gone.is_set():
            self._more.clear()
            await self._more.wait()
        taken = bytes(self._pending[:size]).ljust(size, b"\0")
        del self._pending[:size]
        return taken

    async def _left_within(self, seconds: float) -> bool:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.gone.wait(), seconds)
        return self.gone.is_set()

    def _write(self, data: bytes) -> None:
        self._recording.down.extend(data)
        self._writer.write(data)
