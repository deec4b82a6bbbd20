"""A strict provider of Responses that stores its responses and conversation objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

from tests import reply_parts, strict_provider
from tests.agent_replies import Json
from tests.loopback import Answer, Recorded
from tests.reading_provider import ReadingProvider
from tests.reply_parts import ScriptedReply

PATH = "/v1/responses/"
OBJECTS = "/v1/conversations/"


@dataclass
class StoredResponse:
    """A response, with its history and its own request's input."""

    before: list[Json]
    input: list[Json]
    response: Json


@dataclass
class StoringProvider(ReadingProvider):
    """What stands in for entries (ids of replies, of conversations, of items) is put in their place before anything is
    judged, so that `taken` are the lists that the model reads."""

    held: dict[str, StoredResponse] = field(default_factory=dict)
    talks: dict[str, list[Json]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """The requests for stored responses and conversations: method and target."""
    _own: list[Json] = field(default_factory=list)

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        path, _, query = request.target.partition("?")
        if path.startswith(OBJECTS):
            self.asked.append((request.method, request.target))
            return await self._object_items(request, path.removeprefix(OBJECTS), parse_qs(query), answer)
        if path.startswith(PATH) and path not in strict_provider.COUNTING:
            self.asked.append((request.method, request.target))
            return await self._serve_stored(path.removeprefix(PATH).split("/"), parse_qs(query), answer)
        body = request.json()
        given = body["input"]
        self._own = [{"role": "user", "content": given}] if isinstance(given, str) else given
        body["input"] = [self._resolve_reference(entry) for entry in (*self._earlier_entries(body), *self._own)]
        await super().__call__(replace(request, body=json.dumps(body).encode()), answer)

    def _earlier_entries(self, body: Json) -> Sequence[Json]:
        previous, talk = body.get("previous_response_id"), body.get("conversation")
        if talk is not None:
            return self.talks.setdefault(talk if isinstance(talk, str) else talk["id"], [])
        if previous is None:
            return []
        kept = self.held[previous]
        return [*kept.before, *kept.response["output"]]

    async def _object_items(self, request: Recorded, path: str, query: dict[str, list[str]], answer: Answer) -> None:
        """Lists or adds the items of a conversation object, as the API does."""
        name, _, below = path.partition("/")
        assert below == "items", path
        talk = self.talks.setdefault(name, [])
        if request.method == "POST":
            added = request.json()["items"]
            assert 0 < len(added) <= 20
            talk += added
            return await strict_provider.send_json(answer, 200, {"object": "list", "data": added})
        assert query["order"] == ["asc"]
        items = [{"id": f"item_{at}", **item} for at, item in enumerate(talk)]
        start = [item["id"] for item in items].index(query["after"][0]) + 1 if "after" in query else 0
        page = items[start : start + int(query["limit"][0])]
        ends = {"last_id": page[-1]["id"] if page else None, "has_more": start + len(page) < len(items)}
        await strict_provider.send_json(answer, 200, {"object": "list", "data": page, **ends})

    def _resolve_reference(self, entry: Json) -> Json:
        if entry.get("type") != "item_reference":
            return entry
        known = {item["id"]: item for kept in self.held.values() for item in kept.response["output"]}
        item: Json = known[entry["id"]]
        return item

    async def _send_reply(self, said: ScriptedReply, body: Json, answer: Answer) -> None:
        response = reply_parts.reply_document("responses", said, body)
        if (talk := body.get("conversation")) is not None:
            self.talks[talk if isinstance(talk, str) else talk["id"]] += [*self._own, *response["output"]]
        if body.get("store", True):
            self.held[response["id"]] = StoredResponse(body["input"], self._own, response)
        await super()._send_reply(said, body, answer)

    async def _serve_stored(self, path: list[str], query: dict[str, list[str]], answer: Answer) -> None:
        kept = self.held.get(path[0])
        if kept is None:
            told = f"Response with id '{path[0]}' not found."
            return await strict_provider.send_json(answer, 404, strict_provider.request_error("responses", told))
        if path[1:] == ["input_items"]:
            items = [{"id": f"in_{at}", **item} for at, item in enumerate(kept.before)]
            if query.get("order") != ["asc"]:
                items.reverse()
            ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"], "has_more": False}
            return await strict_provider.send_json(answer, 200, {"object": "list", "data": items, **ends})
        return await strict_provider.send_json(answer, 200, kept.response)


def shows_our_tool(value: Any) -> bool:
    """Whether a value shows a call of our tool."""
    return "read_artifact" in json.dumps(value) or "ours_" in json.dumps(value)
