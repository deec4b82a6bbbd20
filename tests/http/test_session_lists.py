"""Lists of sessions: their names, and the search for them, in the API and on the page."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from accordion.accounting.ledger import sessions_collection
from accordion.model.ports import Key
from accordion.model.tenant import TenantScope
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply
from tests.http.api_client import client, location
from tests.pipeline_setup import CHAT, OWNER_TOKEN, PipelineSetup, header

PAGES = "/accordion/pages"
TENANT = TenantScope("default", b"key of default")
OWN = {"sec-fetch-site": "same-origin"}
KEY = "archive: {key: " + "ab" * 32 + "}"
CLAUDE = {"user-agent": "claude-cli/2.1.0 (external, cli)"}


async def ask(setup: PipelineSetup, text: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """Sends the first request of a session; returns its id."""
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": text}], **fields}
    out, _ = await setup.ask(CHAT, body, headers)
    setup.clock.advance(1)
    return header(out, "x-accordion-session") or ""


def names(http: TestClient, query: str = "") -> list[str]:
    return [each["name"] for each in http.get(f"/accordion/sessions{query}").json()["sessions"]]


async def test_a_session_has_the_name_of_its_first_words_or_the_one_a_person_gave() -> None:
    setup = PipelineSetup()
    session = await ask(setup, "Look for the leak in the parser.", CLAUDE)
    http = client(setup)
    path = f"/accordion/sessions/{session}"
    assert names(http) == ["Look for the leak in the parser."]
    assert http.put(f"{path}/name", json={"name": " The leak "}).json() == {"session": session, "name": "The leak"}
    assert (http.get(path).json()["name"], names(http)) == ("The leak", ["The leak"])
    shown = http.get(f"{PAGES}/sessions").text
    assert re.search(r'<a class="session-name"[^>]*>The leak</a>', shown)
    assert "Claude Code" in shown
    await ask(setup, "Look for the leak in the parser.", CLAUDE)
    assert http.get(path).json()["name"] == "The leak"
    answer = http.post(f"{PAGES}/sessions/{session}/name", data={"name": ""}, headers=OWN)
    assert location(answer) == f"{PAGES}/sessions/{session}?done=name"
    assert http.get(f"{path}/name").json()["name"] == "Look for the leak in the parser."
    for wrong in ({"name": "x" * 121}, {"name": "two\nlines"}, {"name": 3}, {"title": "x"}, []):
        assert http.put(f"{path}/name", json=wrong).status_code == 400
    assert http.put("/accordion/sessions/s-none/name", json={"name": "x"}).status_code == 404


async def test_names_are_encrypted_where_a_key_is_set_and_erased_with_their_session() -> None:
    setup = PipelineSetup(config=KEY)
    session = await ask(setup, "The merger is on Friday.")
    http = client(setup)
    assert http.put(f"/accordion/sessions/{session}/name", json={"name": "Merger talks"}).status_code == 200
    stored = b"".join(value for _, value in await setup.store.scan(sessions_collection(TENANT)))
    assert stored
    assert b"erger" not in stored
    assert names(http) == ["Merger talks"]
    assert http.delete(f"/accordion/sessions/{session}").status_code == 200
    assert await setup.store.scan(sessions_collection(TENANT)) == []
    assert names(http) == []


async def test_no_words_of_a_user_are_stored_as_a_name_if_nothing_is_recorded() -> None:
    setup = PipelineSetup(config="archive: {record: 'off'}")
    session = await ask(setup, "The merger is on Friday.")
    http = client(setup)
    assert names(http) == [""]
    assert f">{session}</a>" in http.get(f"{PAGES}/sessions").text
    http.put(f"/accordion/sessions/{session}/name", json={"name": "Merger talks"})
    assert names(http) == ["Merger talks"]


async def test_exports_have_the_names_of_sessions() -> None:
    setup = PipelineSetup()
    session = await ask(setup, "The merger is on Friday.")
    await ask(setup, "Another one.")
    http = client(setup)
    for path, count in ((f"/accordion/sessions/{session}/export", 1), ("/accordion/export", 2)):
        lines = [json.loads(line) for line in http.get(path).text.splitlines()]
        expected = {"type": "name", "session": session, "name": "The merger is on Friday.", "project": ""}
        assert expected in lines
        assert lines[-1]["counts"]["name"] == count


async def test_a_name_that_outlives_its_session_is_no_session() -> None:
    setup = PipelineSetup()
    session = await ask(setup, "Hello.")
    http = client(setup)
    http.put(f"/accordion/sessions/{session}/name", json={"name": "Greetings"})
    for name, _ in await setup.store.scan(sessions_collection(TENANT)):
        if not name.endswith(".name.0"):
            await setup.store.delete([Key(sessions_collection(TENANT), name)])
    assert http.get("/accordion/sessions").json()["sessions"] == []
    assert http.get(f"/accordion/sessions/{session}").status_code == 404


async def filled() -> PipelineSetup:
    """Three sessions: of two models and clients, one with a failed request, a second apart."""
    setup = PipelineSetup()
    await ask(setup, "Fix the parser.", {**CLAUDE, "x-accordion-session": "label-of-one"})
    await ask(setup, "Write the report.", model="gpt-4o")
    setup.upstream.answers = [FakeReply(status=500, pieces=(b'{"error": {"message": "no"}}',))]
    await ask(setup, "Fix the FORM.", {"user-agent": "codex_cli_rs/0.50"})
    return setup


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=fix", ["Fix the FORM.", "Fix the parser."]),
        ("q=form", ["Fix the FORM."]),
        ("q=label-of", ["Fix the parser."]),
        ("q=nothing", []),
        ("label=label-of-one", ["Fix the parser."]),
        ("model=gpt-4o", ["Write the report."]),
        ("client=claude-code", ["Fix the parser."]),
        ("failed=true", ["Fix the FORM."]),
        ("failed=false", ["Write the report.", "Fix the parser."]),
        ("compacted=true", []),
        ("q=fix&failed=false&compacted=false", ["Fix the parser."]),
        ("since=1970-01-12&until=1970-01-12", ["Fix the FORM.", "Write the report.", "Fix the parser."]),
        ("since=1970-01-13", []),
        ("until=1970-01-11", []),
    ],
)
async def test_sessions_are_searched_in_the_api_and_on_the_page_alike(query: str, expected: list[str]) -> None:
    http = client(await filled())
    assert names(http, f"?{query}") == expected
    page = http.get(f"{PAGES}/sessions?{query}").text
    assert re.findall(r'class="session-name"[^>]*>([^<]*)<', page) == expected
    if not expected:
        assert "No session is like that." in page


async def test_a_filter_holds_on_the_next_page_and_its_form_shows_it() -> None:
    setup = PipelineSetup()
    for number in range(45):
        await ask(setup, f"{'Even' if number % 2 == 0 else 'Odd'} {number}")
    http = client(setup)
    first = http.get(f"{PAGES}/sessions?q=even").text
    assert 'value="even"' in first
    (following,) = re.findall(r'rel="next" href="([^"]+)"', first)
    rest = http.get(f"{PAGES}/{following.replace('&amp;', '&')}").text
    shown = re.findall(r'class="session-name"[^>]*>([^<]*)<', first + rest)
    assert shown == [f"Even {number}" for number in range(44, -1, -2)]
    page = http.get("/accordion/sessions?q=even&limit=20").json()
    assert len(http.get(f"/accordion/sessions?q=even&limit=20&cursor={page['next']}").json()["sessions"]) == 3


@pytest.mark.parametrize("query", ["compacted=yes", "failed=1", "since=now", "until=2026-13-01", f"q={'x' * 201}"])
async def test_a_filter_that_cannot_be_read_is_refused(query: str) -> None:
    http = client(PipelineSetup())
    answer = http.get(f"/accordion/sessions?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
    assert http.get(f"{PAGES}/sessions?{query}").status_code == 400


async def test_a_tenant_neither_lists_nor_names_a_session_of_another() -> None:
    setup = PipelineSetup(keys=(ProxyKey("one", "key-one"), ProxyKey("two", "key-two")))
    session = await ask(setup, "The merger.", {"x-accordion-key": "key-one"})
    http, two = client(setup), {"x-accordion-key": "key-two"}
    assert http.get("/accordion/sessions?q=merger", headers=two).json()["sessions"] == []
    assert http.put(f"/accordion/sessions/{session}/name", json={"name": "x"}, headers=two).status_code == 404


async def test_everything_is_exported_and_erased_from_the_page_after_a_confirmation() -> None:
    setup = PipelineSetup()
    await ask(setup, "One.")
    await ask(setup, "Two.")
    stranger = client(setup, token="")
    assert "Sign in to export or erase all sessions" in stranger.get(f"{PAGES}/sessions").text
    for path in ("export", "erase"):
        assert stranger.get(f"{PAGES}/{path}").status_code == 303
    assert stranger.post(f"{PAGES}/erase", data={"confirm": "erase"}, headers=OWN).status_code == 303
    assert len(names(stranger)) == 2
    stranger.get(f"/accordion/sign-in?token={OWNER_TOKEN}")
    assert stranger.get(f"{PAGES}/export").text == client(setup).get("/accordion/export").text
    assert "cannot be undone" in stranger.get(f"{PAGES}/erase").text
    assert stranger.post(f"{PAGES}/erase", data={"confirm": ""}, headers=OWN).status_code == 400
    assert stranger.post(f"{PAGES}/erase", data={"confirm": "erase"}).status_code == 403
    answer = stranger.post(f"{PAGES}/erase", data={"confirm": "erase"}, headers=OWN)
    assert (answer.status_code, "2 sessions" in answer.text) == (200, True)
    assert names(stranger) == []
