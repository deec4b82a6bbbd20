"""A recorded conversation as what was said and what was done: the material of a session memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from accordion.core.conversation import Conversation, Message, Text, ToolCall, ToolResult
from accordion.core.values import dataclass

Who = Literal["user", "assistant", "summary"]
"""`summary` is what a client put in place of a history that it compacted itself."""

_INJECTED: Final = (
    *("system-reminder", "environment_context", "user_instructions", "environment_details", "env", "task-notification"),
    *("local-command-caveat", "local-command-stdout", "local-command-stderr"),
    *("command-name", "command-message", "command-args", "bash-input", "bash-stdout", "bash-stderr"),
    *("ide_opened_file", "ide_selection", "user-prompt-submit-hook"),
)
"""What clients put into a user's message on their own, between tags of these names."""
_CONTINUED: Final = (
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem",
)
_NOT_SAID: Final = (
    *("[Request interrupted by user", "Caveat: The messages below", "# AGENTS.md instructions for"),
    *("Base directory for this skill", "Operation stopped by hook:", "Stop hook feedback:"),
)
_POINTER: Final = re.compile(
    r"^If you need specific details from before (?:exiting plan mode|compaction) \([^\n]*read the full transcript at:"
    r"[^\n]*$",
    re.MULTILINE,
)
"""What Claude Code writes below a plan that it hands over, and below a summary of its own."""
_OURS: Final = re.compile(r"core_memory|read_artifact|compact_conversation|memory_\w+")
"""Our own tools (faces/memory_table.py)."""
_FAILED: Final = re.compile(
    r"\s*(?:<tool_use_error>|Error\b|error:|Failed\b|failed to\b|The user doesn't want to|String to replace not found|"
    r"apply_patch verification failed|Could not\b|Permission denied|Traceback \(most recent|No replacement was)"
)
_EXIT: Final = re.compile(
    r"""(?:\A\s*|\n)(?:Exit code:?|Process exited with code|exit status) [1-9]|"exit_code": ?[1-9]|<returncode>[1-9]"""
)
_RUNS: Final = frozenset({"command", "cmd", "commands", "script", "code"})
"""Names of the argument that holds a command."""
_FRAMED: Final = re.compile(r"\s*(?:<returncode>-?\d+</returncode>\s*)?<output>\n?(.*?)\n?</output>\s*\Z", re.DOTALL)
_HEADED: Final = re.compile(
    r"(?:(?:Chunk ID|Wall time|Exit code|Process exited|Original token count|Total output lines)[^\n]*\n)+Output:\n"
)
_HEAD: Final = 2_000


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call with its result (None: none is recorded). `name` is without the prefix of an MCP server."""

    at: int
    name: str
    raw: str
    fields: Mapping[str, Any]
    result: str | None
    error: bool = False

    @property
    def failed(self) -> bool:
        """Whether the result tells that nothing was done, or that a command failed."""
        if self.result is None:
            return False
        head = self.result[:_HEAD]
        # What a file says of an exit code tells nothing of the one who reads it.
        runs = bool(_RUNS & self.fields.keys()) and _EXIT.search(head) is not None
        return self.error or _FAILED.match(head) is not None or runs

    @property
    def done(self) -> bool:
        """Whether a result says that it was done."""
        return self.result is not None and not self.failed

    @property
    def output(self) -> str:
        """The result without the frame that Codex and others put around what a command said."""
        text = self.result or ""
        if text.startswith('{"output"'):
            try:
                return str(msgspec.json.decode(text, type=dict[str, Any])["output"])
            except (ValueError, RecursionError):
                return text
        if (headed := _HEADED.match(text)) is not None:
            return text[headed.end() :]
        framed = _FRAMED.match(text)
        return framed[1] if framed is not None else text

    def text(self, *names: str) -> str:
        """The first argument of these names that is a text; empty where there is none."""
        return next((value for name in names if isinstance(value := self.fields.get(name), str) and value), "")


@dataclass(frozen=True, slots=True)
class Saying:
    """What somebody wrote, without what the client added."""

    at: int
    who: Who
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """All of a conversation. `background` is the system prompt and what clients added to messages."""

    steps: tuple[Step, ...]
    sayings: tuple[Saying, ...]
    background: tuple[str, ...]

    def said(self, who: Who) -> list[Saying]:
        """What one of them said."""
        return [each for each in self.sayings if each.who == who]


def record_of(conversation: Conversation) -> Record:
    """Puts a conversation in order. Calls of our own tools are left out: what they bring is kept already."""
    background = [part.text for part in conversation.preamble if isinstance(part, Text)]
    sayings: list[Saying] = []
    for at, message in enumerate(conversation.messages):
        text = "\n".join(part.text for part in message.parts if isinstance(part, Text))
        if not text.strip():
            continue
        if message.role == "assistant":
            sayings.append(Saying(at, "assistant", text))
        elif message.role == "user":
            background.append(text)
            if own := spoken(text):
                sayings.append(Saying(at, "summary" if own.startswith(_CONTINUED) else "user", own))
        else:
            background.append(text)
    return Record(tuple(_steps(conversation.messages)), tuple(sayings), tuple(background))


def spoken(text: str) -> str:
    """What a user wrote, without the blocks that clients add; empty where nothing is left."""
    text = _POINTER.sub("", unadded(text)).strip()
    return "" if text.startswith(_NOT_SAID) else text


def unadded(text: str) -> str:
    """A text without the blocks that clients add to it."""
    for tag in _INJECTED:
        text = _without(text, f"<{tag}>", f"</{tag}>")
    return text


def _without(text: str, start: str, end: str) -> str:
    if start not in text:
        return text
    out, at = [], 0
    while (opened := text.find(start, at)) >= 0 and (closed := text.find(end, opened)) >= 0:
        out.append(text[at:opened])
        at = closed + len(end)
    return "".join([*out, text[at:]])


def _steps(messages: Sequence[Message]) -> Iterator[Step]:
    """Pairs calls with results: a result belongs to the nearest earlier call of its id that has none."""
    open_calls: dict[str, int] = {}
    made: list[tuple[int, ToolCall]] = []
    results: dict[int, ToolResult] = {}
    for at, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall):
                open_calls[part.call_id] = len(made)
                made.append((at, part))
            elif isinstance(part, ToolResult) and (place := open_calls.pop(part.call_id, None)) is not None:
                results[place] = part
    for place, (at, call) in enumerate(made):
        name = call.name.rsplit("__", 1)[-1] if call.name.startswith("mcp__") else call.name
        if _OURS.fullmatch(name) is not None:
            continue
        result = results.get(place)
        text = None if result is None else "\n".join(p.text for p in result.parts if isinstance(p, Text))
        yield Step(at, name, call.arguments, _fields(call.arguments), text, result is not None and result.error)


def _fields(arguments: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
