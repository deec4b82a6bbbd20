"""The REST API of the memories: a POST route for each operation (memory_operations.py), and export, import and erasure.

The operations, their fields and their responses are those of the MCP tools; `openapi.json` describes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from accordion.http.api_requests import SAFE, identify_caller, identify_eraser, json_response, read_body, stream_lines
from accordion.http.memory_openapi import openapi_document
from accordion.http.memory_operations import CALLS, MemoryOperation
from accordion.http.memory_services import MemoryServices
from accordion.http.memory_transfer import erase_memories, export_memories, import_memories
from accordion.model.errors import BadRequest
from accordion.sessions.tenants import Caller, Tenants

MAX_BODY = 4 * 2**20
MAX_IMPORT = 256 * 2**20


class MemoryApi:
    """The routes of the memories. Endpoints raise AccordionError; the application makes the response."""

    def __init__(self, services: Callable[[], MemoryServices], tenants: Callable[[], Tenants], version: str) -> None:
        self._services = services
        self._tenants = tenants
        self._version = version

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/accordion/memory/openapi.json", self._openapi),
            *(
                Route(f"/accordion/memory/{operation.path}", partial(self._call, operation), methods=["POST"])
                for operation in CALLS
                if operation.path
            ),
            Route("/accordion/memory/export", self._export),
            Route("/accordion/memory/import", self._import, methods=["POST"]),
            Route("/accordion/memory", self._erase, methods=["DELETE"]),
        ]

    async def _openapi(self, request: Request) -> Response:
        """Describes the memory API; MCP is at `/mcp`."""
        return json_response(self._document)

    @cached_property
    def _document(self) -> msgspec.Raw:
        # Building it takes as long as a hundred small requests.
        return msgspec.Raw(msgspec.json.encode(openapi_document(self._version)))

    async def _call(self, operation: MemoryOperation, request: Request) -> Response:
        caller = self._eraser(request) if operation.destroys else self._caller(request)
        _check_type(request, "application/json")
        try:
            arguments = msgspec.json.decode(await read_body(request, MAX_BODY))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"The body must be a JSON object. {error}.", code="invalid_json", param="body") from error
        return json_response(await operation(self._services(), caller, arguments))

    async def _export(self, request: Request) -> Response:
        lines = export_memories(self._services(), self._eraser(request))
        # A store that is away raises here, before the response begins.
        first = await anext(lines, b"")
        return StreamingResponse(
            stream_lines(first, lines, _incomplete_line), headers=SAFE, media_type="application/x-ndjson"
        )

    async def _import(self, request: Request) -> Response:
        caller = self._caller(request)
        _check_type(request, "application/x-ndjson")
        body = await read_body(request, MAX_IMPORT)
        return json_response(await import_memories(self._services(), caller, body.split(b"\n")))

    async def _erase(self, request: Request) -> Response:
        result = await erase_memories(self._services(), self._eraser(request))
        return json_response(result, 200 if result.verified else 409)

    def _caller(self, request: Request) -> Caller:
        return identify_caller(request.headers.raw, self._tenants())

    def _eraser(self, request: Request) -> Caller:
        return identify_eraser(request.headers.raw, self._tenants())


def _check_type(request: Request, expected: str) -> None:
    """Raises BadRequest for another content type. A page of another site cannot send these types without CORS."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != expected:
        raise BadRequest(
            f"Send the body with content-type: {expected}.", code="invalid_content_type", param="content-type"
        )


def _incomplete_line(message: str) -> object:
    """Returns the last line of an incomplete export; an import refuses it."""
    return {"error": message}
