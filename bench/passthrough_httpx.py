"""The reference that most gateways resemble: Starlette in front of one shared httpx.AsyncClient."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

HOP_BY_HOP = {"host", "content-length", "connection", "transfer-encoding", "keep-alive"}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM"], limits=limits, timeout=60) as client:
        app.state.client = client
        yield


async def forward(request: Request) -> Response:
    client: httpx.AsyncClient = request.app.state.client
    headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
    outgoing = client.build_request("POST", request.url.path, content=await request.body(), headers=headers)
    reply = await client.send(outgoing, stream=True)
    kept = {name: value for name, value in reply.headers.items() if name not in HOP_BY_HOP}
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        return StreamingResponse(_relay(reply), reply.status_code, kept)
    content = await reply.aread()
    return Response(content, reply.status_code, kept)


async def _relay(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    finally:
        await reply.aclose()


async def healthz(_: Request) -> Response:
    return PlainTextResponse("ok")


app = Starlette(
    lifespan=lifespan,
    routes=[Route("/healthz", healthz), Route("/{path:path}", forward, methods=["POST"])],
)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--workers", type=int, default=1)
    given = arguments.parse_args()
    uvicorn.run(
        "bench.passthrough_httpx:app",
        host="127.0.0.1",
        port=given.port,
        workers=given.workers,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
