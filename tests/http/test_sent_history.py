"""The last forwarded request of a session, reconstructed: what the model sees beside what the client said."""

import json
from typing import Any

import pytest

from tests.growing_conversation import COMPACTED_AT, GrowingConversation, small_window_setup
from tests.histories import PROTOCOL_NAMES, ProtocolName
from tests.http.api_client import client
from tests.pipeline_setup import PipelineSetup, header
from tests.writers import LISTS


async def recorded(
    setup: PipelineSetup, protocol_name: ProtocolName, turns: int, **headers: str
) -> tuple[GrowingConversation, str]:
    """A conversation of so many turns, and the path of its session."""
    talk = GrowingConversation(setup, protocol_name)
    out = await talk.until(turns, **headers)
    await setup.archive.transcripts.flush()
    return talk, f"/accordion/sessions/{header(out, 'x-accordion-session')}"


def everywhere(config: str = "") -> PipelineSetup:
    return small_window_setup(config=f"archive: {{record: all}}\n{config}")


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@pytest.mark.parametrize("turns", [2, COMPACTED_AT, COMPACTED_AT + 2, COMPACTED_AT + 8])
async def test_the_sent_request_is_the_one_that_the_provider_got(protocol_name: ProtocolName, turns: int) -> None:
    setup = everywhere()
    talk, path = await recorded(setup, protocol_name, turns)
    setup.builder.forget_store()
    answer = client(setup).get(f"{path}/sent")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-accordion-protocol"] == protocol_name
    assert ("x-accordion-compaction-id" in answer.headers) == (turns >= COMPACTED_AT)
    sent, got = json.loads(answer.content), json.loads(talk.forwarded)
    # Gemini's clients send the model's name in the path.
    assert sent == {"model": "gpt-5"} | got
    entries = json.dumps(got[LISTS[protocol_name]][-1], separators=(",", ":"), ensure_ascii=False)
    assert json.dumps(sent[LISTS[protocol_name]][-1], separators=(",", ":"), ensure_ascii=False) == entries


async def test_the_sent_request_of_a_labelled_session_is_found_in_its_own_scope() -> None:
    setup = everywhere()
    talk, path = await recorded(setup, "chat", COMPACTED_AT + 1, x_accordion_session="label-of-mine")
    sent = client(setup).get(f"{path}/sent").json()
    assert sent["messages"] == json.loads(talk.forwarded)["messages"] != json.loads(talk.bodies[-1])["messages"]


async def test_a_last_request_that_was_not_compacted_was_sent_unchanged() -> None:
    setup = everywhere()
    talk, path = await recorded(setup, "chat", COMPACTED_AT + 1)
    await talk.turn(COMPACTED_AT + 2, x_accordion_compact="off")
    await setup.archive.transcripts.flush()
    answer = client(setup).get(f"{path}/sent")
    assert answer.json()["messages"] == json.loads(talk.bodies[-1])["messages"]
    assert "x-accordion-compaction-id" not in answer.headers


async def test_the_difference_names_each_message_of_the_client_once_and_where_it_went() -> None:
    setup = everywhere()
    talk, path = await recorded(setup, "chat", COMPACTED_AT + 2)
    http = client(setup)
    told = http.get(f"{path}/diff").json()
    system, *messages = json.loads(talk.bodies[-1])["messages"]
    assert system["role"] == "system"
    assert told["compaction"]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for block in told["blocks"]:
        by_kind.setdefault(block["kind"], []).append(block)
    changed = [message for block in told["blocks"] for message in block["client"]]
    unchanged = sum(last - first + 1 for first, last in (each["messages"] for each in by_kind["unchanged"]))
    assert len(changed) + unchanged == len(messages)
    (summary,) = by_kind["summary"]
    assert summary["client"] == messages[summary["messages"][0] : summary["messages"][1] + 1]
    # It is joined with the client's message behind it.
    assert json.dumps(summary["sent"][0]["content"])[1:-1] in talk.forwarded.decode()
    kinds = {http.get(f"/accordion/artifacts/{each}", headers={"accept": "application/json"}).status_code
             for each in summary["artifacts"]}  # fmt: skip
    assert kinds == {200}


@pytest.mark.parametrize("view", ["sent", "diff"])
async def test_a_session_without_a_transcript_and_one_of_another_tenant_say_so(view: str) -> None:
    setup = small_window_setup()
    _, path = await recorded(setup, "chat", 2)
    http = client(setup)
    answer = http.get(f"{path}/{view}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "original_not_found")
    answer = http.get(f"/accordion/sessions/s-unknown/{view}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")


async def test_a_request_that_is_not_recorded_yet_is_not_made_up() -> None:
    setup = everywhere()
    talk, path = await recorded(setup, "chat", COMPACTED_AT + 1)
    await talk.turn(COMPACTED_AT + 2)
    answer = client(setup).get(f"{path}/sent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "sent_not_found")
