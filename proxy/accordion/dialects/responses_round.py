"""What one reply of Responses says, and how the replies of several rounds look as one.

Source: the type files of the openai SDK (`openai/types/responses`). The object of a response tells the tools that the
request had, so it is never shown as it came where ours was among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accordion.core.values import dataclass
from accordion.dialects.items import CALLS, call, item
from accordion.dialects.responses import Responses
from accordion.dialects.shared import mapping, string
from accordion.dialects.spans import NULL, fields_of, is_object, list_of, object_of
from accordion.dialects.splice import OurCall, RoundSeen
from accordion.dialects.splicing import even, from_json, legible, listed, to_json, usage_of_all, visible

# Of a reply of several rounds these are the first's: later rounds are requests of ours.
_FIRST = ("id", "created_at", "tool_choice")


@dataclass(frozen=True, slots=True)
class Told:
    """The object of one response: its fields as JSON, and the items of its output that the client sees; None where it
    has no output."""

    fields: Mapping[str, bytes]
    output: tuple[bytes, ...] | None


# -- items -----------------------------------------------------------------------------


def object_in(raw: bytes) -> dict[str, Any]:
    """A JSON object, decoded; empty where it is none."""
    try:
        return mapping(from_json(raw))
    except ValueError:
        return {}


def parsed(raw: bytes) -> dict[str, bytes]:
    """The fields of a JSON object, each as its own bytes; empty where it is none."""
    try:
        return fields_of(raw)
    except (ValueError, RecursionError):
        # Half a character in a text is no reason not to see what is said beside it.
        return {name: to_json(value) for name, value in object_in(raw).items()}


def is_ours(entry: Mapping[str, Any], tool: str) -> bool:
    """Whether an item is a call of our tool."""
    return entry.get("type") == "function_call" and entry.get("name") == tool


def with_arguments(raw: bytes, arguments: str) -> bytes:
    """The item of a call with other arguments."""
    return object_of({**parsed(raw), "arguments": to_json(arguments)})


def seen(
    told: Iterable[tuple[dict[str, Any], bytes]],
    tool: str,
    fields: Mapping[str, bytes],
    *,
    finished: bool,
    resolved: bool = False,
) -> RoundSeen:
    """What a round said: its items, decoded and as they came, and the usage in the fields of its response object."""
    items = list(told)
    tap = Responses().tap(stream=False)
    tap.feed(object_of({"usage": fields.get("usage", NULL)}))
    made = [entry for entry, _ in items if is_ours(entry, tool)]
    return RoundSeen(
        said=tuple(_sendable(raw if not is_ours(entry, tool) else _legible(entry, raw)) for entry, raw in items),
        ours=tuple(
            OurCall(string(entry.get("call_id")), tool, call(entry, CALLS["function_call"]).arguments) for entry in made
        ),
        theirs=tuple(filter(None, (_theirs(entry) for entry, _ in items if not is_ours(entry, tool)))),
        text=even(visible(item(entry, 0)[1]) for entry, _ in items if entry.get("type", "message") == "message"),
        finished=finished,
        usage=tap.seen().usage,
        resolved=resolved,
    )


def _theirs(entry: Mapping[str, Any]) -> str:
    """The id of a call that the client answers; empty where the item is none. A search without a call id is the
    provider's own."""
    kind = string(entry.get("type"))
    if kind not in CALLS or (kind == "tool_search_call" and not entry.get("call_id")):
        return ""
    return string(entry.get("call_id")) or string(entry.get("id"))


def _legible(entry: Mapping[str, Any], raw: bytes) -> bytes:
    """A call of ours with arguments that are JSON."""
    arguments = string(entry.get("arguments"))
    text = legible(arguments)
    return raw if text == arguments else with_arguments(raw, text)


def _sendable(raw: bytes) -> bytes:
    """The item as it came, unless half characters stand in it, which no request may hold."""
    try:
        fields_of(raw)
    except (ValueError, RecursionError):
        return json.dumps(object_in(raw), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return raw


# -- the object of a response ------------------------------------------------------------


def without_ours(fields: Mapping[str, bytes], tool: str) -> dict[str, bytes]:
    """The fields of a response object with our tool taken out of the tools that it tells."""
    if tool.encode() not in fields.get("tools", NULL):
        return dict(fields)
    tools = listed(fields, "tools")
    kept = [each for each in tools if not _is_ours_defined(each, tool)]
    return dict(fields) if kept == tools else {**fields, "tools": list_of(kept)}


def _is_ours_defined(raw: bytes, tool: str) -> bool:
    defined = object_in(raw) if is_object(raw) and tool.encode() in raw else {}
    return defined.get("type") == "function" and defined.get("name") == tool


def as_one(rounds: Sequence[Told], tool: str) -> dict[str, bytes]:
    """The response object of all rounds: the last's, with what is the first's, all visible items, and all output
    tokens. One round in which nothing is ours keeps the bytes of every field. `rounds` holds at least one."""
    last = rounds[-1]
    fields = without_ours(last.fields, tool)
    if last.output is not None and list(last.output) != listed(fields, "output"):
        fields["output"] = list_of(last.output)
    if len(rounds) == 1:
        return fields
    first = rounds[0].fields
    fields |= {name: first[name] for name in _FIRST if name in first}
    if last.output is not None:
        fields["output"] = list_of(raw for each in rounds for raw in each.output or ())
    usages = [object_in(each.fields.get("usage", NULL)) for each in rounds]
    if usages[-1]:
        known = [usage for usage in usages if usage]
        total = usage_of_all(known, "input_tokens", "output_tokens", "output_tokens_details", "total_tokens")
        fields["usage"] = to_json(total)
    if "output_text" in fields:
        fields["output_text"] = to_json("".join(text_in(each.fields, "output_text") for each in rounds))
    return fields


def text_in(fields: Mapping[str, bytes], name: str, default: str = "") -> str:
    """A text in an object's field; `default` where there is no such field, empty where it holds something else."""
    raw = fields.get(name)
    try:
        return default if raw is None else string(from_json(raw))
    except ValueError:
        return ""
