"""One tenant against another's records: every route and MCP tool, every kind of id, and headers that claim more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.http import api
from accordion.model.ports import UpstreamRequest
from tests.compaction.compactor_setup import long_history, with_long_results
from tests.fakes import FakeReply, FakeUpstream
from tests.histories import History, Turn, body

WORD = "zebrafinch"
"""It is in all that alice's records say."""
ALICE, BOB = {"x-accordion-key": "key-of-alice-1"}, {"x-accordion-key": "key-of-bob-22"}
CONFIG = """
store: {{url: '{url}', timeout_seconds: 60, write_timeout_seconds: 60}}
proxy_keys: [{{id: alice, key: key-of-alice-1}}, {{id: bob, key: key-of-bob-22}}]
summaries: {{writer: extractive}}
model_list:
- model_name: gpt-5
  litellm_params: {{model: openai/gpt-5, api_base: http://upstream.test/v1, api_key: k}}
  model_info: {{max_input_tokens: 8000, max_output_tokens: 100}}
"""
ROUNDS = 3
"""How many claims are made with each route and id."""
ENDLESS = {"/accordion/ui/events"}


@dataclass
class Records:
    """What alice has: ids by their kind."""

    ids: dict[str, str] = field(default_factory=dict)


def claims(ids: dict[str, str]) -> list[dict[str, str]]:
    """Headers by which a caller claims to be alice, or to ask for her."""
    session = ids["session"]
    return [
        {},
        {"x-accordion-session": session, "x-session-id": session, "x-claude-code-session-id": session},
        {"x-accordion-tenant": "alice", "x-tenant": "alice", "x-accordion-project": "alice"},
        {"authorization": "Bearer alice", "x-api-key": "alice", "x-goog-api-key": "alice"},
        {"cookie": "accordion=alice; accordion_session=alice; accordion-tenant=alice"},
        {"x-original-url": f"/accordion/sessions/{session}", "x-rewrite-url": "/accordion/export"},
        {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1;host=127.0.0.1", "x-real-ip": "127.0.0.1"},
        {"x-http-method-override": "GET", "x-method-override": "DELETE"},
        {"x-accordion-token": "guess", "x-accordion-pin": "call_001_00"},
        {"x-accordion-delegation": session, "x-accordion-parent": session},
    ]


NOW = {"x-accordion-compact": "now"}
CALLERS = [BOB, {"x-accordion-key": "wrong"}, {}]


@contextmanager
def served(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TestClient, list[Route], FakeUpstream, Callable[[], None]]]:
    """A client of the whole application, its routes, its provider, and what writes the transcripts that wait."""
    apps: list[Starlette] = []

    def record(**fields: Any) -> Starlette:
        apps.append(Starlette(**fields))
        return apps[-1]

    monkeypatch.setattr(api, "Starlette", record)
    upstream = FakeUpstream()
    application = Application(build(CONFIG.format(url=url).encode(), {}, {}), {}, connect=lambda _: upstream)
    client = TestClient(application.app(), base_url="http://127.0.0.1:8787", follow_redirects=False)
    with client:
        assert client.portal is not None
        client.portal.call(application.start)
        try:
            routes = [each for each in apps[0].routes if isinstance(each, Route)]
            transcripts = application.forward.responder.response_history.transcripts
            yield client, routes, upstream, partial(client.portal.call, transcripts.flush)
        finally:
            client.portal.call(application.stop)


def fill(client: TestClient, upstream: FakeUpstream) -> Records:
    """Lets alice work until her conversation is compacted, and remember something."""
    records, long = Records(), with_long_results(long_history(16))
    for number in (1, 2, 6, 7):
        turn = Turn((f"The {WORD} number {number} sings.", *long.turns[number].said))
        history = History((*long.turns[:number], turn), f"You know the {WORD}.")
        upstream.answers.append(FakeReply(pieces=(json.dumps(answer(number)).encode(),)))
        sent = client.post("/v1/chat/completions", json=body(history, "chat"), headers=ALICE | NOW)
        assert sent.status_code == 200, sent.text
        records.ids["session"] = sent.headers["x-accordion-session"]
        if "x-accordion-compaction" in sent.headers:
            records.ids["compaction"] = json.loads(sent.headers["x-accordion-compaction"])["id"]
    artifacts = client.get("/accordion/artifacts", params=records.ids, headers=ALICE).text
    records.ids["artifact"] = re.findall(r"art_[0-9a-f]{8,}", artifacts)[0]
    added = client.post(
        "/accordion/memory/add", json={"content": f"The {WORD} lives in Kyoto.", "entities": ["Kyoto"]}, headers=ALICE
    )
    records.ids["memory"] = re.findall(r"mem-[\w-]+", added.text)[0]
    return records


def answer(number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": f"The {WORD} answers {number}."}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def arguments(id: str) -> dict[str, Any]:
    """Arguments under all names that an operation may read an id from."""
    names = "id session session_id artifact artifact_id memory_id compaction_id source query text content name mode"
    return dict.fromkeys(names.split(), id) | {"ids": [id], "call_ids": [id], "memories": [id], "limit": 5}


def attempts(client: TestClient, routes: list[Route], records: Records) -> Iterator[tuple[str, str]]:
    """Yields each answer with the ids that were asked for, first those of requests that write nothing."""
    headers, callers = cycle(claims(records.ids)), cycle(CALLERS)
    asked = [
        (method, re.sub(r"\{\w+(:\w+)?\}", id, route.path), id)
        for route in routes
        if route.path.startswith("/accordion") and route.path not in ENDLESS
        for method in (route.methods or {"GET"}) - {"HEAD"}
        for id in records.ids.values()
    ]
    for method, path, id in sorted(asked, key=lambda each: (each[0] != "GET", each)):
        for claim in islice(headers, ROUNDS):
            content = {} if method in ("GET", "DELETE") else {"json": arguments(id)}
            params = {"tenant": "alice", "session": id, "q": id, "artifacts": id}
            answer = client.request(method, path, headers=claim | next(callers), params=params, **content)
            yield f"{path} {claim}" if method == "GET" else f"{method} {path} {claim}", answer.text
    yield from call_tools(client, records)
    yield from ask_models(client, records)


def call_tools(client: TestClient, records: Records) -> Iterator[tuple[str, str]]:
    """Calls every MCP tool with each id."""
    headers = {"accept": "application/json, text/event-stream", **BOB}

    def call(method: str, **params: Any) -> httpx.Response:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return client.post("/mcp", json=request, headers=headers)

    for tool in call("tools/list").json()["result"]["tools"]:
        properties = tool["inputSchema"].get("properties", {})
        for id in records.ids.values():
            known = {name: value for name, value in arguments(id).items() if name in properties}
            yield tool["name"], call("tools/call", name=tool["name"], arguments=known).text


def ask_models(client: TestClient, records: Records) -> Iterator[tuple[str, str]]:
    """Asks a model in alice's session, by her ids."""
    for id in records.ids.values():
        for claim in claims(records.ids):
            chat = {"model": "gpt-5", "messages": [{"role": "user", "content": f"What does {id} say?"}]}
            yield "chat", client.post("/v1/chat/completions", json=chat, headers=claim | BOB).text
            response = {"model": "gpt-5", "input": "What is there?", "previous_response_id": id}
            yield "response", client.post("/v1/responses", json=response, headers=claim | BOB).text


def everything(client: TestClient, records: Records) -> dict[str, str]:
    """All that alice can read of hers."""
    paths = (
        *("sessions", "export", "memory/export", f"artifacts?session={records.ids['session']}"),
        *(f"sessions/{records.ids['session']}/{view}" for view in ("original", "sent", "pins", "mode", "name")),
    )
    return {path: client.get(f"/accordion/{path}", headers=ALICE).text for path in paths}


def sent_texts(requests: list[UpstreamRequest]) -> str:
    return "".join(str(request.body) for request in requests)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_no_tenant_reads_or_changes_what_another_has(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/store.db"
    with served(url, monkeypatch) as (client, routes, upstream, flush):
        records = fill(client, upstream)
        flush()
        before, count = everything(client, records), 0
        assert all(WORD in before[path] for path in ("export", "memory/export"))
        upstream.requests.clear()
        for asked, text in attempts(client, routes, records):
            assert WORD not in text, (asked, text[:300])
            if asked.startswith("/"):
                # Later bob's own records name the ids.
                assert not [id for id in records.ids.values() if id in text and id not in asked], (asked, text[:300])
            count += 1
        assert count >= 438
        assert WORD not in sent_texts(upstream.requests)
        assert everything(client, records) == before
        erased = client.delete("/accordion/archive", headers=ALICE)
        assert erased.status_code == 200, erased.text
        client.delete("/accordion/memory", headers=ALICE)
        for asked, text in attempts(client, routes, records):
            assert WORD not in text, (asked, text[:300])
        assert all(WORD not in text for text in everything(client, records).values())
