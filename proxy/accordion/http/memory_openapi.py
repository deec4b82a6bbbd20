"""The OpenAPI document of the memories, made from the types that decode the requests."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from accordion.http.memory_operations import CALLS, Json, MemoryOperation
from accordion.http.memory_responses import EraseResponse, ImportMemoriesResponse

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
