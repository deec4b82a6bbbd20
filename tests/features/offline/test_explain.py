import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from accordion.features.offline.explain_command import CHAT, CONVERSE, MESSAGES, RESPONSES, guess_path
from accordion.model.ports import Key
from accordion.stores.sqlite import SqliteStore
from tests.fakes import FakeReply
from tests.pipeline_setup import PipelineSetup

CHAT_BODY = {
    "model": "gpt-4o", "stream": True, "max_completion_tokens": 1_000, "temperature": 0,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
        {"role": "assistant", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "private words " * 50},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}],
}  # fmt: skip
RESPONSES_BODY = {
    "model": "gpt-5", "instructions": "Be brief.", "previous_response_id": "resp_1",
    "input": [{"type": "message", "role": "user", "content": "hello"}],
    "tools": [{"type": "function", "name": "look", "parameters": {}}, {"type": "web_search"}],
}  # fmt: skip
MESSAGES_BODY = {
    "model": "claude-sonnet-4-5", "max_tokens": 4_096, "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]},
    ],
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    # Where the default store would be.
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("ACCORDION_", "OTEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")


def explain(body: Any, *arguments: str, file: str = "request.json") -> Result:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    Path(file).write_bytes(data)
    return CliRunner().invoke(app, ["explain", file, *arguments])


def explain_json(body: Any, *arguments: str) -> dict[str, Any]:
    result = explain(body, "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def lines_of(result: Result) -> dict[str, str]:
    """The text as names and what stands behind them."""
    pairs = (line.strip().partition("  ") for line in result.stdout.splitlines() if line.strip())
    return {name: said.strip() for name, _, said in pairs}


def write_config(text: str) -> list[str]:
    Path("c.yaml").write_text(text)
    return ["--config", "c.yaml"]


def test_a_chat_request_is_understood_and_counted() -> None:
    found = explain_json(CHAT_BODY)
    said, count = found["understood"], found["counted"]
    assert (found["path"], said["protocol"], said["model"], said["stream"]) == (CHAT, "chat", "gpt-4o", True)
    assert said["roles"] == {
        "user": {"messages": 1, "Text": 1, "Media": 1},
        "assistant": {"messages": 1, "ToolCall": 1},
        "tool": {"messages": 1, "ToolResult": 1},
    }
    assert (said["preamble_parts"], said["tools"], said["max_output"], said["starts_turn"]) == (
        1,
        ["look"],
        1_000,
        False,
    )
    assert count["occupied"] == count["tokens"] + 1_000
    assert count["window"] == {
        "size": 128_000,
        "usable_input": 111_616,
        "source": "table",
        "max_output": 16_384,
        "counts_output": False,
        "refused_form": "",
        "refused_fields": [],
    }
    limits = {"window": 128_000, "conversation": 64_000, "generation": 106_240, "hard": 115_200}
    assert limits.items() <= count["limits"].items()
    # The largest is named by its place in the client's own list, the system prompt counted in.
    assert [large["index"] for large in count["largest"]][:2] == [1, 3]
    assert (found["action"], found["unread"]) == ("pass", "")
    assert found["going"] == {
        "upstream": "openai",
        "family": "openai",
        "url": "https://api.openai.com/v1/chat/completions",
    }
    assert found["changed"]["body"] == "unchanged, byte for byte"


def test_a_responses_request_goes_on_from_what_the_provider_keeps() -> None:
    found = explain_json(RESPONSES_BODY)
    said = found["understood"]
    assert (found["path"], said["protocol"], said["previous"]) == (RESPONSES, "responses", "resp_1")
    assert (said["tools"], said["preamble_parts"], said["starts_turn"]) == (["look", "web_search"], 1, True)
    assert lines_of(explain(RESPONSES_BODY))["continues"] == "resp_1, stored by the provider"


def test_provider_history_is_not_on_record_here_and_is_not_compacted() -> None:
    found = explain_json({**RESPONSES_BODY, "input": "many words " * 150_000})
    assert found["action"] == "pass"
    assert found["reason"].endswith(
        "the history that the provider keeps is not completely on record, and it could not be read from the provider "
        "(no provider is asked offline), so it passes unchanged"
    )
    assert found["changed"]["body"] == "unchanged, byte for byte"


def test_an_anthropic_request_and_the_marks_of_its_client() -> None:
    found = explain_json(
        MESSAGES_BODY, "-H", "User-Agent: claude-cli/2.0", "-H", "X-Claude-Code-Session-Id: abcd-1234-efgh"
    )
    said = found["understood"]
    assert (found["path"], said["protocol"], found["going"]["upstream"]) == (MESSAGES, "messages", "anthropic")
    marks = {"session": "abcd-1234-efgh", "agent": "", "client": "claude-code"}
    assert marks.items() <= said["marks"].items()
    assert said["roles"]["assistant"] == {"messages": 1, "Reasoning": 1, "ToolCall": 1}


@pytest.mark.parametrize("body", [CHAT_BODY, RESPONSES_BODY, MESSAGES_BODY])
def test_the_text_says_what_the_json_says(body: Any) -> None:
    found, text = explain_json(body), lines_of(explain(body))
    assert text["model"].startswith(found["understood"]["model"])
    assert text["tokens"] == f"{found['counted']['tokens']:,}"
    assert text["utilization"] == f"{found['counted']['utilization']:.1%} of the window"
    assert text["hard limit"] == f"{found['counted']['limits']['hard']:,}"
    assert text["conversation trigger"].startswith(f"{found['counted']['limits']['conversation']:,},")
    assert text["generation trigger"].startswith(f"{found['counted']['limits']['generation']:,},")
    assert (text["action"], text["reason"]) == (found["action"], found["reason"])
    assert text["URL"] == found["going"]["url"]
    assert text["body"] == found["changed"]["body"]


def turns(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Twenty long turns, what a provider made of them, and a question."""
    said: list[dict[str, Any]] = []
    for at in range(20):
        said.append({"role": "user", "content": "Go on."})
        said.append({"role": "assistant", "content": f"Answer {at}: " + "word " * 300})
    return [*said, {"role": "user", "content": "Go on."}, block, {"role": "user", "content": "And now?"}]


@pytest.mark.parametrize(
    ("name", "block", "passed"),
    [
        ("messages", {"role": "assistant", "content": [{"type": "compaction", "content": "In short."}]}, 41),
        ("input", {"type": "compaction", "id": "cmp_1", "encrypted_content": "b3Bh" * 10}, 20),
    ],
)
def test_content_that_the_provider_no_longer_reads_is_not_counted(
    name: str, block: dict[str, Any], passed: int
) -> None:
    body = {"model": "claude-sonnet-4-5" if name == "messages" else "gpt-5", name: turns(block)}
    if name == "messages":
        body["max_tokens"] = 100
    count = explain_json(body)["counted"]
    assert count["passed_over"] == passed
    assert count["tokens"] < 300
    assert {large["tokens"] < 30 for large in count["largest"]} == {True}
    assert lines_of(explain(body))["not counted"].startswith(f"{passed} messages")
    whole = explain_json({**body, name: [entry for entry in turns(block) if entry is not block]})
    assert whole["counted"]["tokens"] > 6_000
    assert whole["counted"]["passed_over"] == 0


def test_neither_content_nor_credentials_are_shown() -> None:
    config = write_config(
        "model_list:\n- model_name: gpt-4o\n  litellm_params:\n    {model: openai/gpt-4o, api_key: sk-models-own,"
        " extra_headers: {x-team: secret-team}}\nproxy_keys: [{id: team, key: sk-of-the-proxy}]\n"
    )
    for headers in (("-H", "authorization: Bearer sk-of-the-proxy"), ("-H", "x-api-key: sk-unknown"), ()):
        for more in ((), ("--json",)):
            shown = explain(CHAT_BODY, *config, *headers, *more)
            for secret in (
                "sk-models-own",
                "sk-of-the-proxy",
                "sk-unknown",
                "secret-team",
                "private words",
                "What is it",
            ):
                assert secret not in shown.output


def test_a_proxy_key_lets_in_and_the_models_own_key_takes_its_place() -> None:
    config = write_config(
        "model_list:\n- model_name: gpt-4o\n"
        "  litellm_params: {model: openai/gpt-4o-2024-08-06, api_key: sk-models-own}\n"
        "proxy_keys: [{id: team, key: sk-of-the-proxy}]\n"
    )
    found = explain_json(
        CHAT_BODY, *config, "-H", "Authorization: Bearer sk-of-the-proxy", "-H", "x-accordion-session: s1234567"
    )
    assert found["asked"] == {"tenant": "team", "proxy_key": True, "credential": False, "refused": ""}
    assert found["changed"]["body"].startswith("the model name 'gpt-4o' becomes 'gpt-4o-2024-08-06';")
    assert found["changed"]["headers_removed"] == ["x-accordion-session"]
    assert found["changed"]["headers_set"] == ["authorization"]


def test_who_would_not_be_let_in_is_told_so_and_the_rest_is_explained() -> None:
    found = explain_json(CHAT_BODY, *write_config("proxy_keys: [{id: team, key: sk-of-the-proxy}]"))
    assert found["action"] == "refuse"
    assert found["reason"].startswith("401: This proxy needs one of its own keys")
    assert found["counted"]["tokens"] > 0


def test_a_model_of_another_provider_is_translated() -> None:
    config = write_config("model_list: [{model_name: gpt-4o, litellm_params: {model: gemini/gemini-2.5-pro}}]")
    found = explain_json(CHAT_BODY, *config)
    assert (found["going"]["family"], found["going"]["upstream"]) == ("litellm", "gpt-4o")
    assert "gemini/gemini-2.5-pro" in found["changed"]["body"]


@pytest.mark.parametrize(
    ("body", "why"),
    [(b'{"a":', "truncated"), (b"[]", "Expected `object`"), (b"", "truncated"), (b"\xff\xfe", "malformed")],
)
def test_a_body_that_cannot_be_read_would_be_forwarded_as_it_came(body: bytes, why: str) -> None:
    found, text = explain_json(body), lines_of(explain(body))
    assert why in found["unread"]
    assert (found["understood"], found["counted"], found["action"]) == (None, None, "pass")
    assert text["result"] == "it is forwarded unchanged, and its tokens are not counted"
    assert text["body"] == "unchanged, byte for byte"


def test_a_path_that_is_not_read_passes_through() -> None:
    found = explain_json({"model": "m", "input": "x"}, "--path", "/v1/embeddings?x=1")
    assert found["unread"] == "Accordion forwards /v1/embeddings without parsing it"
    assert found["going"]["url"] == "https://api.openai.com/v1/embeddings?x=1"


def test_a_path_that_the_proxy_does_not_serve_is_answered_with_an_error() -> None:
    result = explain(CHAT_BODY, "--path", "/other")
    assert result.exit_code == 0
    assert "Accordion would answer with 404" in result.stderr


def test_a_compressed_body_is_read_where_its_header_says_so() -> None:
    body = gzip.compress(json.dumps(CHAT_BODY).encode())
    assert (
        explain_json(body, "--path", CHAT, "-H", "content-encoding: gzip")["counted"]
        == explain_json(CHAT_BODY)["counted"]
    )
    assert "content-encoding" in explain_json(body[:40], "--path", CHAT, "-H", "content-encoding: gzip")["unread"]


def test_the_same_request_has_the_same_session_every_time() -> None:
    assert explain_json(CHAT_BODY)["understood"]["session"] == explain_json(CHAT_BODY)["understood"]["session"]


def test_the_standard_input_is_read_and_a_missing_file_is_an_error() -> None:
    data = json.dumps(CHAT_BODY)
    piped = CliRunner().invoke(app, ["explain", "-", "--json"], input=data)
    assert json.loads(piped.stdout)["bytes"] == len(data)
    missing = CliRunner().invoke(app, ["explain", "none.json"])
    assert missing.exit_code == 2
    assert "No such file" in missing.stderr
    assert explain(CHAT_BODY, "-H", "no colon here").exit_code == 2


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (CHAT_BODY, CHAT),
        (RESPONSES_BODY, RESPONSES),
        (MESSAGES_BODY, MESSAGES),
        ({"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}, MESSAGES),
        ({"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "x"}]}, CHAT),
        ({"model": "x", "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, MESSAGES),
        ({"model": "x", "messages": [{"role": "user", "content": '{"type": "tool_result"}'}]}, CHAT),
        ({"model": "x", "conversation": "conv_1"}, RESPONSES),
        ({"system": [{"text": "s"}], "messages": [], "inferenceConfig": {"maxTokens": 5}}, CONVERSE),
    ],
)
def test_the_path_is_guessed_from_what_only_one_protocol_has(body: Any, path: str) -> None:
    assert guess_path(json.dumps(body).encode(), {}) == path


def test_the_version_header_decides_the_guess() -> None:
    assert guess_path(json.dumps(CHAT_BODY).encode(), {b"anthropic-version": b"2023-06-01"}) == MESSAGES


# -- among the agents -----------------------------------------------------------


def test_a_main_agent_has_no_delegation_report() -> None:
    found = explain_json(CHAT_BODY)["sitting"]
    assert (found["delegated"], found["delegation"], found["hidden"], found["on_record"]) == (False, "", [], False)
    assert "agents" not in lines_of(explain(CHAT_BODY))


def test_a_sub_agent_is_told_with_whom_it_works_for_and_that_nobody_could_be_asked() -> None:
    given = {"delegation": "web", "parent": "research", "agent": "Finder"}
    said = [word for name, value in given.items() for word in ("-H", f"x-accordion-{name}: {value}")]
    found = explain_json(CHAT_BODY, *said)["sitting"]
    assert (found["path"], found["agent"], found["evidence"]) == (["research", "web"], "Finder", "header")
    told = lines_of(explain(CHAT_BODY, *said))
    assert (told["delegation"], told["works for"]) == ("web, agent Finder", "research")
    assert told["evidence"] == "the header or metadata field says so"
    assert told["note"].startswith("delegations known to a running proxy are not included")


def test_names_of_ours_in_metadata_are_said_to_be_left_out_where_they_are() -> None:
    body = {**MESSAGES_BODY, "metadata": {"user_id": "u", "x-accordion-delegation": "web"}}
    found = explain_json(body)
    assert found["sitting"]["delegation"] == "web"
    assert "Accordion's own fields are removed from its metadata" in found["changed"]["body"]
    kept = explain_json({**RESPONSES_BODY, "metadata": {"x-accordion-delegation": "web"}})
    assert "Accordion's own fields" not in kept["changed"]["body"]


def test_what_cannot_be_declared_is_answered_as_it_would_be() -> None:
    result = explain(CHAT_BODY, "-H", "x-accordion-delegation: web", "-H", "x-accordion-parent: web")
    assert "Accordion would answer with 400: x-accordion-parent names the delegation itself" in result.stderr


def test_an_edge_that_proxies_inferred_is_told_with_its_call(tmp_path: Path) -> None:
    task = "Read the whole of the manual and tell which of its figures are wrong."

    async def fill() -> None:
        store: Any = SqliteStore(tmp_path / "kept.db", timeout=30.0)
        await store.put_if_absent(Key("", "secret/tenants"), b"secret" * 6)
        setup = PipelineSetup(store=store)
        message = {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c-1", "type": "function", "function": {"name": "Task", "arguments": json.dumps({"prompt": task})}}
        ]}  # fmt: skip
        reply = {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
        setup.upstream.answers = [FakeReply(pieces=(json.dumps(reply).encode(),))]
        await setup.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": "Well?"}]})
        await setup.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": task}]})
        await setup.outbox.flush()
        await store.close()

    asyncio.run(fill())
    config = write_config(f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}")
    found = explain_json({"model": "m", "messages": [{"role": "user", "content": task}]}, *config)["sitting"]
    assert (found["delegated"], found["evidence"], found["call_id"], found["on_record"]) == (True, "tool", "c-1", True)
    assert [name[:2] for name in found["path"]] == ["s-", "s-"]
