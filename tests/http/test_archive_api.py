"""What is kept, as people have it by the API: each tenant its own, and nobody else's."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from accordion.archive.artifacts import ArchivedMessage, Artifact
from accordion.archive.erasure import ErasureResult
from accordion.compaction.session_overrides import SessionOverrides
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.odd_json import make_readable
from accordion.protocols.registry import PROTOCOLS
from accordion.sessions.prefix_nodes import PrefixNode, decode
from accordion.sessions.proxy_keys import ProxyKey
from accordion.sessions.tenants import OWNER_TOKEN_FILE, Caller
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import chat
from tests.archive.test_feature_records import Notes
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, call_id, small_window_setup
from tests.http.api_client import client
from tests.pipeline_setup import OWNER_TOKEN, PipelineSetup, header

TENANT = TenantScope("default", b"key of default")
OTHER = TenantScope("other", b"key of other")

ONE, TWO = ProxyKey("one", "key-one"), ProxyKey("two", "key-two")
JSON = {"accept": "application/json"}


async def compacted(setup: PipelineSetup, key: str = "") -> tuple[str, list[dict[str, Any]]]:
    """A session that was compacted, and its artifacts as the API lists them."""
    headers = {"x_accordion_key": key} if key else {}
    session = header(await GrowingConversation(setup).until(COMPACTED_AT + 1, **headers), "x-accordion-session")
    assert session is not None
    sent = {"x-accordion-key": key} if key else {}
    listed = client(setup).get(f"/accordion/artifacts?session={session}", headers=sent).json()["artifacts"]
    return session, sorted(listed, key=lambda each: each["messages"])


def caller(setup: PipelineSetup, key: str = "") -> Caller:
    return setup.forward.tenants.identify({b"x-accordion-key": key.encode()} if key else {})


async def store_artifact(setup: PipelineSetup, wires: list[bytes], text: str = "part") -> Artifact:
    """Messages put away for the one tenant, as one artifact."""
    rows = [ArchivedMessage(bytes([number]) * 32, wire) for number, wire in enumerate(wires)]
    keys, tenant = tuple(row.key for row in rows), caller(setup).tenant
    made = Artifact("art_0123456789ab", "range" if text == "range" else "part", "chat", keys, 3, 3, 0, session="s-kept")
    await setup.builder.archive.write(setup.builder.archive.build_puts(tenant, rows, [made]))
    return made


def error(answer: Any) -> tuple[int, str, str]:
    told = answer.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return answer.status_code, told["code"], told["message"]


# -- the owner's token -------------------------------------------------------------------------------------------------

OWNERS = [
    ("GET", "/accordion/sessions/{session}/export"),
    ("GET", "/accordion/export"),
    ("DELETE", "/accordion/sessions/{session}"),
    ("DELETE", "/accordion/archive"),
]


@pytest.mark.parametrize(("method", "path"), OWNERS)
async def test_to_erase_and_to_export_a_local_caller_needs_the_owners_token(method: str, path: str) -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    for token in ("", "token-of-another", OWNER_TOKEN[:-1]):
        answer = client(setup, token=token).request(method, path.format(session=session))
        assert error(answer)[:2] == (401, "token_required"), token
        assert "x-accordion-token" in answer.text
        assert OWNER_TOKEN_FILE in answer.text
    assert client(setup, token="").get(f"/accordion/sessions/{session}").status_code == 200
    answer = client(setup).request(method, path.format(session=session))
    assert answer.status_code == 200


@pytest.mark.parametrize(("method", "path"), OWNERS)
async def test_a_page_of_another_site_cannot_erase_with_the_token_either(method: str, path: str) -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    foreign = {"origin": "http://127.0.0.1:3000"}
    answer = client(setup).request(method, path.format(session=session), headers=foreign)
    assert error(answer)[:2] == (403, "foreign_origin")


@pytest.mark.parametrize(("method", "path"), OWNERS)
async def test_callers_identified_by_credentials_need_no_token(method: str, path: str) -> None:
    for setup, headers in (
        (small_window_setup(keys=(ONE,)), {"x-accordion-key": "key-one"}),
        (small_window_setup(loopback=False), {"authorization": "Bearer sk-own"}),
    ):
        talk = {name.replace("-", "_"): value for name, value in headers.items()}
        session = header(await GrowingConversation(setup).until(COMPACTED_AT + 1, **talk), "x-accordion-session")
        answer = client(setup, token="").request(method, path.format(session=session), headers=headers)
        assert answer.status_code == 200, answer.text


# -- artifacts ---------------------------------------------------------------------------------------------------------


async def test_an_artifact_is_text_and_its_record_beside_it_where_json_is_asked_for() -> None:
    setup = small_window_setup()
    session, listed = await compacted(setup)
    result = next(each for each in listed if each["call_id"] == call_id(2))
    http = client(setup)
    plain = http.get(f"/accordion/artifacts/{result['id']}")
    assert plain.headers["content-type"] == "text/plain; charset=utf-8"
    assert plain.text.startswith("word2_0_0 word2_0_1")
    told = http.get(f"/accordion/artifacts/{result['id']}", headers=JSON).json()
    assert told["text"] == plain.text
    assert told["artifact"] == result
    assert result["characters"] == len(plain.text)
    assert result["tool"] == "read"
    assert told["input"] == '{"path": "src/file_2_0.py"}'
    assert told["sessions"] == [result["session"]] == [session]
    assert told["next"] is None
    assert "x-accordion-next" not in plain.headers


async def test_a_stretch_of_messages_is_all_of_them() -> None:
    setup = small_window_setup()
    _, listed = await compacted(setup)
    stretch = next(each for each in listed if each["kind"] == "range")
    text = client(setup).get(f"/accordion/artifacts/{stretch['id']}").text
    first, last = stretch["messages"]
    assert all(f"[{index}] " in text for index in range(first, last + 1))


async def test_a_part_of_an_artifact_is_had_by_offset_limit_pattern_and_path() -> None:
    setup = PipelineSetup()
    lines = "\\n".join(f"line {number}" for number in range(1, 11))
    await store_artifact(setup, [b'{"role":"user","content":"%s"}' % lines.encode()])
    http = client(setup)

    def get(query: str) -> Any:
        return http.get(f"/accordion/artifacts/art_0123456789ab?{query}")

    page = get("offset=3&limit=2")
    assert (page.text, page.headers["x-accordion-next"]) == ("line 3\nline 4", "5")
    assert get("offset=-2").text == "line 9\nline 10"
    assert get("pattern=e%207$").text.splitlines()[2] == "7:line 7"
    await store_artifact(setup, [b'{"role":"user","content":"{\\"a\\": {\\"b\\": [1, \\"two\\"]}}"}'])
    assert get("path=$.a.b[1]").text == "two"
    assert (
        "the value at" in http.get("/accordion/artifacts/art_0123456789ab?path=$.a.b[1]", headers=JSON).json()["shown"]
    )


@pytest.mark.parametrize(
    ("query", "param", "words"),
    [
        ("offset=x", "offset", "whole number"),
        ("offset=--1", "offset", "whole number"),
        ("offset=" + "9" * 5_000, "offset", "whole number"),
        ("limit=-1", "limit", "whole number"),
        ("offset=99", None, "there is nothing at offset 99"),
        ("pattern=" + "x" * 600, None, "1 to 500 characters"),
        ("path=$.missing", None, "JSON"),
    ],
)
async def test_what_cannot_be_had_of_an_artifact_is_said(query: str, param: str | None, words: str) -> None:
    setup = PipelineSetup()
    await store_artifact(setup, [b'{"role":"user","content":"one line"}'])
    answer = client(setup).get(f"/accordion/artifacts/art_0123456789ab?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert words in error(answer)[2]


async def test_an_image_is_had_as_the_client_sent_it() -> None:
    setup = PipelineSetup()
    wire = b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}'
    await store_artifact(setup, [wire])
    assert client(setup).get("/accordion/artifacts/art_0123456789ab", headers=JSON).json()["originals"] == [
        json.loads(wire)
    ]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nowhere"), ("POST", "/healthz"), ("GET", "/accordion/sessions/s-1")]
)
def test_an_error_is_never_served_as_html(method: str, path: str) -> None:
    answer = client(PipelineSetup()).request(method, path)
    assert answer.status_code >= 400
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_an_artifact_is_never_served_as_html() -> None:
    setup = PipelineSetup()
    await store_artifact(setup, [b'{"role":"user","content":"<script>alert(1)</script>"}'])
    answer = client(setup).get("/accordion/artifacts/art_0123456789ab", headers={"accept": "text/html"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


async def test_what_no_unicode_can_say_is_shown_as_replacement_characters() -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    body = make_readable(b'{"messages":[{"role":"user","content":"half \\ud83d"}],"seed":NaN}')
    assert body is not None
    said = BodyReader().read(PROTOCOLS["chat"], body, TENANT)
    made, reader = await store_artifact(setup, [said.messages[0].wire]), setup.builder.archive_reader
    reader.transcripts.record(caller(setup).tenant, session, said, compacted=True)
    await reader.transcripts.flush()
    http = client(setup, reader)
    assert http.get(f"/accordion/artifacts/{made.id}").text == "half \ufffd"
    assert http.get(f"/accordion/artifacts/{made.id}", headers=JSON).json()["text"] == "half \ufffd"
    assert "half \ufffd" in http.get(f"/accordion/pages/artifacts/{made.id}").text
    original = http.get(f"/accordion/sessions/{session}/original").json()
    assert (original["messages"], original["seed"]) == ([{"role": "user", "content": "half \ufffd"}], None)
    for path in ("/accordion/export", f"/accordion/sessions/{session}/export"):
        assert "half \ufffd" in http.get(path).text


async def test_an_artifact_of_which_something_is_gone_is_not_there() -> None:
    setup = PipelineSetup()
    made = await store_artifact(setup, [b'{"role":"user","content":"a"}', b'{"role":"user","content":"b"}'], "range")
    assert client(setup).get(f"/accordion/artifacts/{made.id}").status_code == 200
    await setup.store.delete([Key("", f"row/{made.keys[0].hex()}")])
    assert error(client(setup).get(f"/accordion/artifacts/{made.id}"))[:2] == (404, "artifact_not_found")


async def test_reading_an_artifact_extends_its_retention() -> None:
    setup = PipelineSetup()
    made = await store_artifact(setup, [b'{"role":"user","content":"x"}'])
    http, tenant, retention = client(setup), caller(setup).tenant, setup.builder.archive.retention
    setup.clock.advance(retention / 2)
    assert http.get(f"/accordion/artifacts/{made.id}").status_code == 200
    found = [page async for page in _entries(setup, tenant)]
    assert [entry.kind for page in found for entry in page] == ["read"]


def _entries(setup: PipelineSetup, tenant: TenantScope) -> AsyncIterator[Any]:
    from accordion.archive import archive_entries

    return archive_entries.scan_entries(setup.store, tenant.archive_namespace)


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_a_sessions_artifacts_are_listed_in_pages() -> None:
    setup = small_window_setup()
    session, listed = await compacted(setup)
    http, after, found = client(setup), "", []
    while True:
        page = http.get("/accordion/artifacts", params={"session": session, "limit": 3, "after": after}).json()
        assert len(page["artifacts"]) <= 3
        found += page["artifacts"]
        if page["next"] is None:
            break
        after = page["next"]
    assert len(found) > 3
    assert sorted(found, key=lambda each: each["messages"]) == listed


async def test_a_session_without_artifacts_has_an_empty_list() -> None:
    setup = small_window_setup()
    session = header(await GrowingConversation(setup).until(1), "x-accordion-session")
    answer = client(setup).get(f"/accordion/artifacts?session={session}")
    assert answer.json() == {"session": session, "artifacts": [], "next": None}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", (400, None)),
        ("session=", (400, None)),
        ("session=s-unknown", (404, "session_not_found")),
        ("session=s-unknown&limit=0", (400, None)),
        ("session=s-unknown&after=art_1/nothex", (400, None)),
    ],
)
async def test_a_list_that_cannot_be_had_is_refused(query: str, told: tuple[int, str | None]) -> None:
    assert error(client(PipelineSetup()).get(f"/accordion/artifacts?{query}"))[:2] == told


# -- histories ---------------------------------------------------------------------------------------------------------


async def test_the_whole_history_is_a_request_of_its_protocol() -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    reader, said = setup.builder.archive_reader, chat("first", "second", "third", temperature=0)
    reader.transcripts.record(caller(setup).tenant, session, said, compacted=True)
    await reader.transcripts.flush()
    answer = client(setup, reader).get(f"/accordion/sessions/{session}/original")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-accordion-protocol"] == "chat"
    assert "x-accordion-missing" not in answer.headers
    body = answer.json()
    assert [each["content"] for each in body["messages"]] == ["You are an agent.", "first", "second", "third"]
    assert body["model"] == "gpt-5"
    found = await reader.transcripts.find(caller(setup).tenant, session)
    assert found is not None
    await setup.store.delete([Key("", f"row/{found.rows[2].hex()}")])
    answer = client(setup, reader).get(f"/accordion/sessions/{session}/original")
    assert answer.headers["x-accordion-missing"] == "1"
    assert [each["content"] for each in answer.json()["messages"]] == ["You are an agent.", "first", "third"]


async def test_a_history_that_was_not_recorded_is_told_from_an_unknown_session() -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    http = client(setup)
    assert error(http.get(f"/accordion/sessions/{session}/original"))[:2] == (404, "original_not_found")
    assert error(http.get("/accordion/sessions/s-unknown/original"))[:2] == (404, "session_not_found")


# -- exports -----------------------------------------------------------------------------------------------------------


async def test_an_export_is_lines_of_json_that_end_with_their_counts() -> None:
    setup = small_window_setup()
    session, listed = await compacted(setup)
    for path in (f"/accordion/sessions/{session}/export", "/accordion/export"):
        answer = client(setup).get(path)
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert lines[-1]["type"] == "end"
        assert sum(lines[-1]["counts"].values()) == len(lines) - 1
        told = {line["artifact"]["id"] for line in lines if line["type"] == "artifact"}
        assert told == {each["id"] for each in listed}


async def test_an_export_has_the_exchanges_and_an_unknown_session_has_none() -> None:
    setup = small_window_setup()
    session = header(await GrowingConversation(setup).until(1), "x-accordion-session")
    http = client(setup)
    for path in ("/accordion/export", f"/accordion/sessions/{session}/export"):
        name, exchange, end = (json.loads(line) for line in http.get(path).text.splitlines())
        assert end == {"type": "end", "counts": {"exchange": 1, "name": 1}}
        assert (name["type"], name["session"]) == ("name", session)
        assert (exchange["type"], exchange["session"]) == ("exchange", session)
        assert [exchange["exchange"]] == http.get(f"/accordion/sessions/{session}").json()["exchanges"]
    assert error(http.get("/accordion/sessions/s-unknown/export"))[:2] == (404, "session_not_found")


class Fading(InMemoryStore):
    """A store that goes away after so many calls from when `left` is set."""

    left: int | None = None

    async def get_many(self, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return await super().get_many(*args, **kwargs)

    async def scan(self, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return await super().scan(*args, **kwargs)

    def _spend(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StoreUnavailable("The store is away.")


async def test_an_export_that_breaks_off_does_not_look_whole() -> None:
    setup = small_window_setup(store=Fading())
    await compacted(setup)
    http, ends = client(setup), []
    for calls in range(60):
        setup.store.left = calls  # type: ignore[attr-defined]
        answer = http.get("/accordion/export")
        if answer.status_code == 503:
            assert error(answer)[1] == "store_unavailable"
        else:
            ends.append(json.loads(answer.text.splitlines()[-1])["type"])
    assert ends[0] == "error"
    assert ends[-1] == "end"
    assert ends == sorted(ends, reverse=True)


# -- erasing -----------------------------------------------------------------------------------------------------------


async def test_an_erased_session_is_gone_and_others_stay() -> None:
    setup = small_window_setup()
    session, listed = await compacted(setup)
    other = header(await send_question(setup, "Something else."), "x-accordion-session")
    http = client(setup)
    lines = map(json.loads, http.get(f"/accordion/sessions/{session}/export").text.splitlines())
    rows = [bytes.fromhex(line["key"]) for line in lines if line["type"] == "row"]
    assert set(await setup.builder.archive.load_rows(caller(setup).tenant, rows)) == set(rows)
    http.put(f"/accordion/sessions/{session}/pins", json={"call_ids": ["call_1"]})
    told = http.delete(f"/accordion/sessions/{session}")
    assert told.status_code == 200
    said = told.json()
    assert (said["session"], said["sessions"], said["verified"]) == (session, 1, True)
    assert said["entries"] >= 1
    assert said["values"] > len(listed)
    for path in (
        f"/accordion/sessions/{session}",
        f"/accordion/sessions/{session}/original",
        f"/accordion/sessions/{session}/export",
        f"/accordion/artifacts?session={session}",
        *(f"/accordion/artifacts/{each['id']}" for each in listed),
    ):
        assert http.get(path).status_code == 404, path
    assert error(http.delete(f"/accordion/sessions/{session}"))[:2] == (404, "session_not_found")
    assert session not in http.get("/accordion/export").text
    assert await setup.builder.session_overrides.load(TENANT, [session]) == [SessionOverrides()]
    assert [each["id"] for each in http.get("/accordion/sessions").json()["sessions"]] == [other]
    assert await setup.builder.archive.load_rows(caller(setup).tenant, rows) == {}


@pytest.mark.parametrize("answers", [0, 1, 3])
async def test_the_places_of_an_erased_session_are_gone_and_those_of_others_stay(answers: int) -> None:
    setup = PipelineSetup()
    other = header(await send_question(setup, "Something else."), "x-accordion-session")
    texts = [("user", "assistant")[at % 2] + f" {at}" for at in range(2 * answers + 1)]
    for end in range(1, len(texts) + 1, 2):
        said = [{"role": text.split()[0], "content": text} for text in texts[:end]]
        asked, _ = await setup.ask("/v1/chat/completions", {"model": "m", "messages": said})
    session = header(asked, "x-accordion-session")
    await setup.outbox.flush()
    assert [point.session for point in load_nodes(setup)].count(session) == answers + 1
    assert client(setup).delete(f"/accordion/sessions/{session}").status_code == 200
    assert [point.session for point in load_nodes(setup)] == [other]


def load_nodes(setup: PipelineSetup) -> list[PrefixNode]:
    values = [held.value for key, held in setup.store._values.items() if key.name.startswith("point/")]
    return [point for value in values if (point := decode(value)) is not None]


async def test_a_session_is_forgotten_by_its_whole_name_only() -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    for other in (f"{session}.worker", session[:-1], ""):
        assert await setup.observe.forget_sessions(TENANT, other) == []
    assert await setup.observe.forget_sessions(OTHER, session) == []
    assert await setup.observe.forget_sessions(TENANT, session) == [session]
    assert await setup.observe.find_session(TENANT, session) is None


async def test_what_may_be_done_with_a_session_is_told_by_whichever_route() -> None:
    answer = client(PipelineSetup()).patch("/accordion/sessions/s-1")
    assert error(answer)[:2] == (405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, HEAD"


async def send_question(setup: PipelineSetup, text: str) -> Any:
    return (await setup.ask("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}]}))[0]


async def test_a_tenant_erases_all_of_its_own_and_nothing_else() -> None:
    setup = small_window_setup(keys=(ONE, TWO))
    mine, _ = await compacted(setup, "key-one")
    theirs, listed = await compacted(setup, "key-two")
    http = client(setup)
    told = http.delete("/accordion/archive", headers={"x-accordion-key": "key-one"}).json()
    assert (told["sessions"], told["verified"]) == (1, True)
    assert http.get(f"/accordion/sessions/{mine}", headers={"x-accordion-key": "key-one"}).status_code == 404
    own = {"x-accordion-key": "key-two"}
    assert http.get(f"/accordion/sessions/{theirs}", headers=own).status_code == 200
    assert all(http.get(f"/accordion/artifacts/{each['id']}", headers=own).status_code == 200 for each in listed)
    again = http.delete("/accordion/archive", headers={"x-accordion-key": "key-one"})
    nothing = {"sessions": 0, "entries": 0, "values": 0, "shared": 0, "verified": True}
    assert again.json() == nothing


async def erase_all(setup: PipelineSetup, late: str = "") -> tuple[int, dict[str, Any]]:
    """Erases all of tenant one, with the records of a feature; `late` is written meanwhile."""
    await setup.store.put(Key(caller(setup, "key-one").tenant.feature_collection, "note/1"), b"")
    http = client(setup, feature_records=[Notes(late).records()])
    answer = http.delete("/accordion/archive", headers={"x-accordion-key": "key-one"})
    return answer.status_code, answer.json()


async def test_records_of_features_are_erased_with_a_tenant() -> None:
    status, answer = await erase_all(small_window_setup(keys=(ONE, TWO)))
    assert (status, answer["verified"], answer["notes"]) == (200, True, {"before": 1, "after": 0})


async def test_records_of_features_stay_when_a_session_is_erased() -> None:
    setup = small_window_setup(keys=(ONE, TWO))
    session, _ = await compacted(setup, "key-one")
    key = Key(caller(setup, "key-one").tenant.feature_collection, "note/1")
    await setup.store.put(key, b"")
    http = client(setup, feature_records=[Notes().records()])
    answer = http.delete(f"/accordion/sessions/{session}", headers={"x-accordion-key": "key-one"}).json()
    assert (answer["verified"], "notes" in answer, await setup.store.get(key)) == (True, False, b"")


async def test_records_that_are_written_during_an_erasure_make_it_a_conflict() -> None:
    status, answer = await erase_all(small_window_setup(keys=(ONE,)), "note/2")
    assert (status, answer["verified"], answer["notes"]) == (409, False, {"before": 1, "after": 1})


async def test_what_could_not_be_verified_is_told_by_the_status() -> None:
    setup = small_window_setup()
    session, _ = await compacted(setup)
    reader = setup.builder.archive_reader

    async def erase(tenant: TenantScope, session: str | None = None) -> ErasureResult:
        return ErasureResult(3, 9, 0, False)

    reader.export_and_erasure.erase = erase  # type: ignore[method-assign]
    told = client(setup, reader).delete(f"/accordion/sessions/{session}")
    assert (told.status_code, told.json()["verified"]) == (409, False)


# -- tenants -----------------------------------------------------------------------------------------------------------

ASKED = (
    ("GET", "/accordion/artifacts/{artifact}"),
    ("GET", "/accordion/artifacts/{artifact}?pattern=word"),
    ("GET", "/accordion/artifacts?session={session}"),
    ("GET", "/accordion/sessions/{session}"),
    ("GET", "/accordion/sessions/{session}/original"),
    ("GET", "/accordion/sessions/{session}/export"),
    ("DELETE", "/accordion/sessions/{session}"),
)


class Noting(InMemoryStore):
    """Notes what is asked of it, but for the names."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def get(self, *args: Any) -> Any:
        self.asked.append("get")
        return await super().get(*args)

    async def get_many(self, *args: Any) -> Any:
        self.asked.append("get_many")
        return await super().get_many(*args)

    async def scan(self, *args: Any, **kwargs: Any) -> Any:
        found = await super().scan(*args, **kwargs)
        self.asked.append(f"scan {len(found)}")
        return found

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append("read")
        return await super().read(*args, **kwargs)

    async def delete(self, *args: Any) -> Any:
        self.asked.append("delete")
        return await super().delete(*args)


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_records_of_another_tenant_are_answered_exactly_as_missing_ones(method: str, path: str) -> None:
    store = Noting()
    setup = small_window_setup(keys=(ONE, TWO), store=store)
    session, listed = await compacted(setup, "key-one")
    http = client(setup)

    def asked(artifact: str, session: str, key: str) -> tuple[Any, ...]:
        store.asked.clear()
        answer = http.request(
            method, path.format(artifact=artifact, session=session), headers={"x-accordion-key": key, **JSON}
        )
        return answer.status_code, answer.text, dict(answer.headers), list(store.asked)

    theirs = asked(listed[0]["id"], session, "key-two")
    assert theirs[0] == 404
    assert theirs == asked("art_000000000000", "s-" + "0" * 24, "key-two")
    if path != "/accordion/sessions/{session}/original":
        assert asked(listed[0]["id"], session, "key-one")[0] == 200


@pytest.mark.parametrize(("method", "path"), [*ASKED, ("GET", "/accordion/export"), ("DELETE", "/accordion/archive")])
async def test_nobody_enters_without_a_key(method: str, path: str) -> None:
    http = client(small_window_setup(keys=(ONE, TWO)))
    answer = http.request(method, path.format(artifact="art_0", session="s-0"), headers={"x-accordion-key": "wrong"})
    assert error(answer)[:2] == (401, "invalid_api_key")


@pytest.mark.parametrize(("method", "path"), [*ASKED, ("GET", "/accordion/export"), ("DELETE", "/accordion/archive")])
async def test_a_store_that_is_away_is_said(method: str, path: str) -> None:
    setup = small_window_setup(store=Fading())
    session, listed = await compacted(setup)
    http: TestClient = client(setup)
    setup.store.left = 0  # type: ignore[attr-defined]
    answer = http.request(method, path.format(artifact=listed[0]["id"], session=session))
    if path == "/accordion/sessions/{session}/original":
        assert error(answer)[0] in (404, 503)
    else:
        assert error(answer)[:2] == (503, "store_unavailable")
