"""Our tool in Anthropic's requests: offered, answered, taken back; what was read put in the place of a client's copy.

Sources: reference of the Messages API. Results stand first in the user's message behind their calls; a list that holds
calls needs `tools`; `tool_choice` may stand only beside `tools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.core.conversation import Message
from accordion.core.values import dataclass
from accordion.core.weaves import Weave
from accordion.dialects import messages_writing
from accordion.dialects.messages_document import MessagesDocument
from accordion.dialects.messages_splice import MessagesStream
from accordion.dialects.shared import encode, entries, field, mapping, string
from accordion.dialects.spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of
from accordion.dialects.splice import Answer, Splice, ToolOffer, Weaver
from accordion.dialects.splicing import copied, listed, names_of

_MAY_NOT = b'{"type":"none"}'


@dataclass(frozen=True, slots=True)
class MessagesWeaver(Weaver):
    """What Messages knows about our tool."""

    def names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """The names of all tools, those that the provider runs included."""
        return names_of(entries(field(fields, "tools")), "name")

    def offer(self, fields: Mapping[str, bytes], tool: ToolOffer) -> dict[str, bytes] | None:
        """Our tool behind the client's, whose bytes and cache breakpoints stay; `tool_choice` stays as it is. None
        where the client has no tools and either demands a form of the answer, or says which tool to choose."""
        ours = object_of(
            {"name": encode(tool.name), "description": encode(tool.description), "input_schema": tool.schema}
        )  # fmt: skip
        theirs = fields.get("tools", NULL).strip()
        if is_list(theirs) and theirs[1:-1].strip():
            return {"tools": theirs[:-1].rstrip() + b"," + ours + b"]"}
        if theirs != NULL and not is_list(theirs):
            return None
        chosen = string(mapping(field(fields, "tool_choice")).get("type")) not in {"", "auto"}
        return None if chosen or _has_form(fields) else {"tools": list_of([ours])}

    def splice(self, tool: str, stream: bool) -> Splice:
        """A splice for events, or for a whole message."""
        return MessagesStream(tool) if stream else MessagesDocument(tool)

    def answers(self, answers: Sequence[Answer]) -> tuple[bytes, ...]:
        """One user's message with a result for each call."""
        blocks = [
            {"type": "tool_result", "tool_use_id": answer.call_id, "content": answer.text}
            | ({"is_error": True} if answer.error else {})
            for answer in answers
        ]
        return (encode({"role": "user", "content": blocks}),) if blocks else ()

    def woven(
        self, messages: Sequence[Message], weave: Weave, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """The rounds in the place of the assistant's messages. Results of ours that stand beside the client's come at
        the start of what the user says next, which is replaced too. A cache breakpoint of the copy moves to the end of
        the rounds; thinking is the provider's, whether the client kept it or not."""
        run = copied(messages, weave)
        if not run:
            return None
        wires = [wire for each in weave.rounds for wire in (*each.said, *each.answered)]
        answered = weave.rounds[-1].answered if weave.rounds else ()
        behind: tuple[bytes, ...] = ()
        if answered:
            joined = _joined(answered, messages[run]) if run < len(messages) else None
            if joined is not None:
                del wires[-len(answered) :]
                behind = (joined,)
            elif weave.calls:
                return None
        mark = _mark(messages[:run])
        return run + len(behind), (*(_marked(wires, mark) if mark else wires), *behind)

    def onward(self, fields: Mapping[str, bytes], container: str) -> Mapping[str, bytes]:
        """With the container in which code ran: without its name the provider makes another one, where nothing is of
        what the code left."""
        if not container:
            return fields
        asked = field(fields, "container")
        named = {**asked, "id": container} if type(asked) is dict else container
        return {**fields, "container": encode(named)}

    def last(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """The client's own tools. Where it has none, and where the model thinks, the tools stay and none may be chosen:
        a list with calls needs tools, and thinking is bound to the tools that it was made with."""
        tools = listed(fields, "tools")
        thinks = string(mapping(field(fields, "thinking")).get("type")) not in {"", "disabled"}
        if len(tools) > 1 and not thinks:
            return {"tools": list_of(tools[:-1])}
        return {"tool_choice": _MAY_NOT}


def _has_form(fields: Mapping[str, bytes]) -> bool:
    config = mapping(field(fields, "output_config"))
    return (config.get("format") or field(fields, "output_format")) is not None


def _joined(answered: Sequence[bytes], message: Message) -> bytes | None:
    """The user's message with our results before all else; None where nothing can be put into it."""
    if message.role != "user" or not is_object(message.wire):
        return None
    fields = fields_of(message.wire)
    content = fields.get("content", NULL)
    ours = [block for wire in answered for block in items_of(fields_of(wire)["content"])]
    if is_text(content):
        said = () if content == b'""' else (object_of({"type": b'"text"', "text": content}),)
        return object_of({**fields, "content": list_of([*ours, *said])})
    if not is_list(content):
        return None
    between = b"," if content[1:-1].strip() else b""
    return object_of({**fields, "content": b"[" + b",".join(ours) + between + content[1:]})


def _mark(messages: Sequence[Message]) -> bytes:
    """The last cache breakpoint of a message's own blocks; empty where there is none."""
    for message in reversed(messages):
        content = fields_of(message.wire).get("content", NULL) if message.marks else NULL
        for block in reversed(items_of(content) if is_list(content) else []):
            mark = fields_of(block).get("cache_control", NULL) if is_object(block) else NULL
            if mark != NULL:
                return mark
    return b""


def _marked(wires: Sequence[bytes], mark: bytes) -> list[bytes]:
    """The entries with this breakpoint on the last block that may carry one."""
    out = list(wires)
    for at in range(len(out) - 1, -1, -1):
        written = messages_writing.marked(out[at])
        if written == out[at]:
            continue
        fields, before = fields_of(written), items_of(fields_of(out[at])["content"])
        blocks = items_of(fields["content"])
        changed = next(place for place, block in enumerate(blocks) if block != before[place])
        blocks[changed] = object_of({**fields_of(blocks[changed]), "cache_control": mark})
        out[at] = object_of({**fields, "content": list_of(blocks)})
        break
    return out
