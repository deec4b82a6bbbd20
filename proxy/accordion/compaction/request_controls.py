"""Reads the compaction controls of a request: its `x-accordion-*` headers, and how its thinking may be treated."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from accordion.compaction.request import ThinkingMode
from accordion.model.conversation import Conversation, Reasoning
from accordion.model.errors import BadRequest
from accordion.model.suggestions import describe_choices

CONTROL_HEADER = b"x-accordion-compact"
_PINS, _PROJECT, _INSTRUCTIONS = b"x-accordion-pin", b"x-accordion-project", b"x-accordion-instructions"
_CONTROL_HEADERS = frozenset({CONTROL_HEADER, _PINS, _PROJECT, _INSTRUCTIONS})
_MODES = ("auto", "now", "off", "observe")
_CALL_ID = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}")
_MOST_PINS = 64
_LONGEST_PROJECT, _LONGEST_INSTRUCTIONS = 200, 4_000
# Models that bind each thinking block to its exact prefix, and their successors.
_BOUND_THINKING_MODELS = re.compile(
    r"(?:fable|mythos)-5[.-][1-9]|(?:opus|sonnet|haiku)-5[.-][5-9]|(?:opus|sonnet|haiku|fable|mythos)-[6-9]"
)


class RequestControls(msgspec.Struct, frozen=True):
    """The controls of one request.

    `mode` is `auto`, `now` (compact whatever the size), `off` or `observe` (only report). Results of `pinned_call_ids`
    stay. `project` selects memories: empty for those without a project, None if the request does not name one.
    `instructions` are for the model that writes summaries.
    """

    mode: str = "auto"
    pinned_call_ids: frozenset[str] = frozenset()
    project: str | None = None
    instructions: str = ""


_NO_CONTROLS = RequestControls()


def read_controls(headers: Mapping[bytes, bytes]) -> RequestControls:
    """Reads `x-accordion-compact`, `x-accordion-pin` (call ids separated by commas), `x-accordion-project` and
    `x-accordion-instructions`. Raises BadRequest."""
    if _CONTROL_HEADERS.isdisjoint(headers):
        return _NO_CONTROLS
    mode_header, pins, project = headers.get(CONTROL_HEADER), headers.get(_PINS), headers.get(_PROJECT)
    mode = mode_header.decode("latin-1").strip().lower() if mode_header is not None else "auto"
    if mode not in _MODES:
        choices = describe_choices(mode, _MODES)
        message = f"x-accordion-compact must be {choices}"
        raise BadRequest(message if message.endswith("?") else f"{message}.", param="x-accordion-compact")
    ids = [entry.strip() for entry in pins.decode("latin-1").split(",")] if pins is not None else []
    ids = [entry for entry in ids if entry]
    if len(ids) > _MOST_PINS or not all(map(_CALL_ID.fullmatch, ids)):
        raise BadRequest(
            f"x-accordion-pin must hold call ids, separated by commas, {_MOST_PINS} at most.", param="x-accordion-pin"
        )
    return RequestControls(
        mode,
        frozenset(ids),
        None if project is None else _read_project(project),
        _read_instructions(headers.get(_INSTRUCTIONS, b"")),
    )


def _read_project(value: bytes) -> str:
    """Reads the name of a project. Raises BadRequest."""
    # Invalid UTF-8 becomes surrogates, which are not printable.
    name = " ".join(value.decode(errors="surrogateescape").split())
    if len(name) > _LONGEST_PROJECT or not name.isprintable() or name == "*":
        raise BadRequest(
            f"x-accordion-project must name one project, in {_LONGEST_PROJECT} printable characters of UTF-8 at most.",
            param="x-accordion-project",
        )
    return name


def _read_instructions(value: bytes) -> str:
    """Reads instructions for summaries. Raises BadRequest."""
    text = " ".join(value.decode(errors="surrogateescape").split())
    if len(text) > _LONGEST_INSTRUCTIONS or not text.isprintable():
        raise BadRequest(
            f"x-accordion-instructions must hold {_LONGEST_INSTRUCTIONS:,} printable characters of UTF-8 at most.",
            param="x-accordion-instructions",
        )
    return text


def thinking_mode(conversation: Conversation, beta: str, model: str = "") -> ThinkingMode:
    """Returns how the request's thinking blocks may be treated (wire notes, "Preserved thinking"). `model` is the
    actual model, if the conversation's is only an alias."""
    if conversation.protocol_name not in ("messages", "converse"):
        return "free"
    if not any(isinstance(part, Reasoning) for message in conversation.messages for part in message.parts):
        return "none"
    if not _BOUND_THINKING_MODELS.search(model or conversation.model):
        return "free"
    has_drop_block = b'"drop_block"' in conversation.envelope.get("thinking", b"")
    return "droppable" if has_drop_block and "thinking-binding-controls" in beta else "bound"
