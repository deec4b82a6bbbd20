"""The OpenAPI document of the memories, made of the same types that requests are read with."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from accordion.faces.memory_table import CALLS, Call, Json
from accordion.faces.memory_told import Brought, Erased

_PARTS: Final = "#/components/schemas/{name}"
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
_LINES: Final = {"application/x-ndjson": {"schema": {"type": "string"}}}


def document(version: str) -> Json:
    """The OpenAPI 3.1 document."""
    kinds = [kind for call in CALLS if call.path for kind in (call.asked, *call.told)] + [Brought, Erased]
    refs, parts = msgspec.json.schema_components(kinds, ref_template=_PARTS)
    named = dict(zip(kinds, refs, strict=True))
    paths: Json = {f"/accordion/memory/{call.path}": {"post": _operation(call, named)} for call in CALLS if call.path}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Accordion: memories",
            "version": version,
            "description": "What outlives a conversation. Every call is of one tenant; the same calls are MCP tools at "
            "/mcp.",
        },
        "paths": paths | _whole(named),
        "components": {
            "schemas": parts | {"Error": _ERROR},
            "securitySchemes": {
                "proxyKey": {"type": "apiKey", "in": "header", "name": "x-accordion-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"proxyKey": []}, {"bearer": []}],
    }


def _operation(call: Call, named: dict[type[Any], Json]) -> Json:
    told = [named[kind] for kind in call.told]
    return {
        "operationId": call.name,
        "summary": call.title,
        "description": call.description,
        "requestBody": {"required": True, "content": {"application/json": {"schema": named[call.asked]}}},
        "responses": _responses({"application/json": {"schema": told[0] if len(told) == 1 else {"anyOf": told}}}),
    }


def _whole(named: dict[type[Any], Json]) -> Json:
    """The operations on all of a tenant's memories."""
    return {
        "/accordion/memory/export": {
            "get": {
                "operationId": "memory_export",
                "summary": "All memories, a JSON document a line",
                "responses": _responses(_LINES),
            }
        },
        "/accordion/memory/import": {
            "post": {
                "operationId": "memory_import",
                "summary": "Take in what was exported; what has an id that is taken stays as it is here",
                "requestBody": {"required": True, "content": _LINES},
                "responses": _responses({"application/json": {"schema": named[Brought]}}),
            }
        },
        "/accordion/memory": {
            "delete": {
                "operationId": "memory_erase",
                "summary": "Erase all memories, and count what is left",
                "responses": _responses({"application/json": {"schema": named[Erased]}}),
            }
        },
    }


def _responses(content: Json) -> Json:
    error = {"application/json": {"schema": {"$ref": _PARTS.format(name="Error")}}}
    told: Json = {status: {"description": text, "content": error} for status, text in _ERRORS.items()}
    return {"200": {"description": "Done.", "content": content}} | told
