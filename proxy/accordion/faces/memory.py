"""Memories by REST: a POST for each call of the table, and all of a tenant's at once. One tenant's at a time.

The calls, their fields and their answers are those of the MCP tools; `openapi.json` says all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from accordion.core.errors import BadRequest
from accordion.faces.asked import SAFE, answered, body_of, caller_of
from accordion.faces.memory_moving import brought, erased, exported
from accordion.faces.memory_openapi import document
from accordion.faces.memory_rooms import Rooms
from accordion.faces.memory_table import CALLS, Call
from accordion.faces.streaming import in_pieces
from accordion.identity.tenants import Caller, Tenants

BODY_MOST = 4 * 2**20
IMPORT_MOST = 256 * 2**20


class MemoryApi:
    """The routes of the memories. Errors are raised, for the application that the routes belong to."""

    def __init__(self, rooms: Callable[[], Rooms], tenants: Callable[[], Tenants], version: str) -> None:
        self._rooms = rooms
        self._tenants = tenants
        self._version = version

    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/accordion/memory/openapi.json", self._openapi),
            *(
                Route(f"/accordion/memory/{call.path}", partial(self._call, call), methods=["POST"])
                for call in CALLS
                if call.path
            ),
            Route("/accordion/memory/export", self._export),
            Route("/accordion/memory/import", self._import, methods=["POST"]),
            Route("/accordion/memory", self._erase, methods=["DELETE"]),
        ]

    async def _openapi(self, request: Request) -> Response:
        return answered(self._document)

    @cached_property
    def _document(self) -> msgspec.Raw:
        # It takes as long to make as a hundred small requests.
        return msgspec.Raw(msgspec.json.encode(document(self._version)))

    async def _call(self, call: Call, request: Request) -> Response:
        caller = self._caller(request)
        _check_type(request, "application/json")
        try:
            arguments = msgspec.json.decode(await body_of(request, BODY_MOST))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"The body must be a JSON object. {error}.", code="invalid_json", param="body") from error
        return answered(await call(self._rooms(), caller, arguments))

    async def _export(self, request: Request) -> Response:
        lines = exported(self._rooms(), self._caller(request))
        # A store that is away is found out before anything is said.
        first = await anext(lines, b"")
        return StreamingResponse(in_pieces(first, lines, _broken), headers=SAFE, media_type="application/x-ndjson")

    async def _import(self, request: Request) -> Response:
        caller = self._caller(request)
        _check_type(request, "application/x-ndjson")
        body = await body_of(request, IMPORT_MOST)
        return answered(await brought(self._rooms(), caller, body.split(b"\n")))

    async def _erase(self, request: Request) -> Response:
        done = await erased(self._rooms(), self._caller(request))
        return answered(done, 200 if done.verified else 409)

    def _caller(self, request: Request) -> Caller:
        return caller_of(request.headers.raw, self._tenants())


def _check_type(request: Request, kind: str) -> None:
    """Raises BadRequest where the body is not said to be of this kind. A page of another site cannot say so."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise BadRequest(f"Send the body with content-type: {kind}.", code="invalid_content_type", param="content-type")


def _broken(message: str) -> object:
    """The last line of an export that could not be finished: none that an import takes."""
    return {"error": message}
