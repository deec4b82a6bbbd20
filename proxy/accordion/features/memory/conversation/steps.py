"""A recorded conversation as statements and steps (tool calls with results).

Session memories and memory extraction read conversations in this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from accordion.model.conversation import Conversation, Message, Text, ToolCall, ToolResult
from accordion.sessions.user_text import is_client_summary, user_text

Author = Literal["user", "assistant", "summary"]
"""`summary` is the author of a summary that a client put in place of a history that it compacted itself."""

_OWN_TOOLS: Final = re.compile(r"core_memory|read_artifact|compact_conversation|memory_\w+")
"""The proxy's own tools (features/memory/memory_operations.py)."""
_FAILED: Final = re.compile(
    r"\s*(?:<tool_use_error>|Error\b|error:|Failed\b|failed to\b|The user doesn't want to|String to replace not found|"
    r"apply_patch verification failed|Could not\b|Permission denied|Traceback \(most recent|No replacement was)"
)
_EXIT: Final = re.compile(
    r"""(?:\A\s*|\n)(?:Exit code:?|Process exited with code|exit status) [1-9]|"exit_code": ?[1-9]|<returncode>[1-9]"""
)
COMMAND_ARGUMENTS: Final = ("command", "cmd", "commands", "script", "code")
"""Names of the argument with a command."""
_FRAMED_OUTPUT: Final = re.compile(
    r"\s*(?:<returncode>-?\d+</returncode>\s*)?<output>\n?(.*?)\n?</output>\s*\Z", re.DOTALL
)
_OUTPUT_HEADING: Final = re.compile(
    r"(?:(?:Chunk ID|Wall time|Exit code|Process exited|Original token count|Total output lines)[^\n]*\n)+Output:\n"
)
_MAX_EXAMINED: Final = 2_000


class RecordedStep(msgspec.Struct, frozen=True):
    """A tool call with its result (None: not recorded). `name` has no prefix of an MCP server."""

    at: int
    name: str
    raw: str
    fields: Mapping[str, Any]
    result: str | None
    error: bool = False

    @property
    def is_failed(self) -> bool:
        """Returns whether the result reports a failure of the tool or of its command."""
        if self.result is None:
            return False
        beginning = self.result[:_MAX_EXAMINED]
        # The text of an exit code in a file that was read is no failure of the read.
        failed_command = not self.fields.keys().isdisjoint(COMMAND_ARGUMENTS) and _EXIT.search(beginning) is not None
        return self.error or _FAILED.match(beginning) is not None or failed_command

    @property
    def is_done(self) -> bool:
        """Returns whether there is a result without a failure."""
        return self.result is not None and not self.is_failed

    @property
    def output(self) -> str:
        """Returns the result without the frame that Codex and others put around a command's output."""
        text = self.result or ""
        if text.startswith('{"output"'):
            try:
                return str(msgspec.json.decode(text, type=dict[str, Any])["output"])
            except (ValueError, RecursionError):
                return text
        if (header := _OUTPUT_HEADING.match(text)) is not None:
            return text[header.end() :]
        frame = _FRAMED_OUTPUT.match(text)
        return frame[1] if frame is not None else text

    def text(self, *names: str) -> str:
        """Returns the first argument of these names that is a string; empty if there is none."""
        return next((value for name in names if isinstance(value := self.fields.get(name), str) and value), "")


class Statement(msgspec.Struct, frozen=True):
    """A message's text without the client's additions."""

    at: int
    author: Author
    text: str


class ConversationRecord(msgspec.Struct, frozen=True):
    """A whole conversation. `background` are the system prompt and the messages with the clients' additions."""

    steps: tuple[RecordedStep, ...]
    statements: tuple[Statement, ...]
    background: tuple[str, ...]

    def statements_by(self, author: Author) -> list[Statement]:
        """Returns the statements of one author."""
        return [each for each in self.statements if each.author == author]


def build_record(conversation: Conversation) -> ConversationRecord:
    """Builds the record of a conversation, without calls of the proxy's own tools: their results are stored already."""
    background = [part.text for part in conversation.preamble if isinstance(part, Text)]
    statements: list[Statement] = []
    for index, message in enumerate(conversation.messages):
        text = message.text
        if not text.strip():
            continue
        if message.role == "assistant":
            statements.append(Statement(index, "assistant", text))
        elif message.role == "user":
            background.append(text)
            if own_text := user_text(text):
                statements.append(Statement(index, "summary" if is_client_summary(own_text) else "user", own_text))
        else:
            background.append(text)
    return ConversationRecord(tuple(_pair_steps(conversation.messages)), tuple(statements), tuple(background))


def _pair_steps(messages: Sequence[Message]) -> Iterator[RecordedStep]:
    """Pairs calls with results. A result belongs to the nearest earlier call with its id and without a result."""
    open_calls: dict[str, int] = {}
    calls: list[tuple[int, ToolCall]] = []
    results: dict[int, ToolResult] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall):
                open_calls[part.call_id] = len(calls)
                calls.append((index, part))
            elif isinstance(part, ToolResult) and (position := open_calls.pop(part.call_id, None)) is not None:
                results[position] = part
    for position, (index, call) in enumerate(calls):
        name = call.name.rsplit("__", 1)[-1] if call.name.startswith("mcp__") else call.name
        if _OWN_TOOLS.fullmatch(name) is not None:
            continue
        result = results.get(position)
        text = None if result is None else result.text
        yield RecordedStep(
            index, name, call.arguments, _fields(call.arguments), text, result is not None and result.error
        )


def _fields(arguments: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
