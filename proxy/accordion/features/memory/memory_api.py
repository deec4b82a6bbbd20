"""The REST API of the memories: a POST route for each operation (memory_operations.py), and export, import and erasure.

The operations, their fields and their responses are those of the MCP tools. The OpenAPI document, `openapi.json`, is
made from the types that decode the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from accordion.features.memory.memory_operations import CALLS, Json, MemoryOperation, MemoryServices
from accordion.features.memory.memory_responses import EraseResponse, ImportMemoriesResponse
from accordion.features.memory.memory_transfer import erase_memories, export_memories, import_memories
from accordion.http.api_requests import SAFE, identify_caller, identify_eraser, json_response, read_body, stream_lines
from accordion.model.errors import BadRequest
from accordion.sessions.tenants import Caller, Tenants

MAX_BODY = 4 * 2**20
MAX_IMPORT = 256 * 2**20
_SCHEMA_REF: Final = "#/components/schemas/{name}"
_ERROR: Final[Json] = {
    "type": "object",
    "description": "What is wrong, and what to do.",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The argument that it is about."},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ERRORS: Final = {
    "400": "The request cannot be answered as it is; the message says what to change. Nothing was written.",
    "401": "The proxy asks for one of its own keys.",
    "403": "A browser asks in the name of another site.",
    "404": "Something that is named is not there, or is not the caller's.",
    "409": "Somebody else wrote meanwhile; nothing was written. Try again.",
    "413": "The body is too large.",
    "503": "The store is away.",
}
_NDJSON: Final = {"application/x-ndjson": {"schema": {"type": "string"}}}


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


# -- OpenAPI ----------------------------------------------------------------------------------------------------------


def openapi_document(version: str) -> Json:
    """Builds the OpenAPI 3.1 document."""
    types = [
        each for operation in CALLS if operation.path for each in (operation.request_type, *operation.response_types)
    ] + [
        ImportMemoriesResponse,
        EraseResponse,
    ]
    refs, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMA_REF)
    schema_refs = dict(zip(types, refs, strict=True))
    paths: Json = {
        f"/accordion/memory/{operation.path}": {"post": _operation(operation, schema_refs)}
        for operation in CALLS
        if operation.path
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Accordion: memories",
            "version": version,
            "description": "What outlives a conversation. Every call is of one tenant; the same calls are MCP tools at "
            "/mcp.",
        },
        "paths": paths | _transfer_operations(schema_refs),
        "components": {
            "schemas": schemas | {"Error": _ERROR},
            "securitySchemes": {
                "proxyKey": {"type": "apiKey", "in": "header", "name": "x-accordion-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"proxyKey": []}, {"bearer": []}],
    }


def _operation(operation: MemoryOperation, schema_refs: dict[type[Any], Json]) -> Json:
    schemas = [schema_refs[each] for each in operation.response_types]
    return {
        "operationId": operation.name,
        "summary": operation.title,
        "description": operation.description,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema_refs[operation.request_type]}},
        },
        "responses": _responses(
            {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
        ),
    }


def _transfer_operations(schema_refs: dict[type[Any], Json]) -> Json:
    """Returns the operations on all of a tenant's memories."""
    return {
        "/accordion/memory/export": {
            "get": {
                "operationId": "memory_export",
                "summary": "All memories, a JSON document a line",
                "responses": _responses(_NDJSON),
            }
        },
        "/accordion/memory/import": {
            "post": {
                "operationId": "memory_import",
                "summary": "Take in what was exported; what has an id that is taken stays as it is here",
                "requestBody": {"required": True, "content": _NDJSON},
                "responses": _responses({"application/json": {"schema": schema_refs[ImportMemoriesResponse]}}),
            }
        },
        "/accordion/memory": {
            "delete": {
                "operationId": "memory_erase",
                "summary": "Erase all memories, and count what is left",
                "responses": _responses({"application/json": {"schema": schema_refs[EraseResponse]}}),
            }
        },
    }


def _responses(content: Json) -> Json:
    error = {"application/json": {"schema": {"$ref": _SCHEMA_REF.format(name="Error")}}}
    errors: Json = {status: {"description": text, "content": error} for status, text in _ERRORS.items()}
    return {"200": {"description": "Done.", "content": content}} | errors
