"""A provider that keeps threads: `create` keeps a list under its reply's id, `continue` goes on from it, once.

Source: the types and the thread helper of the anthropic SDK (`anthropic/lib/threads`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from tests.agent_replies import AgentReply, Json
from tests.loopback import Answer, Recorded
from tests.reply_parts import reply_document
from tests.strict_provider import StrictProvider

_BESIDE = ("system", "tools")


@dataclass
class ThreadProvider(StrictProvider):
    """As strict as its base about the whole list. What it cannot go on from it answers with the error code that the
    SDK's helper looks for, and notes in `gone`."""

    threads: dict[str, Json] = field(default_factory=dict)
    """The stored lists and their other fields, by the id of the response at the end."""
    loses: int = 0
    """Every n-th response is not stored; 0: all are."""
    gone: list[str] = field(default_factory=list)
    begun: int = 0
    continued: int = 0
    whole_lists: int = 0
    """Requests without a thread."""
    _now: Json = field(default_factory=dict)

    async def _asked(self, request: Recorded, body: Json, answer: Answer) -> None:
        thread = body.pop("thread", None)
        if thread is None:
            self.whole_lists += 1
        elif thread == {"type": "create"}:
            self.begun += 1
        else:
            previous = thread["previous_message_id"]
            if (held := self.threads.pop(previous, None)) is None:
                self.gone.append(previous)
                return await _refused(answer, previous)
            assert not body.keys() & set(_BESIDE), "the thread keeps them"
            body |= {**held, "messages": [*held["messages"], *body["messages"]]}
            self.continued += 1
        self._now = body if thread is not None else {}
        whole = replace(request, body=json.dumps(body).encode())
        await super()._asked(whole, body, answer)

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        body = request.json()
        if "thread" in body:
            return await self._asked(request, body, answer)
        return await super().__call__(request, answer)

    def _next(self, tokens: int) -> AgentReply:
        reply = super()._next(tokens)
        if (body := self._now) and not (self.loses and self.given % self.loses == 0):
            said = reply_document("messages", reply.scripted("messages"), {})
            listed = [*body["messages"], {"role": "assistant", "content": said["content"]}]
            beside = {name: body[name] for name in _BESIDE if name in body}
            self.threads[said["id"]] = {**beside, "messages": listed}
        return reply


async def _refused(answer: Answer, previous: str) -> None:
    error = {
        "type": "not_found_error",
        "message": f"No thread for {previous}",
        "details": {"error_code": "thread_not_found"},
    }
    body = json.dumps({"type": "error", "error": error, "request_id": "req_strict"}).encode()
    await answer.head(404, [("Content-Type", "application/json")], length=len(body))
    await answer.send(body)
