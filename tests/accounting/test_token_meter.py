import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.accounting import token_meter as rules
from accordion.accounting.media_tokens import media_rules
from accordion.accounting.token_meter import TokenMeter, TokenSum, function_as_typescript, initial_definition
from accordion.model.budget import Window
from accordion.model.conversation import (
    Conversation,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from accordion.providers.models.tokenizer import TiktokenCounter

WINDOW = Window(1_000, 900, "table")
IMAGE = Media("image", "image/png", width=512, height=512)


class Words:
    """Counts words, and remembers what it was given."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        self.loaded = {"words"}

    def encoding(self, model: str) -> str:
        return "other" if model.startswith("gpt-4-") else "words"

    def is_loaded(self, encoding: str) -> bool:
        return encoding in self.loaded

    def load(self, encoding: str) -> None:
        self.loaded.add(encoding)

    def count(self, text: str, encoding: str) -> int:
        self.counted.append(text)
        return len(re.findall(r"\S+", text))


def message(*parts: Part | str) -> Message:
    read = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message(repr(read).encode(), "user", read, b"{}")


def conversation(*messages: Message, **fields: object) -> Conversation:
    chain, so_far = [], b""
    for one in messages:
        so_far += b"/" + one.key
        chain.append(so_far)
    fields.setdefault("protocol_name", "chat")
    fields.setdefault("model", "gpt-4o")
    return Conversation(messages=messages, chain=tuple(chain), **fields)  # type: ignore[arg-type]


def turns(number: int) -> tuple[Message, ...]:
    return tuple(message(f"turn {i} of many") for i in range(number))


def test_each_kind_is_counted_where_it_belongs() -> None:
    asked = conversation(
        message("one two three", IMAGE),
        message(ToolCall("id", "search", "a b c d")),
        message(ToolResult("id", (Text("found it"), IMAGE))),
        preamble=(Text("be brief"),),
        tools=("not json at all",),
        max_output=100,
    )
    measured = TokenMeter(Words()).measure(asked, WINDOW)
    assert measured.preamble == 2 + rules.MESSAGE
    assert measured.tools == 4 + rules.TOOLS_OPENAI
    assert measured.messages == (3 + 5 + 2) + 3 * rules.MESSAGE + rules.CALL + rules.RESULT + rules.RESPONSE_START
    assert measured.media == 2 * (85 + 170)
    assert (measured.window, measured.reserved_output, measured.is_window_known) == (1_000, 100, True)
    assert not measured.includes_report


def test_an_empty_conversation_is_nearly_nothing() -> None:
    measured = TokenMeter(Words()).measure(conversation(), Window(1_000, 1_000, "default"))
    assert measured.tokens == rules.RESPONSE_START
    assert not measured.is_window_known


@pytest.mark.parametrize(("asked", "reserved"), [(None, 0), (-5, 0), (0, 0), (300, 300), (10**12, 1_000)])
def test_the_reserved_output_is_what_is_asked_but_never_more_than_the_window(asked: int | None, reserved: int) -> None:
    assert TokenMeter(Words()).measure(conversation(max_output=asked), WINDOW).reserved_output == reserved


def test_unknown_content_counts_by_its_size() -> None:
    measured = TokenMeter(Words()).measure(conversation(message(Opaque("mystery", 4_001))), WINDOW)
    assert (measured.messages, measured.media) == (rules.MESSAGE + rules.RESPONSE_START, 1_001)
    inside = conversation(message(ToolResult("id", (Opaque("mystery", 4_001),))))
    assert TokenMeter(Words()).measure(inside, WINDOW).media == 1_001


def test_base64_in_what_is_not_understood_counts_like_pictures() -> None:
    asked = conversation(message(Opaque("mystery", 2_000_400, (1_500_000, 500_000))))
    picture = media_rules("gpt-4o").tokens(Media("image"))
    assert TokenMeter(Words()).measure(asked, WINDOW).media == 100 + 2 * picture


def test_unknown_content_in_the_system_prompt_belongs_to_it() -> None:
    asked = conversation(preamble=(Text("be brief"), IMAGE, Opaque("additional_tools", 4_000)))
    measured = TokenMeter(Words()).measure(asked, WINDOW)
    assert (measured.preamble, measured.media) == (2 + rules.MESSAGE + 1_000, 255)


def test_reasoning_counts_by_its_text_or_by_its_sealed_rest_whichever_is_more() -> None:
    meter = TokenMeter(Words())
    plain = meter.measure(conversation(message(Reasoning("a b c d", 100))), WINDOW).messages
    sealed = meter.measure(conversation(message(Reasoning("", 8_000))), WINDOW).messages
    assert plain == 4 + rules.MESSAGE + rules.RESPONSE_START
    assert sealed == (6_000 - rules.SEALED_ENVELOPE) // 4 + rules.MESSAGE + rules.RESPONSE_START


def test_only_what_is_new_is_counted() -> None:
    words = Words()
    meter = TokenMeter(words)
    history = turns(800)
    meter.measure(conversation(*history), WINDOW)
    words.counted.clear()
    measured = meter.measure(conversation(*history, message("so what"), message("I see")), WINDOW)
    assert words.counted == ["so what", "I see"]
    assert measured == TokenMeter(Words()).measure(conversation(*history, message("so what"), message("I see")), WINDOW)


def test_nothing_is_counted_twice_for_the_same_request() -> None:
    words = Words()
    meter = TokenMeter(words)
    asked = conversation(*turns(5), preamble=(Text("be brief"),), tools=("tool",), overhead_key=b"k")
    first = meter.measure(asked, WINDOW)
    words.counted.clear()
    assert meter.measure(asked, WINDOW) == first
    assert words.counted == []


def test_a_fork_counts_only_what_its_nearest_kept_sum_leaves() -> None:
    words = Words()
    meter = TokenMeter(words)
    history = turns(100)
    meter.measure(conversation(*history), WINDOW)
    words.counted.clear()
    meter.measure(conversation(*history[:50], message("another way")), WINDOW)
    assert len(words.counted) <= rules.STRIDE
    assert words.counted[-1] == "another way"


def from_model(*parts: Part | str) -> Message:
    return replace(message(*parts), role="assistant")


def test_content_before_a_providers_compaction_block_is_not_counted() -> None:
    words = Words()
    history, block = turns(20), from_model(Opaque("compaction", 40), "so far")
    asked = conversation(*history, block, *history[:2], protocol_name="messages")
    alone = conversation(block, *history[:2], protocol_name="messages")
    meter = TokenMeter(words)
    assert meter.measure(asked, WINDOW) == TokenMeter(Words()).measure(alone, WINDOW)
    assert not any("turn 5" in text for text in words.counted), "what costs nothing need not be counted"
    # From kept sums too, and where the block itself is not the newest message that is counted.
    longer = conversation(*asked.messages, *turns(3), protocol_name="messages")
    assert meter.measure(longer, WINDOW).tokens == meter.measure(asked, WINDOW).tokens + 3 * (4 + rules.MESSAGE)
    before = conversation(*history, protocol_name="messages")
    assert meter.measure(before, WINDOW).messages == 20 * (4 + rules.MESSAGE) + rules.RESPONSE_START


def test_before_a_compaction_item_only_user_messages_are_counted() -> None:
    """As `/responses/compact` gives it back: what the user said, and the item."""
    called, gave = from_model(ToolCall("a", "read", "{}")), replace(message("a long result"), role="tool")
    item = replace(message(Opaque("compaction", 40)), role="other")
    asked = conversation(
        message("one two"), called, gave, from_model("done"), item, message("three"), protocol_name="responses"
    )
    alone = conversation(message("one two"), item, message("three"), protocol_name="responses")
    assert TokenMeter(Words()).measure(asked, WINDOW) == TokenMeter(Words()).measure(alone, WINDOW)


def test_the_latest_of_several_compactions_counts() -> None:
    first, last = from_model(Opaque("compaction", 400)), from_model(Opaque("compaction", 40))
    asked = conversation(*turns(3), first, *turns(3), last, message("now"), protocol_name="messages")
    assert (
        TokenMeter(Words()).measure(asked, WINDOW).messages
        == 10 + rules.MESSAGE + 1 + rules.MESSAGE + rules.RESPONSE_START
    )


def test_a_compaction_that_failed_drops_nothing() -> None:
    asked = conversation(*turns(3), from_model(Opaque("compaction", 0)), protocol_name="messages")
    assert TokenMeter(Words()).measure(asked, WINDOW).messages == 3 * 4 + 4 * rules.MESSAGE + rules.RESPONSE_START


def test_behind_an_index_only_what_follows_the_last_compaction_item_counts() -> None:
    block = from_model(Opaque("compaction", 40))
    asked = conversation(*turns(3), block, message("now"), protocol_name="messages")
    meter = TokenMeter(Words())
    whole = meter.count_after(asked, -1)
    assert whole.tokens == 10 + 1 + 2 * rules.MESSAGE
    assert meter.count_after(asked, 1) == whole
    assert meter.count_after(asked, 3).tokens == 1 + rules.MESSAGE


def test_preamble_and_tools_are_counted_once_for_each_overhead_key() -> None:
    words = Words()
    meter = TokenMeter(words)
    first = conversation(preamble=(Text("be brief"),), tools=("tool",), overhead_key=b"one")
    meter.measure(first, WINDOW)
    words.counted.clear()
    meter.measure(replace(first, messages=turns(1), chain=(b"c",)), WINDOW)
    assert words.counted == ["turn 0 of many"]
    other = replace(first, preamble=(Text("be very brief"),), overhead_key=b"two")
    assert meter.measure(other, WINDOW).preamble == 3 + rules.MESSAGE


def test_without_an_overhead_key_nothing_is_mistaken_for_something_else() -> None:
    meter = TokenMeter(Words())
    meter.measure(conversation(preamble=(Text("be brief"),)), WINDOW)
    assert meter.measure(conversation(preamble=(Text("a b c"),)), WINDOW).preamble == 3 + rules.MESSAGE


def test_models_that_count_differently_do_not_share_sums() -> None:
    words = Words()
    meter = TokenMeter(words)
    asked = conversation(message("look here", IMAGE))
    sizes = {model: meter.measure(asked, WINDOW, model).media for model in ("gpt-4o", "claude-sonnet-4-5", "gpt-4o")}
    assert sizes == {"gpt-4o": 255, "claude-sonnet-4-5": 361}
    words.counted.clear()
    meter.measure(asked, WINDOW, "gpt-4-turbo")
    assert words.counted == ["look here"]


def test_models_that_count_alike_share_sums() -> None:
    words = Words()
    meter = TokenMeter(words)
    asked = conversation(message("look here"), model="claude-haiku-4-5")
    meter.measure(asked, WINDOW)
    words.counted.clear()
    meter.measure(asked, WINDOW, "claude-sonnet-4-5")
    assert words.counted == []


def test_the_protocol_tells_how_an_unknown_model_counts() -> None:
    meter = TokenMeter(Words())
    unknown = conversation(model="ours", tools=("tool",), protocol_name="messages")
    assert meter.measure(unknown, WINDOW).tools == 1 + rules.TOOLS_CLAUDE
    assert meter.measure(replace(unknown, protocol_name="chat"), WINDOW).tools == 1 + rules.TOOLS_OPENAI


def test_pending_text_is_what_measuring_would_have_to_count() -> None:
    meter = TokenMeter(Words())
    history = (message("x" * 100), message(ToolCall("i", "n", "y" * 50)), message(ToolResult("i", (Text("z" * 25),))))
    asked = conversation(*history, preamble=(Text("p" * 10),), tools=("t" * 5,), overhead_key=b"k")
    assert meter.pending_characters(asked) == 190
    assert meter.pending_characters(asked, limit=100) == 115, "it stops with the message that exceeds the limit"
    meter.measure(asked, WINDOW)
    assert meter.pending_characters(asked) == 0
    assert meter.pending_characters(conversation(*history, message("q" * 7), overhead_key=b"k")) == 7
    assert meter.pending_characters(replace(asked, overhead_key=b"other")) == 15


def test_long_text_and_an_encoding_to_load_are_for_a_thread() -> None:
    meter, long, short = TokenMeter(Words()), conversation(message("q" * 40_000)), conversation(message("q"))
    assert [meter.is_slow(asked, "", 50_000) for asked in (long, short)] == [True, False]
    meter.measure(long, WINDOW)
    assert not meter.is_slow(long, "", 50_000), "it is counted already"
    assert not meter.is_loaded(short, "gpt-4-turbo")
    meter.load(short, "gpt-4-turbo")
    assert meter.is_loaded(short, "gpt-4-turbo")


def test_pending_text_leaves_media_out() -> None:
    picture = replace(message(IMAGE), wire=b"x" * 1_000_000)
    assert TokenMeter(Words()).pending_characters(conversation(picture)) == 0


def test_a_slice_counts_what_stands_behind_an_index() -> None:
    words = Words()
    meter = TokenMeter(words)
    asked = conversation(message("a b", IMAGE), message("c"), message("d e f", IMAGE))
    meter.measure(conversation(*asked.messages[:2]), WINDOW)
    meter.measure(asked, WINDOW)
    words.counted.clear()
    assert meter.count_after(asked, 1) == TokenSum(3 + rules.MESSAGE, 255)
    assert meter.count_after(asked, 2) == TokenSum()
    assert words.counted == []
    assert meter.count_after(asked, -1).tokens == 6 + 3 * rules.MESSAGE + 2 * 255
    assert meter.count_after(asked, 0).text == 4 + 2 * rules.MESSAGE
    assert meter.count_message(asked.messages[0], asked) == TokenSum(2 + rules.MESSAGE, 255)


@given(st.lists(st.lists(st.sampled_from(["a", "b c", IMAGE]), max_size=3), max_size=40), st.data())
def test_any_way_to_grow_a_history_leads_to_the_same_count(
    contents: list[list[Part | str]], data: st.DataObject
) -> None:
    messages = [message(*parts) for parts in contents]
    meter = TokenMeter(Words())
    for _ in range(3):
        meter.measure(conversation(*messages[: data.draw(st.integers(0, len(messages)))]), WINDOW)
    whole = conversation(*messages)
    cut = data.draw(st.integers(-1, len(messages) - 1))
    assert meter.measure(whole, WINDOW) == TokenMeter(Words()).measure(whole, WINDOW)
    assert meter.count_after(whole, cut) == TokenMeter(Words()).count_after(whole, cut)


TOLD = st.lists(st.sampled_from(["a", "b c", "d e f", IMAGE, Opaque("compaction", 40)]), max_size=2)


@given(st.lists(TOLD, max_size=24), st.lists(st.tuples(st.integers(0, 12), TOLD), max_size=3), st.data())
def test_the_tokens_of_insertions_equal_the_difference_of_both_counts(
    contents: list[list[Part | str]], put: list[tuple[int, list[Part | str]]], data: st.DataObject
) -> None:
    history, meter = [message(*parts) for parts in contents], TokenMeter(Words())
    ends = data.draw(st.lists(st.integers(0, len(history)), max_size=4))
    for end in (*sorted(ends), len(history)):
        bare = conversation(*history[:end])
        listed = history[:end]
        for at, parts in put:
            listed.insert(at, message(*parts))
        shown = conversation(*listed)
        meter.measure(shown, WINDOW)
        longer = meter.count_added(shown, bare)
        counted, plain = (TokenMeter(Words()).measure(each, WINDOW).tokens for each in (shown, bare))
        assert longer in (None, counted - plain)
        assert meter.measure(bare, WINDOW).tokens == plain


def test_what_is_new_of_a_list_that_something_was_put_into_is_counted_once() -> None:
    words = Words()
    meter, history = TokenMeter(words), turns(30)
    for end in range(10, 30):
        bare = conversation(*history[:end])
        shown = conversation(*history[:4], message("put in"), *history[4:end])
        words.counted.clear()
        meter.measure(shown, WINDOW)
        if meter.count_added(shown, bare) is None:
            assert end == 10
            meter.measure(bare, WINDOW)
        assert meter.count_added(shown, bare) == 2 + rules.MESSAGE
        assert end == 10 or len(words.counted) == 1


def test_what_was_put_in_before_a_providers_own_compaction_makes_a_list_no_longer() -> None:
    meter, history = TokenMeter(Words()), turns(6)
    for behind in ((), (from_model(Opaque("compaction", 40), "so far"),)):
        bare = conversation(*history, *behind, protocol_name="messages")
        shown = conversation(*history[:4], message("put in"), *history[4:], *behind, protocol_name="messages")
        counted, plain = (meter.measure(each, WINDOW).tokens for each in (shown, bare))
        assert meter.count_added(shown, bare) == counted - plain
    one_more = conversation(*shown.messages, from_model(Opaque("compaction", 40)), protocol_name="messages")
    meter.measure(one_more, WINDOW)
    assert (
        meter.count_added(one_more, conversation(*bare.messages, one_more.messages[-1], protocol_name="messages"))
        is None
    )


def test_kept_sums_are_bounded() -> None:
    meter = TokenMeter(Words(), sums_at_most=50)
    for number in range(300):
        meter.measure(conversation(message(f"session {number}"), overhead_key=b"%d" % number), WINDOW)
    assert len(meter._sums._entries) == 50
    assert len(meter._overheads._entries) <= 50


def test_threads_may_measure_at_once() -> None:
    meter = TokenMeter(Words(), sums_at_most=20)
    asked = [conversation(*turns(number)) for number in range(1, 60)]
    with ThreadPoolExecutor(8) as threads:
        measured = list(threads.map(lambda one: meter.measure(one, WINDOW).messages, asked * 5))
    assert measured == [len(one.messages) * (4 + rules.MESSAGE) + rules.RESPONSE_START for one in asked] * 5


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Gets the current weather in the provided location.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "where": {"anyOf": [{"type": "object", "properties": {"lat": {"type": "number"}}}, {"type": "null"}]},
                "odd": {"type": ["string", "null"]},
            },
            "required": ["location"],
        },
    },
}
AS_TYPESCRIPT = """// Gets the current weather in the provided location.
type get_current_weather = (_: {
// The city and state, e.g. San Francisco, CA
location: string,
format?: "celsius" | "fahrenheit", // default: "celsius"
days?: number[],
where?: {
lat?: number,
} | null,
odd?: string | null,
}) => any;

"""


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def test_functions_are_counted_as_openai_shows_them_to_the_model() -> None:
    assert function_as_typescript(encode(WEATHER)) == AS_TYPESCRIPT
    flat = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    assert function_as_typescript(encode(flat)) == AS_TYPESCRIPT
    assert function_as_typescript('{"name":"now","parameters":{}}') == "type now = () => any;\n\n"


@pytest.mark.parametrize(
    "definition", ["", "words", "[]", "null", '{"type":"web_search"}', '{"type":"function"}', "[" * 5_000]
)
def test_tools_that_are_no_functions_are_counted_as_they_stand(definition: str) -> None:
    assert function_as_typescript(definition) is None
    words = Words()
    TokenMeter(words).measure(conversation(tools=(definition,)), WINDOW)
    assert words.counted == [definition]


def test_other_models_read_tools_as_they_stand() -> None:
    for model in ("claude-sonnet-4-5", "some-model"):
        words = Words()
        TokenMeter(words).measure(conversation(tools=(encode(WEATHER),), model=model), WINDOW)
        assert words.counted == [encode(WEATHER)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "enum", "anyOf", "required", "description", "default", "x", "function"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_schema_however_odd_fails(schema: object) -> None:
    tool = {"type": "function", "name": "n", "parameters": {"type": "object", "properties": {"p": schema}}}
    assert function_as_typescript(encode(tool)) is not None
    function_as_typescript(encode(schema))


def test_a_very_deep_schema_is_cut_short() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    tool = encode({"type": "function", "name": "n", "parameters": {"properties": {"p": schema}}})
    rendered = function_as_typescript(tool)
    assert rendered is not None
    assert len(rendered) < 100


LONG = {"type": "object", "properties": {f"f{i}": {"type": "string", "description": "word " * 20} for i in range(50)}}


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
