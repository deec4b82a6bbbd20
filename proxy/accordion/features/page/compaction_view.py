"""The verdict on a compaction: what took the window before and after it, and what stays and why.

The figures by kind come from the steps of the compaction's record, which have the tokens of the whole request before
and after each. The tokens of what the compaction wrote are estimated by its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from markupsafe import Markup

from accordion.model.compaction import Compaction
from accordion.model.conversation import INSTRUCTION_ROLES, Message, ToolCall, ToolResult
from accordion.model.records import Exchange
from accordion.summaries.instructions import TITLE

PartKind = Literal["system", "kept", "summary", "results", "reasoning", "removed"]

_NAMES: Mapping[PartKind, str] = {
    "system": "system prompt and tools",
    "kept": "messages that stay",
    "summary": "messages, now a summary",
    "results": "tool results, now references to the archive",
    "reasoning": "earlier reasoning, dropped",
    "removed": "messages, now in the archive only",
}
_KINDS: Mapping[str, PartKind] = {
    "summarize": "summary",
    "stale_reasoning": "reasoning",
    "clear_thinking": "reasoning",
    "compact_tool_results": "results",
    "superseded": "results",
    "delegated_digests": "results",
    "clear_tool_uses": "results",
    "images": "results",
    "body": "results",
}
"""The kind of what a strategy takes out of the window, by its name; messages for all others."""
_BYTES_PER_TOKEN = 4


class WindowPart(msgspec.Struct, frozen=True):
    """The tokens of one kind before and after a compaction."""

    kind: PartKind
    before: int
    after: int

    @property
    def name(self) -> str:
        """What it is."""
        return _NAMES[self.kind]


class KeptMessages(msgspec.Struct, frozen=True):
    """Messages `first` to `last` (inclusive) that stay as they are: what they are, and the rule by which they stay."""

    first: int
    last: int
    what: str
    rule: str


class Verdict(msgspec.Struct, frozen=True):
    """What a compaction did. `kept` is a list of what stays, in words; `scale` is the tokens that a whole bar stands
    for: the window, or the request if that was larger."""

    parts: tuple[WindowPart, ...]
    kept: str
    ranges: tuple[KeptMessages, ...]
    window: int
    scale: int

    def bar(self, *, is_after: bool) -> Markup:
        """Draws the parts of the window before the compaction, or after it."""
        return _draw_bar(self, is_after=is_after)


def judge(
    compaction: Compaction, exchange: Exchange | None, messages: Sequence[Message], pins: frozenset[str]
) -> Verdict:
    """Returns the verdict on a compaction.

    `exchange` is the one that it was made for, None if that is not on record. `messages` are the client's, none if they
    are not on record.
    """
    window = exchange.utilization.window if exchange is not None else 0
    if not window and compaction.utilization:
        window = round(compaction.before / compaction.utilization)
    count = exchange.messages if exchange is not None else len(messages)
    ranges = tuple(_list_kept(compaction, messages[:count], count, pins))
    parts = tuple(_list_parts(compaction, exchange))
    return Verdict(parts, _describe_kept(compaction, ranges), ranges, window, max(window, compaction.before, 1))


# -- tokens by kind ---------------------------------------------------------------------------------------------------


def _list_parts(compaction: Compaction, exchange: Exchange | None) -> Iterator[WindowPart]:
    gains = dict[PartKind, int]()
    for step in compaction.steps:
        kind = _KINDS.get(step.strategy, "removed")
        gains[kind] = gains.get(kind, 0) + step.before - step.after
    used = exchange.utilization if exchange is not None else None
    system = min(used.preamble + used.tools, compaction.after) if used is not None else 0
    written: dict[PartKind, int] = {
        "summary": sum(len(each.wire) for each in compaction.entries if each.wire is not None and not each.is_edited),
        "results": sum(len(each.wire) for each in compaction.entries if each.wire is not None and each.is_edited),
    }
    rest = compaction.after - system
    yield WindowPart("system", system, system)
    after = dict[PartKind, int]()
    for kind, size in written.items():
        after[kind] = min(rest, size // _BYTES_PER_TOKEN)
        rest -= after[kind]
    yield WindowPart("kept", rest, rest)
    for kind in ("summary", "results", "reasoning", "removed"):
        if after.get(kind) or gains.get(kind):
            yield WindowPart(kind, max(0, after.get(kind, 0) + gains.get(kind, 0)), after.get(kind, 0))


def _draw_bar(verdict: Verdict, *, is_after: bool) -> Markup:
    amounts = [(part, part.after if is_after else part.before) for part in verdict.parts]
    label = ", ".join(f"{part.name}: {tokens:,} tokens" for part, tokens in amounts if tokens)
    pieces = [
        Markup('<svg class="bar" role="img" aria-label="{}: {}" width="100%" height="34">').format(
            "After" if is_after else "Before", label
        ),
        Markup('<rect class="bar-free" width="100%" height="100%"/>'),
    ]
    left = 0.0
    for part, tokens in amounts:
        width = 100 * tokens / verdict.scale
        pieces.append(
            Markup('<rect class="bar-{}" x="{:.2f}%" width="{:.2f}%" height="100%"><title>{}</title></rect>').format(
                part.kind, left, width, f"{part.name}: {tokens:,} tokens"
            )
        )
        left += width
    if 0 < verdict.window < verdict.scale:
        end = 100 * verdict.window / verdict.scale
        pieces.append(Markup('<line class="bar-window" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"/>').format(end))
    return Markup("").join([*pieces, Markup("</svg>")])


# -- what stays -------------------------------------------------------------------------------------------------------


def _list_kept(
    compaction: Compaction, messages: Sequence[Message], count: int, pins: frozenset[str]
) -> Iterator[KeptMessages]:
    """Yields the messages that stay, in order; neighbours with the same rule together."""
    stays = [
        index for entry in compaction.entries if entry.wire is None for index in range(entry.first, entry.last + 1)
    ]
    stays += range(compaction.covered_count, count)
    users = [index for index, message in enumerate(messages) if _is_request(message)]
    kept: KeptMessages | None = None
    for index in stays:
        what, rule = _find_rule(compaction, messages, index, users, pins)
        if kept is not None and kept.last + 1 == index and kept.what == what:
            kept = msgspec.structs.replace(kept, last=index)
            continue
        if kept is not None:
            yield kept
        kept = KeptMessages(index, index, what, rule)
    if kept is not None:
        yield kept


def _is_request(message: Message) -> bool:
    return message.has_user_text and not message.has_tool_result


def _find_rule(
    compaction: Compaction, messages: Sequence[Message], index: int, users: Sequence[int], pins: frozenset[str]
) -> tuple[str, str]:
    message = messages[index] if index < len(messages) else None
    if message is not None and message.role in INSTRUCTION_ROLES:
        return "system messages", "The first and the newest system messages stay, and changes of the tools."
    if users and index == users[-1]:
        return "the task", "The user’s last message is what the model works on."
    if users and index == users[0]:
        return "the opening request", "The user’s first message says what the conversation is for."
    parts = message.parts if message is not None else ()
    if any(isinstance(part, ToolCall | ToolResult) and part.call_id in pins for part in parts):
        return "a pinned result", "Somebody pinned it."
    if index >= compaction.covered_count:
        return "the newest messages", "A compaction ends before the newest messages, which the model needs next."
    return "other messages", "The target was reached without them, or a rule of the provider ties them to others."


def _describe_kept(compaction: Compaction, ranges: Sequence[KeptMessages]) -> str:
    """Returns the list of what stays, in words."""
    names = list[str]()
    for what in ("system messages", "the opening request", "the task"):
        names += [what] if any(each.what == what for each in ranges) else []
    rules = _count_rules(compaction)
    names += [f"{rules} standing instruction{'s' if rules != 1 else ''}"] if rules else []
    for what, one, many in (
        ("a pinned result", "1 pinned message", "{} pinned messages"),
        ("other messages", "1 other message", "{} other messages"),
        ("the newest messages", "the newest message", "the newest {} messages"),
    ):
        count = sum(each.last - each.first + 1 for each in ranges if each.what == what)
        names += [one if count == 1 else many.format(f"{count:,}")] if count else []
    return ", ".join(names)


def _count_rules(compaction: Compaction) -> int:
    """Counts the lines under the title of standing instructions in what the compaction wrote."""
    texts = [each.wire.decode(errors="replace") for each in compaction.entries if each.wire and not each.is_edited]
    count = 0
    for text in texts:
        _, found, rest = text.partition(f"## {TITLE}\\n")
        section = rest.partition("\\n## ")[0] if found else ""
        count += sum(bool(line.strip()) for line in section.split("\\n"))
    return count
