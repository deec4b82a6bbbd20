import json

import pytest

from accordion.model.errors import BadRequest
from accordion.sessions.client_metadata import ClientMetadata, read_client_metadata, read_client_name

ID = "0123-4567-89ab"


def read_metadata(headers: dict[str, str] | None = None, **body: object) -> ClientMetadata:
    raw = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
    return read_client_metadata(raw, {name: json.dumps(value).encode() for name, value in body.items()})


@pytest.mark.parametrize(
    "header",
    [
        "x-accordion-session",
        "X-Claude-Code-Session-Id",
        "X-Session-Id",
        "x-litellm-session-id",
        "Helicone-Session-Id",
        "x-somebody-session-id",
        "x-opencode-session",
    ],
)
def test_a_session_header_is_a_label(header: str) -> None:
    assert read_metadata({header: ID}).session == ID


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": ID})}},
        {"metadata": {"user_id": f"user_abc_account__session_{ID}"}},
        {"metadata": {"session_id": ID}},
        {"litellm_session_id": ID},
        {"session_id": ID},
        {"prompt_cache_key": ID},
    ],
)
def test_a_field_of_the_body_is_a_label(body: dict[str, object]) -> None:
    assert read_metadata(**body).session == ID


def test_codex_names_count_from_codex_alone() -> None:
    headers = {"session-id": ID, "thread-id": "thread-12345"}
    assert read_metadata(headers) == ClientMetadata()
    assert read_metadata({**headers, "User-Agent": "codex_cli_rs/0.50 (Linux)"}) == ClientMetadata(
        ID, "thread-12345", "codex"
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"x-claude-code-agent-id": "agent-12345"},
        {"x-claude-code-request-class": "subagent"},
        {"x-parent-session-id": ID},
        {"User-Agent": "codex_cli_rs/0.50", "x-openai-subagent": "collab_spawn"},
        {"User-Agent": "codex_cli_rs/0.50", "x-codex-parent-thread-id": "thread-1"},
    ],
)
def test_a_sub_agent_is_told_by_its_clients_own_marks(headers: dict[str, str]) -> None:
    assert read_metadata(headers).is_subagent


@pytest.mark.parametrize(
    "headers",
    [
        {"x-claude-code-request-class": "compaction"},
        {"User-Agent": "codex_cli_rs/0.50", "x-openai-subagent": "compact"},
        {"User-Agent": "codex_cli_rs/0.50", "x-codex-turn-metadata": '{"request_kind": "compaction"}'},
    ],
)
def test_a_clients_own_compaction_request_is_told_by_its_marks(headers: dict[str, str]) -> None:
    assert read_metadata(headers).is_client_compaction
    assert not read_metadata(headers).is_subagent


@pytest.mark.parametrize("said", ['{"request_kind": "turn"}', "[]", "{", "null", '{"request_kind": ["compaction"]}'])
def test_other_turns_of_codex_are_no_compaction_requests(said: str) -> None:
    assert not read_metadata({"User-Agent": "codex_cli_rs/0.50", "x-codex-turn-metadata": said}).is_client_compaction


def test_our_own_header_goes_before_all_others() -> None:
    assert read_metadata(
        {"x-accordion-session": "mine-12345", "X-Session-Id": ID}, session_id="body-12345"
    ).session == ("mine-12345")


def test_an_agent_within_a_session_is_a_label_of_its_own() -> None:
    main = read_metadata({"X-Claude-Code-Session-Id": ID})
    child = read_metadata({"X-Claude-Code-Session-Id": ID, "x-claude-code-agent-id": "agent-12345"})
    assert main.label == ID
    assert child.label == f"{ID}/agent-12345"


def test_baggage_names_a_session() -> None:
    assert read_metadata({"baggage": f"a=b, session.id={ID};x=y"}).session == ID


@pytest.mark.parametrize("value", ["short", "x" * 129, "with space here", "ünïcödé-123", "a\tb-345678", ""])
def test_a_value_that_is_not_well_formed_is_no_label(value: str) -> None:
    assert read_metadata({"x-session-id": value}).session == ""


@pytest.mark.parametrize("value", ["short", "x" * 129, "with space here"])
def test_our_own_header_must_be_well_formed(value: str) -> None:
    with pytest.raises(BadRequest, match="8 to 128 characters"):
        read_metadata({"x-accordion-session": value, "x-session-id": ID})


@pytest.mark.parametrize(
    "metadata", [[], "text", 5, None, {"user_id": 5}, {"user_id": "{"}, {"user_id": "[1]"}, {"session_id": ["x" * 9]}]
)
def test_marks_of_known_clients_are_never_fatal_whatever_they_hold(metadata: object) -> None:
    assert read_metadata(metadata=metadata).session == ""


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("claude-cli/2.1.0 (external, cli)", "claude-code"),
        ("codex_cli_rs/0.50.0 (Debian)", "codex"),
        ("opencode/1.0 ai-sdk/provider-utils", "opencode"),
        ("Agents/Python 0.24.0", "openai-agents"),
        ("OpenAI/Python 2.54.0", "openai/python"),
        ("python-httpx/0.28.1", "python-httpx/0.28.1"),
        ("", ""),
    ],
)
def test_clients_are_known_by_their_user_agent(agent: str, name: str) -> None:
    assert read_client_name(agent.encode()) == name


def test_no_more_is_remembered_of_a_user_agent_than_is_read_of_it() -> None:
    read_client_name.cache_clear()
    for number in range(3):
        read_client_metadata({b"user-agent": b"x" * 200 + b"%d" % number}, {})
    assert read_client_name.cache_info().currsize == 1
