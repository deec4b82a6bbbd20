"""TCP connections that fail: bytes are passed on to a port, and held, slowed, cut or refused on demand."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType

SHARE = 0.1
"""The share of pieces behind which a link that cuts breaks the connection."""


@dataclass
class FailingConnection:
    """Listens on 127.0.0.1 and passes each connection on to the port `target`, in both directions."""

    target: int
    chance: random.Random
    port: int = 0
    delay: float = 0.0
    """Seconds that each piece is late."""
    is_cutting: bool = False
    cuts: int = 0
    """Connections that were cut within a message."""
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _is_down: bool = False
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> FailingConnection:
        self._flows.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._end_all()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within, connections stand and nothing passes."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Within, each piece is so late."""
        self.delay = seconds
        try:
            yield
        finally:
            self.delay = 0.0

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Within, connections break in the middle of requests and replies."""
        self.is_cutting = True
        try:
            yield
        finally:
            self.is_cutting = False

    @contextmanager
    def down(self) -> Iterator[None]:
        """Breaks all connections; within, every new one is reset at once."""
        self._is_down = True
        for task in list(self._tasks):
            task.cancel()
        try:
            yield
        finally:
            self._is_down = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._is_down:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            _reset(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            ways = [
                asyncio.ensure_future(self._pass(reader, far_writer)),
                asyncio.ensure_future(self._pass(far_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                ends = await asyncio.gather(*ways, return_exceptions=True)
            if not any(isinstance(end, OSError) for end in ends):
                await _finish(writer)
        finally:
            _reset(far_writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until its end. Raises ConnectionError where it was cut."""
        while data := await reader.read(65_536):
            await self._flows.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.is_cutting and self.chance.random() < SHARE:
                writer.write(data[: len(data) // 2])
                with suppress(OSError):
                    await writer.drain()
                await asyncio.sleep(0.01)
                self.cuts += 1
                raise ConnectionResetError("cut")
            writer.write(data)
            await writer.drain()

    async def _end_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Closes in order: what was passed on still arrives."""
    writer.close()
    await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Breaks a connection; what is still on its way is lost."""
    if writer.is_closing():
        return
    if (sock := writer.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
