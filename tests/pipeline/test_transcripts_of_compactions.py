"""Recorded conversations of real agents, compacted as live ones are: what leaves is legal, keeps what it must, and
begins as the request before did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accordion.config.load import build
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.conversation import Message
from accordion.model.http import Inbound
from accordion.model.tenant import TenantScope
from accordion.pipeline.request import PreparedRequest
from accordion.protocols.base import WireProtocol
from accordion.protocols.message_keys import message_key
from tests.histories import ProtocolName
from tests.pipeline_setup import PATHS
from tests.protocols.edit_samples import SPOKEN
from tests.recordings import read_recording, recorded_cases, transcripts, write_entry
from tests.writers import LISTS

TENANT = TenantScope("", b"")

MOST_CONVERSATIONS = 4
REQUESTS = 7
"""So many requests of each conversation are made, evenly spread: each holds all that was said before."""


pytestmark = pytest.mark.skipif(not transcripts(), reason="the recorded transcripts are not here")


@pytest.mark.timeout(600)  # the longest transcripts take many seconds, and as many minutes on a busy machine
@pytest.mark.parametrize(("path", "name", "window"), recorded_cases(8_000, 32_000, 128_000))
async def test_every_forwarded_list_is_legal_and_begins_as_the_one_before(
    path: Path, name: ProtocolName, window: int
) -> None:
    setup = OfflinePipeline(build(b"upstreams: {bedrock: {base_url: 'https://bedrock.test'}}", {}, {}), window)
    try:
        for number, said in enumerate(read_recording(path, MOST_CONVERSATIONS)):
            before: PreparedRequest | None = None
            sliced = False
            for size in _sizes(said):
                body, system, listed = _request(said[:size], name)
                headers = ((b"content-type", b"application/json"), (b"x-accordion-session", b"recording-%d" % number))
                inbound = Inbound("POST", PATHS[name], "", headers, body, f"{number}-{size}")
                measured = await setup.process(inbound, setup.caller)
                assert isinstance(measured, PreparedRequest)
                sent = msgspec.json.decode(measured.forwarded_body)
                _legal(SPOKEN[name], sent[LISTS[name]], listed)
                # What was sliced once because it breaks the hard limit alone stays so in later compactions.
                sliced = sliced or _sliced(measured)
                _check_protected(sent, system, [] if sliced else listed, name)
                _continues(before, measured)
                before = measured
    finally:
        await setup.close()


def _sizes(said: list[dict[str, Any]]) -> Iterator[int]:
    """After how many messages the requests are made."""
    steps = [at for at, entry in enumerate(said) if entry["role"] == "assistant" and any(_asks(e) for e in said[:at])]
    for place in sorted({round(k * (len(steps) - 1) / (REQUESTS - 1)) for k in range(REQUESTS)} if steps else ()):
        yield steps[place]


def _asks(entry: dict[str, Any]) -> bool:
    return entry["role"] == "user"


def _request(said: list[dict[str, Any]], name: ProtocolName) -> tuple[bytes, str, list[Any]]:
    """The body, the system prompt in it, and the list without that."""
    system = "\n".join(entry["content"] for entry in said if entry["role"] == "system")
    listed = [one for entry in said for one in write_entry(entry, name)]
    head = [{"role": "system", "content": system}] if system and name not in ("messages", "converse") else []
    fields: dict[str, Any] = {"model": "recorded", LISTS[name]: [*head, *listed]}
    if system and name == "messages":
        fields["system"] = system
    if system and name == "converse":
        fields["system"] = [{"text": system}]
    # Lone surrogates, which recorded results do hold, can only be sent as escapes.
    return json.dumps(fields).encode(), system, listed


def _read(protocol: WireProtocol, entries: list[Any]) -> list[Message]:
    found = []
    for entry in entries:
        wire = json.dumps(entry).encode()
        said = protocol.read_message(wire)
        found.append(Message(message_key(said.canonical, TENANT, protocol.name), said.role, said.parts, wire))
    return found


def _legal(protocol: WireProtocol, sent: list[Any], listed: list[Any]) -> None:
    left = [entry for entry in sent if entry.get("role") != "system"]
    own = set(protocol.find_problems(_read(protocol, listed)))
    assert [problem for problem in protocol.find_problems(_read(protocol, left)) if problem not in own] == []


def _check_protected(sent: dict[str, Any], system: str, listed: list[Any], name: ProtocolName) -> None:
    """System prompt, opening request and newest message are there, verbatim."""
    assert not system or json.dumps(system)[1:-1] in json.dumps(sent)
    whole = json.dumps(sent[LISTS[name]])
    first = [entry for entry in listed if entry.get("role") == "user"][:1]
    for entry in (*first, *listed[-1:]):
        assert _text(entry) in whole


def _sliced(measured: PreparedRequest) -> bool:
    """Whether the compaction in force had to slice what is protected."""
    made = measured.history.compaction
    return made is not None and any(step.strategy == "last_resort" for step in made.steps)


def _text(entry: dict[str, Any]) -> str:
    content = entry.get("content", entry.get("output"))
    if isinstance(content, list):
        content = next((b.get("text") or b.get("content") for b in content if b.get("text") or b.get("content")), "")
    return json.dumps(content or "")[1:-1]


def _continues(before: PreparedRequest | None, now: PreparedRequest) -> None:
    """Between compactions the list of a request begins with the whole of the one before, byte for byte."""
    if before is None or before.compaction_id != now.compaction_id:
        return
    old, new = before.history.conversation.messages, now.history.conversation.messages
    assert [message.wire for message in old] == [message.wire for message in new[: len(old)]]
    if before.rewritten_body is not None and now.rewritten_body is not None:
        assert now.rewritten_body.startswith(before.rewritten_body.rstrip(b"]}"))
