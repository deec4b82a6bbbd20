"""A provider with one rule that nobody documents: it refuses each list that breaks it, in words that say little.

The rules are drawn from those that a client's own list keeps: a field on all entries of a kind, a kind before or behind
another, a kind at the beginning only, a part that comes first, entries that must be as the model wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from accordion.model.ports import UpstreamRequest, UpstreamResponse
from tests.fakes import FakeReply
from tests.histories import ProtocolName
from tests.strict_provider import overflow_error, request_error
from tests.writers import LISTS

Json = dict[str, Any]
_CALLS = ("tool_use", "functionCall", "toolUse")
_RESULTS = ("tool_result", "functionResponse", "toolResult")


def kind_of(entry: Json) -> str:
    """The kind of an entry: its type or role, and whether it has calls or results."""
    kind = str(entry.get("type", entry.get("role")))
    if kind == "message":
        kind = str(entry["role"])
    if entry.get("tool_calls"):
        return f"{kind} with calls"
    parts = list_parts(entry)
    if any(part.get("type") in _CALLS or not part.keys().isdisjoint(_CALLS) for part in parts):
        return f"{kind} with calls"
    has_results = any(part.get("type") in _RESULTS or not part.keys().isdisjoint(_RESULTS) for part in parts)
    return f"{kind} with results" if has_results else kind


def list_parts(entry: Json) -> list[Json]:
    """The parts of an entry's content."""
    content = entry.get("content", entry.get("parts"))
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


@dataclass(frozen=True)
class Rule:
    """A rule: its name, and whether a list keeps it. The client sends `x_field` on each entry of the kind `with_field`,
    or on each of its parts."""

    name: str
    is_kept: Callable[[Sequence[Json]], bool]
    with_field: str = ""
    has_part_field: bool = False


def add_field(entries: Sequence[Json], rule: Rule) -> list[Json]:
    """The entries as a client sends them that knows the rule."""
    return [
        _add_field(entry, rule, at) if kind_of(entry) == rule.with_field else entry for at, entry in enumerate(entries)
    ]


def _add_field(entry: Json, rule: Rule, at: int) -> Json:
    if not rule.has_part_field:
        return {**entry, "x_field": f"value {at}"}
    name = "content" if "content" in entry else "parts"
    return {**entry, name: [{**part, "x_field": f"value {at}"} for part in list_parts(entry)]}


@st.composite
def rules(draw: st.DrawFn, entries: Sequence[Json]) -> Rule:
    """Rules that a client's whole list keeps, and each beginning of it."""
    kinds, pairs = sorted({*map(kind_of, entries)}), _pairs(entries)
    kind = draw(st.sampled_from(kinds))
    own = [entry for entry in entries if kind_of(entry) == kind]
    before = {one for one, other in pairs if other == kind}
    known = {json.dumps(entry, sort_keys=True) for entry in own}
    found = [
        Rule(f"each {kind} has a field", lambda sent: all("x_field" in each for each in _select(sent, kind)), kind),
        Rule(
            f"each part of a {kind} has a field",
            lambda sent: (
                all("x_field" in part for each in _select(sent, kind) for part in list_parts(each))
                and not any(isinstance(each.get("content"), str) for each in _select(sent, kind))
            ),
            kind,
            has_part_field=True,
        ),
        Rule(
            f"a {kind} follows one of {before}", lambda sent: {one for one, to in _pairs(sent) if to == kind} <= before
        ),
    ]
    if absent := sorted({(one, other) for one in kinds for other in kinds} - pairs):
        pair = draw(st.sampled_from(absent))
        found.append(Rule(f"no {pair[0]} before {pair[1]}", lambda sent: pair not in _pairs(sent)))
    if len(own) == 1 and entries[0] is own[0]:
        found.append(Rule(f"{kind} comes first only", lambda sent: kind not in map(kind_of, sent[1:])))
    if kind != "user":
        found.append(
            Rule(
                f"each {kind} is as it was",
                lambda sent: all(json.dumps(each, sort_keys=True) in known for each in _select(sent, kind)),
            )
        )
    if any(isinstance(entry.get("content"), str) for entry in own):
        del found[1]
    return draw(st.sampled_from(found))


def _select(entries: Sequence[Json], kind: str) -> list[Json]:
    return [entry for entry in entries if kind_of(entry) == kind]


def _pairs(entries: Sequence[Json]) -> set[tuple[str, str]]:
    return {(kind_of(one), kind_of(other)) for one, other in pairwise(entries)}


@dataclass
class RuleProvider:
    """An upstream that refuses lists that break its rule, and those of more words than its window."""

    protocol_name: ProtocolName
    rule: Rule
    window: int
    status: int = 400
    has_events: bool = False
    words: str = "Invalid request: condition 17 was not met."
    has_bare_error: bool = False
    """Whether the error has a form that is no protocol's."""
    requests: list[UpstreamRequest] = field(default_factory=list)
    refused: list[list[Json]] = field(default_factory=list)
    taken: list[list[Json]] = field(default_factory=list)

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        self.requests.append(request)
        assert isinstance(request.body, bytes)
        entries = json.loads(request.body)[LISTS[self.protocol_name]]
        tokens = sum(len(text.split()) for text in _list_texts(entries))
        if tokens > self.window:
            return FakeReply(
                400, pieces=(json.dumps(overflow_error(self.protocol_name, tokens, self.window)).encode(),)
            )
        if not self.rule.is_kept(entries):
            self.refused.append(entries)
            error = json.dumps(self._write_error()).encode()
            if self.has_events:
                return refuse_in_events(error, name=b"" if self.has_bare_error else b"event: error\n")
            return FakeReply(self.status, pieces=(error,))
        self.taken.append(entries)
        return FakeReply()

    def _write_error(self) -> Json:
        if self.has_bare_error:
            return {"error_code": 17, "error_msg": self.words}
        return request_error(self.protocol_name, self.words)

    async def close(self) -> None:
        return


def _list_texts(value: Any) -> Iterator[str]:
    """Yields all texts in a list, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(each)


def refuse_in_events(error: bytes, name: bytes = b"event: error\n") -> FakeReply:
    """An event stream that begins with an error."""
    return FakeReply(200, ((b"content-type", b"text/event-stream"),), (b"%bdata: %b\n\n" % (name, error),))
