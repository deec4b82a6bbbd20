"""Renders tool definitions as they are in a model's context.

Definitions that are loaded later are left out. OpenAI's models read tools as TypeScript instead of JSON, which is a
third shorter. Source: the rendering of tools in OpenAI's published harmony format, which its chat models are known to
share: `namespace functions {`, a `//` line for each description, `type name = (_: { key?: type, }) => any;`.
"""

from __future__ import annotations

from typing import Any

import msgspec

DEEPEST = 16
DEFERRED = '"defer_loading":true'
_UNIONS = ("anyOf", "oneOf")
_UNTRANSLATED = (
    *("$ref", "$defs", "definitions", "allOf", "not", "if", "then", "else"),
    *("additionalProperties", "patternProperties", "dependentSchemas", "prefixItems"),
)
_NAMES = ("type", "name", "description", "server_label", "server_description")


def initial_definition(definition: str, *, named: bool) -> str | None:
    """Returns the part of a tool's definition that the model receives from the start, or None if there is none.

    The loading of a tool may be deferred until a search finds it. Of such a tool the model receives name and
    description if `named`, else nothing. A namespace loses its deferred tools.

    Source: the anthropic SDK, `types/tool_param.py` ("will not be included in initial system prompt"); OpenAI, "Tool
    search" (the model sees name and description of what is searchable, and nothing of what a namespace defers).
    """
    if DEFERRED not in definition:
        return definition
    try:
        tool = msgspec.json.decode(definition)
    except (msgspec.DecodeError, RecursionError):
        return definition
    if not isinstance(tool, dict):
        return definition
    if isinstance(inner := tool.get("tools"), list):
        tool["tools"] = [one for one in inner if not _is_deferred(one)]
    elif _is_deferred(tool):
        if not named:
            return None
        function = tool.get("function")
        tool = _describe_deferred(tool) | (
            {"function": _describe_deferred(function)} if isinstance(function, dict) else {}
        )
    try:
        return _render_literal(tool)
    except RecursionError:
        return definition


def _is_deferred(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("defer_loading") is True


def _describe_deferred(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in _NAMES if name in tool}


def function_as_typescript(definition: str) -> str | None:
    """Renders one function tool as TypeScript; None if it is another kind of tool.

    The tool may have Chat's nested form or the flat form of Responses.
    """
    try:
        tool = msgspec.json.decode(definition)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        tool = tool["function"]
    elif not isinstance(tool, dict) or tool.get("type", "function") != "function" or "schema" in tool:
        # A name with a schema defines a structured output, not a tool.
        return None
    name, parameters = tool.get("name"), tool.get("parameters")
    if not isinstance(name, str):
        return None
    head = "".join(f"// {line}\n" for line in str(tool.get("description") or "").splitlines())
    if not isinstance(parameters, dict) or not any(map(parameters.get, ("properties", *_UNIONS, *_UNTRANSLATED))):
        return f"{head}type {name} = () => any;\n\n"
    try:
        return f"{head}type {name} = (_: {_render_type(parameters, 0)}) => any;\n\n"
    except RecursionError:
        return None


def _render_type(schema: Any, depth: int) -> str:
    """Returns the TypeScript type of a JSON schema. Keywords without an equivalent are appended as JSON."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return "any"
    untranslated = [name for name in _UNTRANSLATED if isinstance(schema.get(name), dict | list | str) and schema[name]]
    if "properties" in schema:
        untranslated += [name for name in _UNIONS if schema.get(name)]
    if untranslated:
        rest = {name: value for name, value in schema.items() if name not in untranslated}
        return f"{_render_type(rest, depth)} & {_render_literal({name: schema[name] for name in untranslated})}"
    for union in _UNIONS:
        if isinstance(schema.get(union), list):
            return " | ".join(_render_type(one, depth + 1) for one in schema[union])
    if isinstance(schema.get("enum"), list):
        return " | ".join(_render_literal(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_render_type({**schema, "type": one}, depth + 1) for one in kind)
    if kind == "array":
        return f"{_render_type(schema.get('items'), depth + 1)}[]"
    if kind == "object" or "properties" in schema:
        return _render_object(schema, depth)
    return {"integer": "number", "string": "string", "number": "number", "boolean": "boolean", "null": "null"}.get(
        str(kind), "any"
    )


def _render_object(schema: dict[str, Any], depth: int) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not properties:
        return "object"
    required_names = set(map(str, required)) if isinstance(required, list) else set()
    lines = ["{"]
    for name, inner in properties.items():
        property_schema = inner if isinstance(inner, dict) else {}
        lines += [f"// {line}" for line in str(property_schema.get("description") or "").splitlines()]
        default = f" // default: {_render_literal(property_schema['default'])}" if "default" in property_schema else ""
        lines.append(f"{name}{'' if name in required_names else '?'}: {_render_type(inner, depth + 1)},{default}")
    return "\n".join([*lines, "}"])


def _render_literal(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")
