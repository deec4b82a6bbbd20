"""What any proxy on uvicorn costs: one that answers by itself, and one that passes on by aiohttp's client."""

from __future__ import annotations

import argparse
import os
from typing import Any

import aiohttp
import uvicorn

from bench import replies
from bench.conversations import CHAT

HOP_BY_HOP = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding", b"keep-alive"})


class Echo:
    """Answers a chat request as the loopback provider would."""

    def __init__(self) -> None:
        self._headers, self._body = replies.parts(CHAT, 280)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


class Passthrough:
    """Passes a request on, and the answer back as it comes."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in HOP_BY_HOP]
        async with self._session.post(self._upstream + scope["path"], data=body, headers=headers) as reply:
            kept = [pair for pair in reply.raw_headers if pair[0].lower() not in {b"connection", b"transfer-encoding"}]
            await send({"type": "http.response.start", "status": reply.status, "headers": kept})
            async for piece in reply.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--echo", action="store_true")
    given = arguments.parse_args()
    app = Echo() if given.echo else Passthrough(os.environ["UPSTREAM"])
    uvicorn.run(
        app, host="127.0.0.1", port=given.port, loop="uvloop", http="httptools", lifespan="off",
        access_log=False, log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    main()
