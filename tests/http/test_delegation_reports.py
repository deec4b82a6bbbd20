"""Which agent a request is from, and what it was not shown: told on the response, by the API, in metrics; and refused
where what a client declares cannot be."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from accordion.cli.main import app
from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.http import Inbound
from tests.e2e.store_workers import api
from tests.loopback import Answer, Loopback, Recorded
from tests.pipeline_setup import OWNER_TOKEN

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CONFIG = """
store: {url: "sqlite:///FOLDER/kept.db", timeout_seconds: 60, write_timeout_seconds: 60}
summaries: {writer: extractive}
upstreams: {openai: {base_url: "UPSTREAM/v1"}, anthropic: {base_url: "UPSTREAM"}}
"""
KEYS = "proxy_keys: [{id: one, key: key-one}, {id: two, key: key-two}]\n"
TASK = "Read every page of the manual and tell which of its figures are wrong."


async def script(request: Recorded, answer: Answer) -> None:
    """Calls a tool for each request that names its user: then the call is named after that."""
    who = request.json().get("user", "")
    message: dict[str, Any] = {"role": "assistant", "content": None if who else "Well."}
    if who:
        message["tool_calls"] = [call(who)]
    body = json.dumps({
        "id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls" if who else "stop", "message": message}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
    }).encode()  # fmt: skip
    await answer.head(200, [("Content-Type", "application/json")], length=len(body))
    await answer.send(body)


def call(who: str) -> dict[str, Any]:
    said = json.dumps({"prompt": TASK if who == "tasked" else f"what {who} reads"})
    name = "Task" if who == "tasked" else "read"
    return {"id": f"call-{who}", "type": "function", "function": {"name": name, "arguments": said}}


def done(who: str) -> list[dict[str, Any]]:
    """A call and its result, as they stand in a list."""
    made = {"role": "assistant", "content": None, "tool_calls": [call(who)]}
    return [made, {"role": "tool", "tool_call_id": f"call-{who}", "content": f"what {who} found"}]


def asked(*who: str, task: str = "Do it all.", user: str = "") -> dict[str, Any]:
    """A request whose list holds what these did."""
    messages: list[Any] = [{"role": "user", "content": task}]
    for each in who:
        messages += done(each)
    return {"model": "m", "messages": messages} | ({"user": user} if user else {})


def own(name: str, **more: str) -> dict[str, str]:
    return {"x-accordion-delegation": name, **{f"x-accordion-{key}": value for key, value in more.items()}}


@asynccontextmanager
async def applications(
    folder: Path, config: str = "", count: int = 1
) -> AsyncIterator[tuple[list[Application], Loopback]]:
    """Workers on one file, and their provider."""
    async with Loopback(script) as provider:
        text = (CONFIG + config).replace("FOLDER", str(folder)).replace("UPSTREAM", provider.url)
        made = [Application(build(text.encode(), {}, {}), {}, owner_token=OWNER_TOKEN) for _ in range(count)]
        try:
            for application in made:
                await application.start()
            yield made, provider
        finally:
            for application in made:
                await application.stop()


async def ask(
    application: Application, body: Any, headers: dict[str, str] | None = None, path: str = CHAT
) -> tuple[int, Any, Any]:
    """Sends it through: the status, the answer's headers, and its body."""
    given = {"content-type": "application/json", "authorization": "Bearer mine", **(headers or {})}
    pairs = tuple((name.encode(), value.encode()) for name, value in given.items())
    out = await application.forward(Inbound("POST", path, "", pairs, json.dumps(body).encode(), "req-1"))
    whole = out.body if isinstance(out.body, bytes) else b"".join([piece async for piece in out.body])
    return out.status, {name.decode(): value.decode() for name, value in out.headers}, json.loads(whole)


async def family(application: Application, **more: str) -> dict[str, dict[str, str]]:
    """A main agent and three delegations, `c` for `b`, that write into one list; gives the headers of `a`'s last
    answer and of the main agent's."""
    for name, above in (("a", "lead"), ("b", "lead"), ("c", "b")):
        await ask(application, asked(user=name), own(name, parent=above, agent=f"the {name}", **more))
    _, last, _ = await ask(application, asked("a", "b", "c"), own("a", parent="lead", **more))
    _, main, _ = await ask(
        application, asked("a", "b", "c"), {f"x-accordion-{key}": value for key, value in more.items()}
    )
    return {"a": last, "main": main}


def rows(folder: Path) -> list[tuple[bytes, bytes, bytes]]:
    """All that the store has."""
    with sqlite3.connect(folder / "kept.db") as file:
        entries = file.execute("SELECT collection, name, value FROM entry").fetchall()
        entries += file.execute("SELECT x'', x'', value FROM log_entry").fetchall()
    return sorted((bytes(collection), bytes(name), bytes(value)) for collection, name, value in entries)


def collections(folder: Path) -> set[str]:
    """What kinds of rows the store has."""
    return {collection.decode().partition("/")[0] for collection, _, _ in rows(folder)}


# -- told -----------------------------------------------------------------------


async def test_an_answer_says_whose_it_is_and_how_much_was_hidden(tmp_path: Path):
    async with applications(tmp_path) as ([application], provider):
        told = await family(application)
        sent = provider.requests[-2].body
    assert told["a"]["x-accordion-delegation"] == "a"
    assert told["a"]["x-accordion-filtered"] == "2"
    assert b"what a found" in sent
    assert b"call-b" not in sent
    assert b"call-c" not in sent
    assert not {"x-accordion-delegation", "x-accordion-filtered"} & set(told["main"])


async def test_the_api_tells_of_each_session_and_exchange_which_agent_it_was(tmp_path: Path):
    async with applications(tmp_path) as ([application], _):
        told = await family(application)
        session = told["a"]["x-accordion-session"]
        listed = {
            each["id"]: each for each in (await api(application, "GET", "/accordion/sessions")).json()["sessions"]
        }
        shown = (await api(application, "GET", f"/accordion/sessions/{session}")).json()
        plain = (await api(application, "GET", f"/accordion/sessions/{told['main']['x-accordion-session']}")).json()
    said = {name: shown[name] for name in ("delegation", "parent", "agent", "evidence")}
    assert said == {"delegation": "a", "parent": "lead", "agent": "the a", "evidence": "header"}
    assert said.items() <= listed[session].items()
    agent = shown["exchanges"][-1]["agent"]
    assert (agent["delegated"], agent["delegation"], agent["hidden"]) == (True, "a", 2)
    assert agent["owners"] == {"b": 1, "c": 1}
    assert (plain["delegation"], plain["evidence"], plain["exchanges"][-1]["agent"]) == ("", "none", None)


async def test_the_tree_has_each_agents_window_parent_and_hidden_results(tmp_path: Path):
    async with applications(tmp_path, count=2) as (workers, _):
        told = await family(workers[0])
        await workers[0].outbox.flush()
        session = told["a"]["x-accordion-session"]
        for application in workers:
            tree = (await api(application, "GET", f"/accordion/sessions/{session}/tree")).json()
            assert tree["session"] == session
            agents = {each["delegation"]: each for each in tree["agents"]}
            edges = [(each["delegation"], each["parent"], each["depth"], each["evidence"]) for each in tree["agents"]]
            assert edges == [
                ("lead", None, 0, "none"),
                ("a", "lead", 1, "header"),
                ("b", "lead", 1, "header"),
                ("c", "b", 2, "header"),
            ]
            assert [each["placeholder"] for each in tree["agents"]] == [True, False, False, False]
            assert agents["a"]["session"] == session
            assert agents["a"]["agent"] == "the a"
            assert agents["a"]["last"]["tokens"] > 0
            assert agents["a"]["filtered"] == {"results": 2, "of": {"b": 1, "c": 1}}
            assert agents["c"]["filtered"] == {"results": 0, "of": {}}
            assert (agents["lead"]["last"], agents["lead"]["filtered"], agents["lead"]["session"]) == (None, None, None)


async def test_an_inferred_parent_has_its_evidence_and_an_ambiguous_one_its_candidates(tmp_path: Path):
    async with applications(tmp_path) as ([application], _):
        _, parent, _ = await ask(application, asked(user="tasked"))
        _, child, _ = await ask(application, asked(task=TASK))
        path = f"/accordion/sessions/{parent['x-accordion-session']}/tree"
        above, below = (await api(application, "GET", path)).json()["agents"]
        assert (above["session"], below["session"]) == (parent["x-accordion-session"], child["x-accordion-session"])
        assert (below["parent"], below["evidence"], below["call_id"]) == (above["delegation"], "tool", "call-tasked")
        assert child["x-accordion-delegation"] == below["delegation"] == child["x-accordion-session"]
        # Another conversation makes the very same call: now either could have begun what opens so.
        await ask(application, asked(task="Something else.", user="tasked"))
        _, other, _ = await ask(application, asked(task=f" {TASK}  "))
        assert "x-accordion-delegation" not in other
        path = f"/accordion/sessions/{other['x-accordion-session']}/tree"
        (alone,) = (await api(application, "GET", path)).json()["agents"]
        assert (alone["parent"], alone["evidence"], alone["candidates"]) == (None, "none", 2)


async def test_another_tenants_tree_is_answered_as_one_that_there_never_was(tmp_path: Path):
    async with applications(tmp_path, KEYS) as ([application], _):
        told = await family(application, key="key-one")
        path = f"/accordion/sessions/{told['a']['x-accordion-session']}/tree"
        mine = await api(application, "GET", path, "key-one")
        theirs = await api(application, "GET", path, "key-two")
        never = await api(application, "GET", f"/accordion/sessions/s-{'0' * 24}/tree", "key-two")
        nobody = await api(application, "GET", path)
    assert (mine.status_code, len(mine.json()["agents"])) == (200, 4)
    assert [each.status_code for each in (theirs, never)] == [404, 404]
    # They differ in their request ids alone.
    assert len({re.sub(r"req_\w+", "", each.text) for each in (theirs, never)}) == 1
    assert never.json()["error"]["code"] == "session_not_found"
    assert nobody.status_code == 401


def test_explain_says_which_results_are_hidden_and_whose_they_are(tmp_path: Path):
    async def fill() -> None:
        async with applications(tmp_path) as ([application], _):
            await family(application)

    asyncio.run(fill())
    before = rows(tmp_path)
    config, file = tmp_path / "c.yaml", tmp_path / "request.json"
    config.write_text(CONFIG.replace("FOLDER", str(tmp_path)).replace("UPSTREAM", "http://127.0.0.1:9"))
    file.write_text(json.dumps(asked("a", "b", "c")))
    told = CliRunner().invoke(app, [
        "explain", str(file), "--config", str(config), "--json", "-H", "x-accordion-delegation: a"
    ])  # fmt: skip
    said = json.loads(told.stdout)
    sitting = said["sitting"]
    assert (sitting["delegation"], sitting["path"], sitting["evidence"]) == ("a", ["lead", "a"], "header")
    assert [(each["index"], each["tool"], each["call_id"], each["of"]) for each in sitting["hidden"]] == [
        (4, "read", "call-b", "b"), (6, "read", "call-c", "c"),
    ]  # fmt: skip
    assert said["understood"]["messages"] == 3
    assert "2 results" in said["changed"]["body"]
    text = (
        CliRunner()
        .invoke(
            app,
            ["explain", str(file), "--config", str(config), "-H", "x-accordion-delegation: a"],
            env={"COLUMNS": "160"},
        )
        .stdout
    )
    assert "[4] read call-b: belongs to b" in text
    assert re.search(r"works for +lead", text)
    assert rows(tmp_path) == before
