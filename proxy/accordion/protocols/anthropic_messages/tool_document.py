"""The response of an Anthropic tool loop as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.protocols.anthropic_messages.response import MessagesParser
from accordion.protocols.anthropic_messages.response_blocks import (
    DONE,
    ResponseBlock,
    build_round,
    stop_reason,
    sum_usage,
)
from accordion.protocols.artifact_placeholders import find_placeholders, replace_placeholders
from accordion.protocols.json_spans import NULL, fields_of, items_of, list_of, object_of
from accordion.protocols.json_values import as_mapping, as_string, encode, to_json
from accordion.protocols.response_observer import ResponseObserver
from accordion.protocols.tool_loop import ArtifactPlaceholder, ObservedRound
from accordion.protocols.tool_loop_shared import UNREADABLE_ROUND, ToolLoopDocument


class MessagesToolDocument(ToolLoopDocument):
    """A response that is one message."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool
        self._messages: list[tuple[dict[str, bytes], list[ResponseBlock]]] = []
        """The fields of each round's message, and its blocks."""
        self._visible_blocks: list[bytes] = []
        """The JSON of the blocks that the client gets."""
        self._blocks_with_placeholders: dict[int, tuple[str, int]] = {}
        """By index of a visible block: its arguments, and the number of placeholders in them."""

    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the blocks of a message."""
        self._blocks_with_placeholders = {}
        blocks: list[ResponseBlock] = []
        try:
            fields = fields_of(bytes(self._body))
            content = fields.get("content", NULL)
            blocks += [ResponseBlock(raw, self._tool, index) for index, raw in enumerate(items_of(content))]
        except ValueError:
            self._messages.append(({}, []))
            return UNREADABLE_ROUND
        self._messages.append((fields, blocks))
        for block, raw in zip(blocks, items_of(content), strict=True):
            if block.is_own:
                continue
            if block.arguments is not None and (count := len(find_placeholders(block.arguments_text))):
                self._blocks_with_placeholders[len(self._visible_blocks)] = (block.arguments_text, count)
            self._visible_blocks.append(raw)
        observer = ResponseObserver(MessagesParser(is_stream=False))
        observer.feed(bytes(self._body))
        observed = observer.observation()
        container = as_string(as_mapping(document.get("container")).get("id"))
        return build_round(blocks, finished=observed.finish in DONE, usage=observed.usage, container=container)

    def find_document_placeholders(self, document: dict[str, Any]) -> tuple[ArtifactPlaceholder, ...]:
        """Returns the placeholders in the inputs of the client's calls."""
        return tuple(each for text, _ in self._blocks_with_placeholders.values() for each in find_placeholders(text))

    def replace_document_placeholders(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Replaces the placeholders in the inputs."""
        position = 0
        for index, (text, count) in self._blocks_with_placeholders.items():
            arguments = replace_placeholders(text, texts[position : position + count])
            position += count
            self._visible_blocks[index] = object_of(
                {**fields_of(self._visible_blocks[index]), "input": arguments.encode()}
            )
        return any(text is not None for text in texts[:position])

    def write_document(self) -> bytes:
        """Writes the last message, with the id of the first, the blocks and the usage of all; an error as it came."""
        fields, blocks = self._messages[-1]
        if not fields:
            return bytes(self._body)
        reason = as_string(self.documents[-1].get("stop_reason"))
        usages = [as_mapping(document.get("usage")) for document in self.documents]
        changed = {
            "id": self._messages[0][0].get("id", NULL),
            "content": list_of(self._visible_blocks),
            "stop_reason": encode(stop_reason(reason, blocks) or None),
        }
        if len(usages) > 1 and usages[-1]:
            changed["usage"] = to_json(sum_usage(usages))
        return object_of({**fields, **{name: value for name, value in changed.items() if name in fields}})
