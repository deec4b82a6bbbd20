"""An agent's own compaction: its request, and the list that goes on from the summary, are of the session before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.conversation import Conversation
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from accordion.sessions.client_compactions import asks_for_client_compaction
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch, Sessions
from accordion.sessions.tenants import Caller
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox, FakeClock
from tests.writers import WRITERS, MadeCall

ALICE = Caller(TenantScope("alice", b"a" * 32), False, "")
BOB = Caller(TenantScope("bob", b"b" * 32), False, "")
ASKING = "Your task is to create a detailed summary of the conversation so far."
CORE = (
    "1. Primary request: repair the parser of dates; tests are never to be skipped.\n"
    "2. Done: src/dates.py was read, and the fault is in the function that splits the text."
)
SUMMARY = (
    f"<analysis>{'A long line of thought that the client leaves out. ' * 9}</analysis>\n<summary>\n{CORE}\n</summary>"
)
QUESTION, ANSWER, MORE = "Repair the parser.", "I read src/dates.py.", "Go on."


def read(request: dict[str, Any], protocol_name: str, tenant: TenantScope = ALICE.tenant) -> Conversation:
    return BodyReader(0).read(PROTOCOLS[protocol_name], json.dumps(request).encode(), tenant)


class Agent:
    """An agent of one protocol, whose requests one worker over a store resolves."""

    def __init__(self, protocol_name: str, label: str = "", *, is_cache_key: bool = False) -> None:
        self.protocol_name, self.label, self.caller, self.is_cache_key = protocol_name, label, ALICE, is_cache_key
        self.store = InMemoryStore()
        self._start()

    def _start(self) -> None:
        self.outbox = DirectOutbox(self.store)
        self.sessions = Sessions(self.store, self.outbox, FakeClock(), "w")

    async def restart(self) -> None:
        """Another worker serves the agent from here on."""
        await self.outbox.flush()
        self._start()

    async def send(self, *texts: str, label: str | None = None, caller: Caller | None = None) -> SessionMatch:
        """Sends a list in which the user and the model take turns."""
        writer, caller = WRITERS[self.protocol_name], caller or self.caller
        entries = [(writer.user, writer.model)[number % 2](text) for number, text in enumerate(texts)]
        conversation = read(writer.request("m", entries), self.protocol_name, caller.tenant)
        metadata = ClientMetadata(
            self.label if label is None else label,
            is_client_compaction=asks_for_client_compaction(conversation),
            is_cache_key=self.is_cache_key,
        )
        return await self.sessions.resolve(caller, metadata, conversation, "request-1")

    async def work(self) -> str:
        """Sends two turns; returns their session."""
        await self.send(QUESTION)
        return (await self.send(QUESTION, ANSWER, MORE)).session.id

    async def compact(self) -> SessionMatch:
        """Asks for a summary, which the model writes."""
        match = await self.send(QUESTION, ANSWER, MORE, ANSWER, ASKING)
        self.sessions.record_client_summary(match, self.caller.tenant, SUMMARY)
        return match


LABELS = pytest.mark.parametrize("label", ["", "session-1"])
CONTINUATIONS = pytest.mark.parametrize(
    "texts",
    [
        (f"This session is being continued from a previous conversation.\n\nSummary:\n{CORE}\n\nGo on.",),
        (f"{QUESTION}\n{SUMMARY}",),
        ("What did we do so far?", SUMMARY, "Continue if you have next steps."),
        (SUMMARY, "Got it. Thanks for the additional context!", MORE),
    ],
    ids=["claude-code", "codex", "opencode", "gemini-cli"],
)


@pytest.mark.parametrize(
    ("fields", "is_asked"),
    [({}, False), ({"compaction": None}, False), ({"compaction": {"type": "summarize"}}, True)],
)
def test_an_empty_field_asks_for_no_compaction(fields: dict[str, Any], is_asked: bool) -> None:
    """Some libraries send every field that they know, null where it was not set."""
    request = {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **fields}
    assert asks_for_client_compaction(read(request, "messages")) is is_asked


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        ("Your task is to create a detailed summary of the conversation so far, paying close attention to …", True),
        ("Respond with text only.\n\nYour task is to create a detailed summary of the RECENT portion of the …", True),
        ("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM …", True),
        ("Provide a detailed prompt for continuing our conversation above.\nFocus on information …", True),
        ("Create a new anchored summary from the conversation history above.", True),
        ("Update the anchored summary below using the conversation history above.", True),
        ("First, reason in your scratchpad. Then, generate the updated <state_snapshot>.", True),
        ("Critically evaluate the <state_snapshot> you just generated. Did you omit …", True),
        ("Please create a detailed summary of the paper in docs/paper.pdf.", False),
        ("x" * 4_000 + "Provide a detailed prompt for continuing our conversation above.", False),
    ],
)
@pytest.mark.parametrize("protocol_name", WRITERS)
def test_a_clients_compaction_is_known_by_its_prompt(protocol_name: str, text: str, is_asked: bool) -> None:
    writer = WRITERS[protocol_name]
    user, model, asking = writer.user("x"), writer.model("y"), writer.user(text)
    client = read(writer.request("m", [user, model, asking]), protocol_name)
    assert asks_for_client_compaction(client) is is_asked
    later = read(writer.request("m", [asking, model, user]), protocol_name)
    assert not asks_for_client_compaction(later)


@pytest.mark.parametrize("protocol_name", WRITERS)
def test_a_clients_compaction_is_known_by_its_system_prompt(protocol_name: str) -> None:
    """OpenCode writes the whole conversation into one message."""
    writer = WRITERS[protocol_name]
    request = writer.with_system(
        writer.request("m", [writer.user("Here is the conversation so far:")]),
        "You are a context summarization agent. You are given a conversation.",
    )
    assert asks_for_client_compaction(read(request, protocol_name))


@pytest.mark.parametrize("protocol_name", WRITERS)
@LABELS
@CONTINUATIONS
async def test_a_conversation_is_one_session_over_its_agents_compaction(
    protocol_name: str, label: str, texts: tuple[str, ...]
) -> None:
    agent = Agent(protocol_name, label)
    before = await agent.work()
    asked = await agent.compact()
    after = await agent.send(*texts)
    later = await agent.send(*texts, *("I go on.", "And then?")[len(texts) % 2 == 0 :])
    assert {asked.session.id, after.session.id, later.session.id} == {before}
    assert after.base_node is None
    assert later.base_node is not None


@pytest.mark.parametrize("turns", [1, 2])
async def test_a_list_that_keeps_its_first_messages_is_a_new_list_of_the_session(turns: int) -> None:
    """Codex keeps the user's messages and puts the summary behind them."""
    agent, writer = Agent("responses"), WRITERS["responses"]
    before = (await agent.send(QUESTION)).session.id
    for _ in range(turns - 1):
        await agent.send(QUESTION, ANSWER, MORE)
    await agent.compact()
    request = writer.request("m", [writer.user(QUESTION), writer.user(SUMMARY)])
    match = await agent.sessions.resolve(ALICE, ClientMetadata(), read(request, "responses"), "request-1")
    assert match.session.id == before
    assert match.follows_client_compaction


@LABELS
async def test_the_summary_is_recognized_by_another_worker(label: str) -> None:
    agent = Agent("chat", label)
    before = await agent.work()
    await agent.compact()
    await agent.restart()
    assert (await agent.send("What did we do so far?", SUMMARY, MORE)).session.id == before


async def test_a_compaction_of_a_written_out_conversation_is_of_its_labels_session() -> None:
    """OpenCode's request for a summary continues no list; a title that was asked for meanwhile is another session."""
    agent = Agent("chat", "session-1")
    before = await agent.work()
    await agent.send("Generate a title.")
    await agent.restart()
    request = read(
        {"model": "m", "messages": [
            {"role": "system", "content": "You are a context summarization agent."},
            {"role": "user", "content": "Here is the conversation so far: …"},
        ]}, "chat",
    )  # fmt: skip
    metadata = ClientMetadata("session-1", is_client_compaction=True)
    assert (await agent.sessions.resolve(ALICE, metadata, request, "r")).session.id == before


async def test_a_label_and_the_clients_words_are_enough_after_an_unknown_compaction() -> None:
    agent = Agent("messages", "session-1")
    before = await agent.work()
    opening = "This session is being continued from a previous conversation that ran out of context."
    assert (await agent.send(opening)).session.id == before
    assert (await agent.send(opening, label="session-2")).session.id != before


async def test_a_summary_names_no_session_of_another_label_or_tenant() -> None:
    agent = Agent("chat", "session-1")
    before = await agent.work()
    await agent.compact()
    assert (await agent.send(SUMMARY, "Got it.", MORE, label="session-2")).session.id != before
    assert (await agent.send(SUMMARY, "Got it.", MORE, caller=BOB)).session.id != before


@pytest.mark.parametrize(
    "summary", ["All is done.", "Here is a detailed summary of all that was done so far:\nAll is done."]
)
async def test_a_short_summary_names_no_session(summary: str) -> None:
    agent = Agent("chat")
    before = await agent.work()
    agent.sessions.record_client_summary(await agent.compact(), ALICE.tenant, summary)
    assert (await agent.send(summary, "Got it.", MORE)).session.id != before


@pytest.mark.parametrize("protocol_name", WRITERS)
async def test_what_a_summary_quotes_names_no_session(protocol_name: str) -> None:
    """Another conversation may begin with the same template, or with the same output of a program."""
    agent, writer = Agent(protocol_name), WRITERS[protocol_name]
    template = "\n".join(
        f"{number}. Repair what the ticket below asks for, and never skip a test." for number in range(9)
    )
    output = "\n".join(f"tests/test_dates.py:{number}: AssertionError: the date has no month" for number in range(9))
    call = MadeCall("call-1", "run_tests", {}, output)
    entries = [
        writer.user(f"{template}\nTicket 1"),
        *writer.calls(call),
        *writer.results(call),
        writer.user(ASKING),
    ]
    asked = read(writer.request("m", entries), protocol_name)
    metadata = ClientMetadata(is_client_compaction=True)
    match = await agent.sessions.resolve(ALICE, metadata, asked, "request-1")
    agent.sessions.record_client_summary(match, ALICE.tenant, f"{template}\n{output}\n{CORE}")
    assert (await agent.send(f"{template}\nTicket 2", ANSWER, MORE)).session.id != match.session.id
    assert (await agent.send(output, ANSWER, MORE)).session.id != match.session.id
    assert (await agent.send(f"{template}\n{output}\n{CORE}", ANSWER, MORE)).session.id == match.session.id


async def test_a_compaction_belongs_to_its_own_list_whatever_the_label() -> None:
    """A label may be of two conversations; the user asks for a compaction before the model has responded."""
    agent, writer = Agent("chat", "session-1"), WRITERS["chat"]
    before = (await agent.send(QUESTION)).session.id
    await agent.send("Generate a title.", "Dates", "Another one.")
    await agent.send("Generate a title.", "Dates", "Another one.", "Days", "A third.")
    request = writer.request("m", [writer.user(QUESTION), writer.user(ASKING)])
    metadata = ClientMetadata("session-1", is_client_compaction=True)
    match = await agent.sessions.resolve(ALICE, metadata, read(request, "chat"), "request-1")
    assert match.session.id == before


async def test_a_key_of_the_prompt_cache_joins_no_sessions() -> None:
    """An application may send one key for all of its users."""
    agent = Agent("responses", "application", is_cache_key=True)
    before = await agent.work()
    opening = "This session is being continued from a previous conversation that ran out of context."
    assert (await agent.send(opening)).session.id != before
    assert (await agent.send("Another list", "Yes.", ASKING)).session.id != before


async def test_the_history_goes_on_as_it_was_if_its_summary_is_not_used() -> None:
    agent = Agent("chat")
    before = await agent.work()
    await agent.compact()
    later = await agent.send(QUESTION, ANSWER, MORE, ANSWER, "And now?")
    assert later.session.id == before
    assert later.session.forked_from == ""


async def test_another_question_after_the_summary_is_a_fork_once_the_first_was_continued() -> None:
    agent = Agent("chat")
    before = await agent.work()
    await agent.compact()
    opening = (SUMMARY, "Got it.", MORE)
    await agent.send(*opening)
    await agent.send(*opening, "One.", "Two?")
    await agent.send(*opening, "One.", "Two?", "Three.", "Four?")
    fork = await agent.send(*opening, "Another answer.", "Another question?")
    assert fork.session.id != before
    assert fork.session.forked_from == before
