"""The bare passthrough: aiohttp's server and client, nothing between them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {"host", "content-length", "connection", "transfer-encoding", "keep-alive"}
SESSION = web.AppKey("session", aiohttp.ClientSession)
LARGEST = 64 * 1024 * 1024


async def session(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as opened:
        app[SESSION] = opened
        yield


async def forward(request: web.Request) -> web.StreamResponse:
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
    url = os.environ["UPSTREAM"] + request.path
    async with request.app[SESSION].post(url, data=await request.read(), headers=headers) as reply:
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in HOP_BY_HOP}
        if not reply.content_type.startswith("text/event-stream"):
            return web.Response(body=await reply.read(), status=reply.status, headers=kept)
        response = web.StreamResponse(status=reply.status, headers=kept)
        await response.prepare(request)
        async for chunk in reply.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--workers", type=int, default=1)
    given = arguments.parse_args()
    again = [sys.executable, "-m", "bench.passthrough_aiohttp", "--port", str(given.port)]
    helpers = [subprocess.Popen(again) for _ in range(given.workers - 1)]
    app = web.Application(client_max_size=LARGEST)
    app.cleanup_ctx.append(session)
    app.router.add_get("/healthz", healthz)
    app.router.add_post("/{path:.*}", forward)
    uvloop.install()
    with suppress(KeyboardInterrupt):
        web.run_app(app, host="127.0.0.1", port=given.port, reuse_port=True, access_log=None, print=None)
    for helper in helpers:
        helper.terminate()


if __name__ == "__main__":
    main()
