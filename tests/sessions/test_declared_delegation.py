"""What requests say of delegation: in our own words, and by known clients' marks."""

import json

import pytest

from accordion.model.errors import BadRequest
from accordion.sessions.client_metadata import ClientMetadata, DeclaredDelegation
from tests.sessions.test_client_metadata import read_metadata

ID, CHILD = "0123-4567-89ab", "agent-12345"


# -- our own words ------------------------------------------------------------

OURS = {"x-accordion-delegation": "a:1", "x-accordion-parent": "b", "x-accordion-agent": "Anna, the 2nd"}


@pytest.mark.parametrize("kind", ["headers", "metadata"])
def test_a_delegation_is_declared_by_headers_or_in_metadata(kind):
    said = read_metadata(OURS) if kind == "headers" else read_metadata(metadata={**OURS, "user_id": "u"})
    where = "" if kind == "headers" else "metadata."
    assert said.declared_delegation == DeclaredDelegation(
        "a:1", "b", f"{where}x-accordion-delegation", f"{where}x-accordion-parent"
    )
    assert said.agent_name == "Anna, the 2nd"


def test_a_header_goes_before_metadata():
    said = read_metadata({"x-accordion-delegation": "a"}, metadata={**OURS, "x-accordion-delegation": "other"})
    assert said.declared_delegation == DeclaredDelegation(
        "a", "b", "x-accordion-delegation", "metadata.x-accordion-parent"
    )


def test_an_agent_may_be_named_without_a_delegation():
    said = read_metadata({"x-accordion-agent": "Anna"})
    assert (said.declared_delegation, said.agent_name) == (None, "Anna")


@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({"x-accordion-delegation": "a b"}, "metadata.x-accordion-delegation"),
        ({"x-accordion-delegation": 5}, "metadata.x-accordion-delegation"),
        ({"x-accordion-delegation": "a", "x-accordion-parent": "a"}, "metadata.x-accordion-parent"),
        ({"x-accordion-agent": "a\nb"}, "metadata.x-accordion-agent"),
    ],
)
def test_metadata_that_is_malformed_is_refused_by_its_name(metadata, param):
    with pytest.raises(BadRequest) as refused:
        read_metadata(metadata=metadata)
    assert refused.value.param == param


def test_a_declared_delegation_does_not_change_the_label():
    plain = {"X-Session-Id": ID}
    assert read_metadata({**plain, **OURS}).label == read_metadata(plain).label == ID


# -- Claude Code --------------------------------------------------------------

CLAUDE = {"X-Claude-Code-Session-Id": ID, "User-Agent": "claude-cli/2.1.0"}


def claude(agent: str = CHILD, parent: str = "", kind: str = "") -> ClientMetadata:
    above = {"x-claude-code-parent-agent-id": parent} if parent else {}
    return read_metadata({**CLAUDE, "x-claude-code-agent-id": agent, "x-claude-code-agent-type": kind, **above})


def test_an_agent_of_claude_code_works_for_the_session_or_for_the_agent_it_names():
    assert claude().parent == ID
    assert claude(parent="agent-99999").parent == f"{ID}/agent-99999"
    assert claude(parent=ID).parent == ID
    assert claude(kind="Explore").agent_name == "Explore"


@pytest.mark.parametrize("parent", [CHILD, "short", "with space"])
def test_an_ill_formed_parent_or_one_that_is_the_agent_itself_is_never_fatal(parent):
    assert claude(parent=parent).parent == ("" if parent == CHILD else ID)


def test_the_main_agent_of_claude_code_has_no_parent_unless_its_session_has_one():
    assert read_metadata(CLAUDE).parent == ""
    user = {"device_id": "d", "session_id": ID, "parent_session_id": "parent-0001"}
    assert read_metadata(CLAUDE, metadata={"user_id": json.dumps(user)}).parent == "parent-0001"


@pytest.mark.parametrize("user", ['{"parent_session_id": 5}', '{"parent_session_id"', "parent_session_id", "[]", 5])
def test_a_parent_session_that_is_not_well_formed_is_none(user):
    assert read_metadata(CLAUDE, metadata={"user_id": user, "x": "parent_session_id"}).parent == ""


def test_a_compaction_by_the_client_is_no_delegation():
    assert read_metadata({**CLAUDE, "x-claude-code-request-class": "compaction"}).parent == ""
    assert read_metadata({**CODEX, "thread-id": CHILD, "x-openai-subagent": "compact"}).parent == ""


# -- Codex --------------------------------------------------------------------

CODEX = {"User-Agent": "codex_cli_rs/0.50 (Linux)", "session-id": ID}


def test_a_thread_of_codex_works_for_its_session_or_for_the_thread_it_names():
    child = {**CODEX, "thread-id": CHILD, "x-openai-subagent": "collab_spawn"}
    assert (read_metadata(child).parent, read_metadata(child).agent_name) == (ID, "collab_spawn")
    assert read_metadata({**child, "x-codex-parent-thread-id": "thread-999"}).parent == f"{ID}/thread-999"
    assert read_metadata({**child, "x-codex-parent-thread-id": ID}).parent == ID
    assert read_metadata({**child, "x-codex-parent-thread-id": CHILD}).parent == ""


def test_the_main_thread_of_codex_and_a_thread_that_nobody_began_have_no_parent():
    assert read_metadata({**CODEX, "thread-id": ID}).parent == ""
    assert read_metadata({**CODEX, "thread-id": CHILD}).parent == ""


def test_codex_may_say_it_in_the_body():
    said = {"thread-id": CHILD, "x-codex-parent-thread-id": "thread-999", "x-openai-subagent": "review", "n": 5}
    assert read_metadata(CODEX, client_metadata=said).parent == f"{ID}/thread-999"
    assert read_metadata(CODEX, client_metadata=said).agent_name == "review"
    assert read_metadata({"session-id": ID}, client_metadata=said) == ClientMetadata()


@pytest.mark.parametrize("said", [5, [], "text", None, {"thread-id": "short"}, {"thread-id": ["x"]}])
def test_any_codex_metadata_in_the_body_is_harmless(said):
    assert read_metadata(CODEX, client_metadata=said).parent == ""


# -- OpenCode -----------------------------------------------------------------


def test_a_session_of_opencode_works_for_the_one_it_names():
    said = {"X-Session-Id": "ses_child_1", "x-parent-session-id": "ses_parent_1"}
    assert (read_metadata(said).parent, read_metadata(said).label) == ("ses_parent_1", "ses_child_1")
    assert read_metadata({**said, "x-parent-session-id": "ses_child_1"}).parent == ""
    assert read_metadata({"x-parent-session-id": "ses_parent_1"}).parent == ""
