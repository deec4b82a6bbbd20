"""`accordion explain`: one request in, text for a person or JSON for a machine out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.core.errors import AccordionError
from accordion.core.http import Inbound
from accordion.core.ports import Headers
from accordion.offline import explaining_fold, explaining_seat
from accordion.offline.beside import beside
from accordion.offline.explain import Counted, Explanation, Understood, explain
from accordion.offline.guess import guess_path
from accordion.offline.listing import counted
from accordion.offline.plot import levels, style_of
from accordion.offline.rooms import Rooms
from accordion.settings import Settings

_KINDS = {
    "Text": "text",
    "Reasoning": "reasoning",
    "ToolCall": "tool call",
    "ToolResult": "tool result",
    "Media": "media",
    "Opaque": "unknown type",
}
_SOURCES = {
    "config": "from the config",
    "learnt": "learned from an overflow error",
    "table": "from LiteLLM's table",
    "default": "assumed: the model is unknown",
}
_DIALECTS = {"chat": "Chat Completions", "responses": "Responses", "messages": "Anthropic Messages"}
_WAYS = {"openai": "native API", "anthropic": "native API", "litellm": "translated by LiteLLM"}


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; `window` in tokens, `full` for the whole body that leaves."""

    path: str | None = None
    headers: Sequence[str] = ()
    window: int | None = None
    full: bool = False
    as_json: bool = False


def run(file: str, settings: Settings, options: Options) -> int:
    """Explains the request in `file` (`-`: the standard input); returns the exit code: 2 for input that is not there or
    a malformed option, else 0."""
    err = Console(stderr=True, highlight=False)
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        given = _headers(options.headers)
    except (OSError, ValueError) as error:
        err.print(Text(f"{file}: {error.strerror}" if isinstance(error, OSError) else str(error), style="red"))
        return 2
    fields = dict(given)
    target, _, query = (options.path or guess_path(body, fields)).partition("?")
    inbound = Inbound("POST", target, query, given, body, "explained")
    try:
        found = asyncio.run(_explain(inbound, settings, options))
    except AccordionError as error:
        err.print(Text(f"Accordion would answer with {error.status}: {error.message}", style="red"))
        return 0
    if options.as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        shown: list[RenderableType] = [_text(found, file, options)]
        if found.folding is not None:
            shown += explaining_fold.below(found.folding, full=options.full)
        Console(highlight=False).print(Padding(Group(*shown), (1, 1)))
    return 0


async def _explain(inbound: Inbound, settings: Settings, options: Options) -> Explanation:
    async with beside(settings) as known:
        rooms = Rooms(settings, options.window, known)
        try:
            return await explain(inbound, rooms, full=options.full)
        finally:
            await rooms.close()


def _headers(given: Sequence[str]) -> Headers:
    """Raises ValueError for what is not `name: value`."""
    found = []
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {header.split(':')[0]!r}: write it as 'name: value'")
        found.append((name.strip().lower().encode(), value.strip().encode()))
    if all(name != b"content-type" for name, _ in found):
        found.append((b"content-type", b"application/json"))
    return tuple(found)


def _text(found: Explanation, file: str, options: Options) -> Table:
    """All sections below each other, names on the left."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("request", style="bold"), f"{file}, {found.bytes:,} bytes")
    guessed = " (guessed from the body; --path sets it)" if options.path is None else ""
    table.add_row("endpoint", f"POST {found.path}{guessed}")
    sections: list[tuple[str, Iterable[tuple[str, str | Text]]]] = [("caller", _who(found))]
    if found.sitting is not None and found.sitting.told:
        sections.append(("agents", explaining_seat.rows(found.sitting, full=options.full)))
    if found.understood is not None and found.counted is not None:
        sections += [("content", _understood(found.understood)), ("size", _counted(found.counted))]
    else:
        result = "it is forwarded unchanged, and its tokens are not counted"
        sections.append(("not parsed", [("reason", found.unread), ("result", result)]))
    sections.append(("decision", _done(found)))
    if found.understood is not None and found.folding is not None:
        sections.append(("compaction", explaining_fold.rows(found.folding)))
    sections.append(("changes", _changed(found)))
    for title, rows in sections:
        table.add_row()
        table.add_row(Text(title, style="bold"), "")
        for name, value in rows:
            table.add_row(f"  {name}", value)
    return table


def _who(found: Explanation) -> Iterable[tuple[str, str]]:
    if found.asked.refused:
        yield "access", "refused; the rest of this report assumes that it is granted"
        return
    yield "tenant", found.asked.tenant + (", identified by a proxy key" if found.asked.proxy_key else "")
    yield "credential", "the caller sends its own" if found.asked.credential else "the caller sends none"


def _understood(said: Understood) -> Iterable[tuple[str, str]]:
    yield "protocol", _DIALECTS[said.dialect]
    yield "model", (said.model or "none named") + (", streamed" if said.stream else ", not streamed")
    yield "system prompt", counted(said.preamble_parts, "part") if said.preamble_parts else "none"
    yield "tools", f"{len(said.tools)}: {', '.join(said.tools)}" if said.tools else "none"
    yield (
        "messages",
        f"{said.messages}, " + ("at the start of a turn" if said.starts_turn else "in the middle of a turn"),
    )
    for role, counts in said.roles.items():
        yield f"  {role}", f"{counts['messages']}: {_parts({k: n for k, n in counts.items() if k != 'messages'})}"
    if said.previous is not None:
        yield "continues", f"{said.previous}, stored by the provider"
    yield "output limit", f"{said.max_output:,} tokens" if said.max_output else "none requested"
    yield "other fields", ", ".join(said.fields) or "none"
    marks = (("client", said.marks.client), ("session", said.marks.session), ("agent", said.marks.agent))
    yield "labels", ", ".join(f"{name} {value}" for name, value in marks if value) or "none"
    yield "session", f"{said.session} (derived from the content and the tenant key)"


def _counted(count: Counted) -> Iterable[tuple[str, str | Text]]:
    parts, limits = count.parts, count.limits
    style = style_of(count.utilization, levels(limits))
    yield "utilization", Text(f"{count.utilization:.1%} of the window", style=f"bold {style}")
    yield "tokens", f"{count.tokens:,}"
    for name in ("preamble", "tools", "messages", "media"):
        yield f"  {'system prompt' if name == 'preamble' else name}", f"{getattr(parts, name):,}"
    if count.passed_over:
        yield "  not counted", f"{counted(count.passed_over, 'message')} that a compaction by the provider replaces"
    if parts.unfolded:
        yield "  read back", f"{parts.unfolded:,}, with recalled excerpts"
    if parts.reserved_output:
        yield "reserved", f"{parts.reserved_output:,} for the output; {count.occupied:,} in use with it"
    yield "window", f"{count.window.size:,}, {_SOURCES[count.window.source]}"
    yield "usable input", f"{count.window.usable_input:,}"
    yield "conversation trigger", f"{limits.conversation:,}, at the start of a turn"
    yield "generation trigger", f"{limits.generation:,}, between tool calls"
    yield "hard limit", f"{limits.hard:,}"
    for place, large in enumerate(count.largest):
        said = f"[{large.index}] {large.role}, {_parts(large.parts)}: {large.tokens:,}"
        yield "" if place else "largest messages", said


def _done(found: Explanation) -> Iterable[tuple[str, str | Text]]:
    yield "action", Text(found.action, style="bold red" if found.action in ("refuse", "resend") else "bold")
    yield "reason", found.reason
    yield "upstream", f"{found.going.upstream}, {_WAYS[found.going.family]}"
    yield "URL", found.going.url


def _changed(found: Explanation) -> Iterable[tuple[str, str]]:
    changed = found.changed
    if changed.refused:
        yield "refused", changed.refused
        return
    yield "body", changed.body
    yield "headers removed", ", ".join(changed.headers_removed) or "none"
    yield "headers set", ", ".join(changed.headers_set) or "none"


def _parts(counts: dict[str, int]) -> str:
    named = ((_KINDS.get(kind, kind), number) for kind, number in counts.items())
    return ", ".join(f"{number} {kind}" if number > 1 else kind for kind, number in named) or "empty"
