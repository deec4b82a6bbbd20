"""Our tool in Chat Completions: offered beside the client's, its calls hidden, its answers put back.

Source: OpenAI's reference of the endpoint. A `tool` message must follow for each call of an assistant's message, before
any other message; ours come first, since the client's are behind them in its own list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.core.conversation import Message
from accordion.core.weaves import Weave
from accordion.dialects.arguments import give_to, wanted_by
from accordion.dialects.chat_round import finished, name_of, paragraph_break, said_of, summed, usage_places
from accordion.dialects.chat_stream import ChunkSplice
from accordion.dialects.shared import encode, entries, field, mapping, string
from accordion.dialects.spans import NULL, is_list, list_of, object_of
from accordion.dialects.splice import Answer, RoundSeen, Splice, ToolOffer, Wanted, Weaver
from accordion.dialects.splicing import Document, copied, listed, names_of, to_json

# Forms of an answer that are no free text: with them a model that has no tools is not to be given one.
_FORMS = frozenset({"json_schema", "json_object"})
# Fields of a message that are put together over rounds; of the others the last round's count.
_JOINED = frozenset(
    {"content", "refusal", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "annotations"}
)


class ChatWeaver(Weaver):
    """Our tool in Chat Completions."""

    def names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Functions, custom tools, and functions of the older kind."""
        tools = entries(field(fields, "tools"))
        older = names_of(entries(field(fields, "functions")), "name")
        return names_of(tools, "function", "name") | names_of(tools, "custom", "name") | older

    def offer(self, fields: Mapping[str, bytes], tool: ToolOffer) -> dict[str, bytes] | None:
        """`tools` with ours as the last. `tool_choice` stays: a client that forces a tool of its own, or none, keeps
        that, and the tool list stays the same from request to request.

        None with `n` above 1, with `functions`, and where the client has no tools and asks for JSON, gives a
        `prediction` (neither goes with tools), or says which tool to choose.
        """
        several = field(fields, "n")
        if (type(several) is int and several > 1) or any(
            _given(fields, name) for name in ("functions", "function_call")
        ):
            return None
        theirs = fields.get("tools", NULL)
        if theirs != NULL and not is_list(theirs):
            return None
        own = listed(fields, "tools")
        form = string(mapping(field(fields, "response_format")).get("type"))
        chosen = field(fields, "tool_choice") not in (None, "auto")
        if not own and (form in _FORMS or chosen or _given(fields, "prediction")):
            return None
        function = {"name": encode(tool.name), "description": encode(tool.description), "parameters": tool.schema}
        ours = object_of({"type": b'"function"', "function": object_of(function)})
        return {"tools": list_of([*own, ours])}

    def splice(self, tool: str, stream: bool) -> Splice:
        """For chunks, or for a completion."""
        return ChunkSplice(tool) if stream else _CompletionSplice(tool)

    def answers(self, answers: Sequence[Answer]) -> tuple[bytes, ...]:
        """A `tool` message each; that a call failed is said in its text only."""
        return tuple(
            encode({"role": "tool", "tool_call_id": answer.call_id, "content": answer.text}) for answer in answers
        )  # fmt: skip

    def woven(
        self, messages: Sequence[Message], weave: Weave, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """The assistant's message (some clients make two of it) gives way to those of the rounds and our answers, which
        stand before the client's."""
        count = copied(messages, weave)
        if not count:
            return None
        return count, tuple(wire for each in weave.rounds for wire in (*each.said, *each.answered))

    def last(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """The tools without the last, which is ours; where it is the only one, `tool_choice` none."""
        own = listed(fields, "tools")[:-1]
        return {"tools": list_of(own)} if own else {"tool_choice": b'"none"'}


def _given(fields: Mapping[str, bytes], name: str) -> bool:
    return field(fields, name) not in (None, [])


class _CompletionSplice(Document):
    """Completions in, one completion out."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    def understand(self, document: dict[str, Any]) -> RoundSeen:
        """Reads the first choice; there is no other where our tool is offered."""
        choice, message = _first(document)
        stem, used = f"{string(document.get('id'))}_{len(self.rounds)}", usage_places(document)
        whole = bool(message) and not document.get("error") and finished(string(choice.get("finish_reason")))
        return said_of(message, self._tool, stem, used[-1]["usage"] if used else None, whole=whole)

    def named(self, document: dict[str, Any]) -> tuple[Wanted, ...]:
        """Of each of the client's calls in turn."""
        return wanted_by(self._functions(document))

    def put(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Changes the arguments of the calls that name artifacts."""
        return give_to(self._functions(document), texts)

    def written(self) -> bytes:
        """The last completion with the id of the first, the words of all, the client's calls, and the whole usage."""
        last = self.documents[-1]
        choice, message = _first(last)
        if not choice:
            return to_json(last)
        for document in reversed(self.documents[:-1]):
            for name, held in _first(document)[1].items():
                if name in _JOINED:
                    message[name] = _behind(held, message.get(name))
        calls = [call for call in entries(message.get("tool_calls")) if name_of(call) != self._tool]
        if calls:
            message["tool_calls"] = calls
        elif "tool_calls" in message:
            del message["tool_calls"]
        if choice.get("finish_reason") == "tool_calls" and not calls:
            choice["finish_reason"] = "stop"
        first = self.documents[0]
        last |= {name: first[name] for name in ("id", "created", "system_fingerprint") if name in first}
        usages = [holders[-1]["usage"] for holders in map(usage_places, self.documents) if holders]
        for holder in usage_places(last):
            holder["usage"] = summed(usages)
        return to_json(last)

    def _functions(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """The functions that the client's calls call, where they have arguments as text."""
        calls = [call for call in entries(_first(document)[1].get("tool_calls")) if name_of(call) != self._tool]
        functions = [mapping(mapping(call).get("function")) for call in calls]
        return [function for function in functions if type(function.get("arguments")) is str]


def _first(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first choice, and its message."""
    choices = entries(document.get("choices"))
    choice = mapping(choices[0]) if choices else {}
    return choice, mapping(choice.get("message"))


def _behind(before: Any, held: Any) -> Any:
    """A field of a message behind that of an earlier round."""
    if not before or not held:
        return held or before
    if type(before) is str and type(held) is str:
        return before + paragraph_break(before, held) + held
    return before + held if type(before) is list and type(held) is list else held
