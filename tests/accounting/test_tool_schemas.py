"""What of tool definitions stands in the context: all, what is not deferred, or a name and a description."""

from typing import Any

import msgspec
import pytest

from accordion.accounting.token_meter import TokenMeter
from accordion.accounting.tool_schemas import function_as_typescript, initial_definition
from accordion.model.budget import Window
from accordion.model.conversation import Conversation
from accordion.providers.models.tokenizer import TiktokenCounter

LONG = {"type": "object", "properties": {f"f{i}": {"type": "string", "description": "word " * 20} for i in range(50)}}


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def tokens(protocol_name: str, model: str, *tools: dict[str, Any]) -> int:
    asked = Conversation(protocol_name, model, (), (), tools=tuple(map(encode, tools)))
    return TokenMeter(TiktokenCounter()).measure(asked, Window(200_000, 200_000, "table")).tools


def claudes(**more: Any) -> dict[str, Any]:
    return {"name": "look_up", "description": "Looks it up.", "input_schema": LONG, **more}


def function(**more: Any) -> dict[str, Any]:
    return {"type": "function", "name": "look_up", "description": "Looks it up.", "parameters": LONG, **more}


def test_a_tool_that_claude_defers_counts_nothing() -> None:
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    alone = tokens("messages", "claude-sonnet-4-5", search)
    assert tokens("messages", "claude-sonnet-4-5", search, *[claudes(defer_loading=True)] * 30) == alone
    assert tokens("messages", "claude-sonnet-4-5", search, claudes(defer_loading=False)) > alone + 1_000


def test_a_function_that_openai_defers_counts_name_and_description() -> None:
    deferred = function(defer_loading=True)
    assert initial_definition(encode(deferred), named=True) == encode(
        {"type": "function", "name": "look_up", "description": "Looks it up."}
    )
    assert tokens("responses", "gpt-5.4", deferred) < 40
    assert tokens("responses", "gpt-5.4", function()) > 1_000


def test_the_tools_of_a_namespace_count_unless_deferred() -> None:
    space = {"type": "namespace", "name": "crm", "description": "All about customers."}
    deferred = {**space, "tools": [function(defer_loading=True)] * 30}
    assert initial_definition(encode(deferred), named=True) == encode({**space, "tools": []})
    assert tokens("responses", "gpt-5.4", deferred) < 50
    assert tokens("responses", "gpt-5.4", {**space, "tools": [function(defer_loading=True), function()]}) > 1_000


def test_a_deferred_server_counts_name_and_description() -> None:
    server = {"type": "mcp", "server_label": "crm", "server_description": "Customers.", "server_url": "https://c.test"}
    kept = encode({name: server[name] for name in ("type", "server_label", "server_description")})
    assert initial_definition(encode({**server, "allowed_tools": ["a"], "defer_loading": True}), named=True) == kept


def test_a_deferred_chat_function_counts_name_and_description() -> None:
    deferred = {"type": "function", "defer_loading": True, "function": {"name": "f", "parameters": LONG}}
    assert initial_definition(encode(deferred), named=True) == '{"type":"function","function":{"name":"f"}}'


@pytest.mark.parametrize(
    "definition",
    [
        encode(function()),
        encode(function(defer_loading=False)),
        encode(function(defer_loading="true")),
        encode({"type": "mcp_toolset", "default_config": {"defer_loading": True}}),
        encode(function(strict='{"defer_loading":true}')),
        '["defer_loading":true',
        '[{"defer_loading":true}]',
    ],
)
def test_tools_that_are_not_deferred_stay_unchanged(definition: str) -> None:
    assert initial_definition(definition, named=True) == initial_definition(definition, named=False) == definition


def nested(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "answer", "strict": True, "schema": LONG},
        nested({"type": "object", "properties": {"it": {"$ref": "#/$defs/It"}}, "$defs": {"It": LONG}}),
        nested({"$ref": "#/definitions/It", "definitions": {"It": LONG}}),
        nested({"type": "object", "properties": {"it": {"allOf": [LONG]}}}),
        nested({"allOf": [LONG]}),
        nested({"anyOf": [LONG, {"type": "null"}]}),
        nested({"type": "object", "properties": LONG["properties"], "anyOf": [{"required": ["f1"]}]}),
        nested({"type": "object", "properties": {"it": {"type": "object", "additionalProperties": LONG}}}),
        nested({"type": "object", "patternProperties": {"^f": LONG}}),
    ],
)
def test_nothing_of_a_schema_counts_as_nothing(tool: dict[str, Any]) -> None:
    plain = tokens("chat", "gpt-4o", nested(LONG))
    assert 0.9 * plain < tokens("chat", "gpt-4o", tool) < 2 * plain


def test_empty_definitions_are_not_counted() -> None:
    bare = nested({"type": "object", "properties": {"a": {"type": "object", "additionalProperties": False}}})
    assert function_as_typescript(encode(bare)) == "type f = (_: {\na?: object,\n}) => any;\n\n"
    assert function_as_typescript(encode(nested({"$defs": {}, "type": "object"}))) == "type f = () => any;\n\n"
