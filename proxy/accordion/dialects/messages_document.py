"""Our tool in replies of Anthropic's Messages that are one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.dialects.arguments import given_in, wanted_in
from accordion.dialects.messages import Messages
from accordion.dialects.messages_said import DONE, Block, ended, seen, summed
from accordion.dialects.shared import encode, mapping, string
from accordion.dialects.spans import NULL, fields_of, items_of, list_of, object_of
from accordion.dialects.splice import RoundSeen, Wanted
from accordion.dialects.splicing import UNREAD, Document, to_json


class MessagesDocument(Document):
    """One reply as a document, made of one or more of the provider's."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool
        self._replies: list[tuple[dict[str, bytes], list[Block]]] = []
        """The fields of each reply and its blocks."""
        self._shown: list[bytes] = []
        """The blocks that the client sees."""
        self._naming: dict[int, tuple[str, int]] = {}
        """Which of them name how many artifacts, and in what arguments."""

    def understand(self, document: dict[str, Any]) -> RoundSeen:
        """Reads the blocks of a message."""
        self._naming = {}
        blocks: list[Block] = []
        try:
            fields = fields_of(bytes(self._body))
            content = fields.get("content", NULL)
            blocks += [Block(raw, self._tool, at) for at, raw in enumerate(items_of(content))]
        except ValueError:
            self._replies.append(({}, []))
            return UNREAD
        self._replies.append((fields, blocks))
        for block, raw in zip(blocks, items_of(content), strict=True):
            if block.ours:
                continue
            if block.arguments is not None and (named := len(wanted_in(block.given))):
                self._naming[len(self._shown)] = (block.given, named)
            self._shown.append(raw)
        tap = Messages().tap(False)
        tap.feed(bytes(self._body))
        told = tap.seen()
        container = string(mapping(document.get("container")).get("id"))
        return seen(blocks, finished=told.finish in DONE, usage=told.usage, container=container)

    def named(self, document: dict[str, Any]) -> tuple[Wanted, ...]:
        """The artifacts named in the inputs of the client's calls."""
        return tuple(wanted for text, _ in self._naming.values() for wanted in wanted_in(text))

    def put(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Puts the texts into the inputs."""
        at = 0
        for place, (text, named) in self._naming.items():
            given = given_in(text, texts[at : at + named])
            at += named
            self._shown[place] = object_of({**fields_of(self._shown[place]), "input": given.encode()})
        return any(text is not None for text in texts[:at])

    def written(self) -> bytes:
        """The last message with the id of the first, the blocks and the usage of all; what is none as it came."""
        fields, blocks = self._replies[-1]
        if not fields:
            return bytes(self._body)
        reason = string(self.documents[-1].get("stop_reason"))
        usages = [mapping(document.get("usage")) for document in self.documents]
        changed = {
            "id": self._replies[0][0].get("id", NULL),
            "content": list_of(self._shown),
            "stop_reason": encode(ended(reason, blocks) or None),
        }
        if len(usages) > 1 and usages[-1]:
            changed["usage"] = to_json(summed(usages))
        return object_of({**fields, **{name: value for name, value in changed.items() if name in fields}})
