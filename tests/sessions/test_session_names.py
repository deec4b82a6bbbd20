"""Names of sessions: the user's first words, what a person gave, and how both are stored."""

from __future__ import annotations

import pytest

from accordion.accounting.ledger import sessions_collection
from accordion.model.conversation import Conversation, Message, Part, Role, Text
from accordion.model.ports import Key
from accordion.model.records import Session
from accordion.model.tenant import TenantScope
from accordion.sessions.session_names import SessionNames, SessionTitle, find_title, shorten
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeClock

TENANT = TenantScope("one", b"key")
NAMES = SessionNames(AesSealer([b"k" * 32]))


def message(*texts: str, role: Role = "user") -> Message:
    return Message(b"", role, tuple(map(Text, texts)), b"")


def conversation(*messages: Message, system: str = "") -> Conversation:
    preamble: tuple[Part, ...] = (Text(system),) if system else ()
    return Conversation("chat", "m", messages, (), preamble)


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        ((message("Fix the  flaky\ntest."),), "Fix the flaky test."),
        ((message("<system-reminder>\nBe brief.\n</system-reminder>", "Rename the module."),), "Rename the module."),
        (
            (
                message("# AGENTS.md instructions for /srv/app\n\n<INSTRUCTIONS>…</INSTRUCTIONS>"),
                message("<environment_context>\n  <cwd>/srv/app</cwd>\n</environment_context>"),
                message("Why is the build slow?"),
            ),
            "Why is the build slow?",
        ),
        (
            (message("This is the Gemini CLI. We are setting up the context for our chat."), message("Add a test.")),
            "Add a test.",
        ),
        (
            (message("This session is being continued from a previous conversation that ran out."), message("Go on.")),
            "Go on.",
        ),
        ((message("Hello, how can I help?", role="assistant"), message("List the files.")), "List the files."),
        ((message("Be kind.", role="developer"),), ""),
        ((message("<system-reminder>Only this.</system-reminder>"),), ""),
        ((), ""),
    ],
)
def test_a_session_is_named_by_the_first_words_that_its_user_wrote(messages: tuple[Message, ...], name: str) -> None:
    assert find_title(conversation(*messages)).name == name


@pytest.mark.parametrize(
    ("system", "text", "project"),
    [
        ("You are an agent.\n<env>\nWorking directory: /home/dev/billing\n</env>", "Hi", "billing"),
        ("", "<environment_context><cwd>C:\\work\\shop</cwd></environment_context>", "shop"),
        ("Primary working directory: /", "Hi", ""),
        ("", "Hi", ""),
    ],
)
def test_the_project_is_the_last_part_of_the_clients_folder(system: str, text: str, project: str) -> None:
    assert find_title(conversation(message(text), message("Hi"), system=system)).project == project


def test_a_long_name_ends_after_a_word() -> None:
    words = shorten("word " * 100, 80)
    assert len(words) <= 80
    assert words.endswith("word…")
    assert shorten("x" * 500, 80) == "x" * 79 + "…"
    assert shorten("one\x00two\u202ethree", 80) == "one two three"


def test_a_title_is_sealed_for_its_tenant_and_session() -> None:
    talk = conversation(message("The launch is on Friday."))
    session = NAMES.add_title(TENANT, Session("s-1", "one", 1.0), talk)
    assert b"launch" not in session.sealed_title
    assert NAMES.read_title(TENANT, [session]).name == "The launch is on Friday."
    assert NAMES.read_title(TenantScope("two", b"other"), [session]) == SessionTitle()
    moved = Session("s-2", "one", 1.0, sealed_title=session.sealed_title)
    assert NAMES.read_title(TENANT, [moved]) == SessionTitle()
    assert NAMES.add_title(TENANT, session, conversation(message("Something else."))) is session


def test_no_name_is_made_where_no_conversation_is_recorded() -> None:
    names = SessionNames(AesSealer([b"k" * 32]), is_recording=False)
    session = Session("s-1", "one", 1.0)
    assert names.add_title(TENANT, session, conversation(message("Hello."))) is session


async def test_a_persons_name_comes_first_until_it_is_removed() -> None:
    store, clock = InMemoryStore(), FakeClock()
    automatic = NAMES.add_title(TENANT, Session("s-1", "one", 1.0, updated=5.0), conversation(message("Hello.")))
    key = Key(sessions_collection(TENANT), "s-1.name.0")
    await NAMES.rename(store, TENANT, automatic, "The billing bug", clock.now(), 100.0)
    assert b"billing" not in (await store.get(key) or b"")
    assert await store.get(key) is not None
    await NAMES.rename(store, TENANT, automatic, "", clock.now(), 100.0)
    assert await store.get(key) is None
