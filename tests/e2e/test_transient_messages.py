"""A client that adds its state to each request and leaves it out of the next one, with two workers and a restart."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.conftest import Start
from tests.e2e.proxy_api import get_page
from tests.e2e.small_window import config, fetch_session
from tests.e2e.test_archive_api import ask
from tests.e2e.test_between_workers import one_of_each
from tests.loopback import Answer, Recorded
from tests.proxy_process import PATIENT
from tests.strict_provider import send_json

QUESTIONS = 40
TEXT = " ".join(f"word{number}" for number in range(180))


async def answer_at_length(request: Recorded, answer: Answer) -> None:
    """Answers the last question of a list, which stands before the state."""
    question = request.json()["messages"][-2]["content"]
    message = {"role": "assistant", "content": f"This is the answer to {question[:30]}. {TEXT}"}
    usage = {"prompt_tokens": 0, "completion_tokens": 9, "total_tokens": 9}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    await send_json(
        answer, 200, {"id": "c", "model": "small", "object": "chat.completion", "choices": [choice], "usage": usage}
    )


async def test_it_has_one_session_one_hold_out_draw_and_one_erasure(start: Start):
    text = PATIENT + config("chat") + "compaction: {holdout: 50%}\n"
    proxy = start(text, "--workers", "2", ACCORDION_STORE="sqlite:///one.db")
    history: list[Any] = []
    sessions, states = set[str](), set[str]()

    async def turns(clients: list[Any], numbers: range) -> None:
        for number in numbers:
            history.append({"role": "user", "content": f"question {number}: {TEXT[:200]}"})
            body = {"model": "small", "messages": [*history, {"role": "user", "content": f"state {number}"}]}
            raw = await clients[number % 2].post("/chat/completions", cast_to=httpx.Response, body=body)
            history.append(raw.json()["choices"][0]["message"])
            sessions.add(raw.headers["x-accordion-session"])
            states.update([json.loads(raw.headers.get("x-accordion-compaction", "{}")).get("state")])
            await fetch_session(proxy, raw.headers["x-accordion-session"], number + 1)

    async with proxy.provider(answer_at_length):
        async with one_of_each(proxy, "chat") as clients:
            await turns(clients, range(QUESTIONS // 2))
        assert proxy.stop() == 0
        proxy.start()
        async with one_of_each(proxy, "chat") as clients:
            await turns(clients, range(QUESTIONS // 2, QUESTIONS))
    assert len(sessions) == 1
    assert states & {"compacted", "holdout"}
    [session] = (await get_page(proxy, "/accordion/sessions")).json()["sessions"]
    assert session["totals"]["requests"] == QUESTIONS
    savings = (await get_page(proxy, "/accordion/savings")).json()["holdout"]
    assert savings["sessions"]["compaction"] + savings["sessions"]["holdout"] == 1
    erased = (await ask(proxy, "DELETE", f"/accordion/sessions/{session['id']}")).json()
    assert erased["verified"] is True
    assert (await get_page(proxy, "/accordion/sessions")).json()["sessions"] == []
