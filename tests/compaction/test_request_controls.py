from __future__ import annotations

from typing import Any

import pytest

from accordion.compaction.request_controls import read_controls, thinking_mode
from accordion.model.errors import BadRequest
from tests.compaction.compactor_setup import read
from tests.writers import WRITERS


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({}, False), ({"compaction": None}, False), ({"compaction": {"type": "summarize"}}, True)],
)
def test_only_a_compaction_that_says_something_is_asked_for(fields: dict[str, Any], asked: bool) -> None:
    """Some libraries send every field that they know, null where it was not given."""
    request = {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **fields}
    assert read_controls({}, read(request, "messages"), is_client_compaction=False).is_client_compaction is asked


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Your task is to create a detailed summary of the conversation so far, paying close attention to …", True),
        ("Respond with text only.\n\nYour task is to create a detailed summary of the RECENT portion of the …", True),
        ("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM …", True),
        ("Provide a detailed prompt for continuing our conversation above.\nFocus on information …", True),
        ("Create a new anchored summary from the conversation history above.", True),
        ("Update the anchored summary below using the conversation history above.", True),
        ("Please create a detailed summary of the paper in docs/paper.pdf.", False),
        ("x" * 4_000 + "Provide a detailed prompt for continuing our conversation above.", False),
    ],
)
@pytest.mark.parametrize("protocol_name", WRITERS)
def test_a_clients_own_compaction_is_known_by_its_words_where_no_header_says_so(
    protocol_name: str, text: str, asked: bool
) -> None:
    writer = WRITERS[protocol_name]
    user, model, asking = writer.user("x"), writer.model("y"), writer.user(text)
    client = read(writer.request("m", [user, model, asking]), protocol_name)
    assert read_controls({}, client, is_client_compaction=False).is_client_compaction is asked
    later = read(writer.request("m", [asking, model, user]), protocol_name)
    assert not read_controls({}, later, is_client_compaction=False).is_client_compaction


@pytest.mark.parametrize(
    ("mode", "ending"), [("obsreve", "observe; did you mean `observe`?"), ("x", "one of auto, now, off, observe.")]
)
def test_an_unknown_mode_is_refused_with_the_modes(mode: str, ending: str) -> None:
    conversation = read(WRITERS["chat"].request("m", [WRITERS["chat"].user("x")]), "chat")
    with pytest.raises(BadRequest) as caught:
        read_controls({b"x-accordion-compact": mode.encode()}, conversation, is_client_compaction=False)
    assert caught.value.message.endswith(ending)


def test_thinking_is_bound_as_the_model_that_is_really_asked_binds_it() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s" * 40}
    said = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "y"}]},
    ]
    client = read(
        {"model": "smart", "max_tokens": 9, "messages": [*said, {"role": "user", "content": "z"}]}, "messages"
    )
    assert thinking_mode(client, "") == "free"
    assert thinking_mode(client, "", "anthropic/claude-opus-5-5") == "bound"
    assert thinking_mode(client, "", "anthropic/claude-opus-4-5") == "free"


ASKED = {"model": "gpt-5", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("said", "project"), [(None, None), (b"", ""), (b" billing  desk ", "billing desk"), ("café".encode(), "café")]
)
def test_a_request_may_name_its_project(said: bytes | None, project: str | None) -> None:
    fields = {b"x-accordion-project": said} if said is not None else {}
    assert read_controls(fields, read(ASKED, "chat"), is_client_compaction=False).project == project


@pytest.mark.parametrize("said", [b"*", b"a\x07", b"x" * 201, "café".encode("latin-1")])
def test_what_is_no_name_of_one_project_is_refused(said: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        read_controls({b"x-accordion-project": said}, read(ASKED, "chat"), is_client_compaction=False)
    assert refused.value.param == "x-accordion-project"
