"""The smallest application of the same server and framework: it answers /healthz, and every POST with a fixed text."""

from __future__ import annotations

import argparse

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def answer_health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def answer(request: Request) -> Response:
    return JSONResponse({"size": len(await request.body())})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bare_starlette")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    routes = [Route("/healthz", answer_health), Route("/{path:path}", answer, methods=["POST"])]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
