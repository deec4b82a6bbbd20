"""Our tool in Responses requests: offered, answered, taken back; what was read put beside a client's copy of a reply.

Clients send back a reply item by item, and leave out what they like. What they have of its last round stays theirs, in
their bytes; what was said before it, and the calls of our tool and their answers, are put where they were.

Sources: the type files of the openai SDK; the provider's error texts ("No tool output found for function call …",
"Item 'rs_…' of type 'reasoning' was provided without its required following item", "Item with id '…' not found. Items
are not persisted when `store` is set to false").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.core.boundaries import refers
from accordion.core.conversation import Message, Opaque, Reasoning
from accordion.core.values import dataclass
from accordion.core.weaves import Weave
from accordion.dialects.responses_copies import unwoven, woven
from accordion.dialects.responses_document import ResponsesDocument
from accordion.dialects.responses_round import object_in
from accordion.dialects.responses_splice import ResponsesStream
from accordion.dialects.shared import encode, entries, field, mapping
from accordion.dialects.spans import NULL, fields_of, is_list, list_of, object_of, without
from accordion.dialects.splice import Answer, ToolOffer, Weaver
from accordion.dialects.splicing import listed, names_of

_MAY_NOT = b'"none"'


@dataclass(frozen=True, slots=True)
class ResponsesWeaver(Weaver):
    """What Responses knows about our tool."""

    def names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """The names of functions and custom tools, those within namespaces included."""
        tools = entries(field(fields, "tools"))
        inner = [tool for each in tools for tool in entries(mapping(each).get("tools"))]
        return names_of([*tools, *inner], "name")

    def offer(self, fields: Mapping[str, bytes], tool: ToolOffer) -> dict[str, bytes] | None:
        """Our tool behind the client's; `tool_choice` and `parallel_tool_calls` stay as they are. None where calls are
        counted, where the reply is made in the background, and, where the client names no tools, if the answer must
        have a form or a stored prompt may bring tools of its own, which a list would replace."""
        if field(fields, "background") is True or field(fields, "max_tool_calls") is not None:
            return None
        ours = object_of(
            {
                "type": b'"function"', "name": encode(tool.name), "description": encode(tool.description),
                "parameters": tool.schema, "strict": b"false",
            }
        )  # fmt: skip
        theirs = fields.get("tools", NULL).strip()
        if is_list(theirs) and theirs[1:-1].strip():
            return {"tools": theirs[:-1].rstrip() + b"," + ours + b"]"}
        form = mapping(mapping(field(fields, "text")).get("format")).get("type", "text")
        if form != "text" or field(fields, "prompt") is not None or not (theirs == NULL or is_list(theirs)):
            return None
        return {"tools": list_of([ours])}

    def splice(self, tool: str, stream: bool) -> ResponsesStream | ResponsesDocument:
        """A splice for events, or for a whole response. Both tell the `ids` of the reply."""
        return ResponsesStream(tool) if stream else ResponsesDocument(tool)

    def answers(self, answers: Sequence[Answer]) -> tuple[bytes, ...]:
        """One item for each call."""
        return tuple(
            encode({"type": "function_call_output", "call_id": answer.call_id, "output": answer.text})
            for answer in answers
        )

    def again(self, said: Sequence[bytes], fields: Mapping[str, bytes]) -> tuple[bytes, ...]:
        """What a round said as it may be sent back. Where the provider stores nothing, an id leads nowhere and is
        refused, and reasoning of which only the id was given is left out."""
        if field(fields, "store") is not False:
            return tuple(said)
        return tuple(wire for wire in map(_unstored, said) if wire is not None)

    def woven(
        self, messages: Sequence[Message], weave: Weave, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """All rounds before the last as they were sent to the provider, then the client's items of the last; beside the
        client's calls our own, answered before the first of theirs. Reasoning that led to a call of ours comes with it
        where the client has it no more. Arguments in which artifacts were named are the model's own again. None where
        nothing of the last round is known again."""
        return woven(messages, weave, lambda said: self.again(said, fields))

    def without(self, weave: Weave) -> Weave | None:
        """The rounds without our calls, and without the reasoning that led to them alone."""
        return unwoven(weave)

    def stranded(self, messages: Sequence[Message]) -> bool:
        """Whether there is an item of reasoning, or one that is only named, which may be reasoning."""
        # Looked for in every list that is not to be changed; such an item is nothing else.
        kinds = {type(message.parts[0]) for message in messages if message.parts}
        return Reasoning in kinds or (Opaque in kinds and any(map(refers, messages)))

    def last(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """The client's own tools; where it has none, ours stays and may not be chosen."""
        tools = listed(fields, "tools")
        return {"tools": list_of(tools[:-1])} if len(tools) > 1 else {"tool_choice": _MAY_NOT}


def _unstored(wire: bytes) -> bytes | None:
    """An item that leads to nothing kept by the provider; None where nothing is left of it."""
    entry = object_in(wire)
    if entry.get("type") == "reasoning" and not entry.get("encrypted_content"):
        # Servers of open models tell the reasoning itself, and ask for the id beside it.
        return wire if entry.get("content") else None
    fields = fields_of(wire)
    without(fields, "id")
    return object_of(fields)
