"""What a request says about its own folding, by header or by what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from accordion.compaction.case import Thinking
from accordion.core.conversation import Conversation, Opaque, Reasoning, Text
from accordion.core.errors import BadRequest
from accordion.core.values import dataclass

_HEADER, _PINS, _PROJECT = b"x-accordion-compact", b"x-accordion-pin", b"x-accordion-project"
_OURS = frozenset({_HEADER, _PINS, _PROJECT})
_WORDS = ("auto", "now", "off", "observe")
_CALL_ID = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}")
_MOST_PINS = 64
_LONGEST_PROJECT = 200
# Models that bind each thinking block to the exact prefix before it, and those that come after them.
_BOUND = re.compile(
    r"(?:fable|mythos)-5[.-][1-9]|(?:opus|sonnet|haiku)-5[.-][5-9]|(?:opus|sonnet|haiku|fable|mythos)-[6-9]"
)

# How clients begin when they ask for a summary of what is in the window, to go on from that: Claude Code and what
# follows it, Codex, OpenCode. Newer ones say so by a header too.
_ASKS = (
    "create a detailed summary of the conversation",
    "create a detailed summary of the RECENT portion of the",
    "performing a CONTEXT CHECKPOINT COMPACTION",
    "Provide a detailed prompt for continuing our conversation",
    "anchored summary from the conversation history",
    "Update the anchored summary below",
)
_BEGINNING = 2_000


@dataclass(frozen=True, slots=True)
class Controls:
    """`word` is `auto`, `now` (fold whatever the size), `off` or `observe` (only report). `pins` are call ids whose
    results stay. `compacting` says that the client asks for a compaction of its own. `project` is the one whose
    memories are meant, empty for those of none; None where the request says nothing of it."""

    word: str = "auto"
    pins: frozenset[str] = frozenset()
    compacting: bool = False
    project: str | None = None


_NONE = Controls()


def read_controls(fields: Mapping[bytes, bytes], conversation: Conversation, *, compacting: bool) -> Controls:
    """Reads `x-accordion-compact`, `x-accordion-pin` (call ids with commas between) and `x-accordion-project`. Raises
    BadRequest."""
    compacting = compacting or asks_for_compaction(conversation)
    if _OURS.isdisjoint(fields):
        return Controls(compacting=True) if compacting else _NONE
    said, pins, project = fields.get(_HEADER), fields.get(_PINS), fields.get(_PROJECT)
    word = said.decode("latin-1").strip().lower() if said is not None else "auto"
    if word not in _WORDS:
        raise BadRequest(f"x-accordion-compact must be one of {', '.join(_WORDS)}.", param="x-accordion-compact")
    ids = [entry.strip() for entry in pins.decode("latin-1").split(",")] if pins is not None else []
    ids = [entry for entry in ids if entry]
    if len(ids) > _MOST_PINS or not all(map(_CALL_ID.fullmatch, ids)):
        raise BadRequest(
            f"x-accordion-pin must hold call ids, separated by commas, {_MOST_PINS} at most.", param="x-accordion-pin"
        )
    return Controls(word, frozenset(ids), compacting, None if project is None else _project(project))


def _project(said: bytes) -> str:
    """The name of a project, as memories have it. Raises BadRequest."""
    # What is no UTF-8 becomes surrogates, which are not printable.
    name = " ".join(said.decode(errors="surrogateescape").split())
    if len(name) > _LONGEST_PROJECT or not name.isprintable() or name == "*":
        raise BadRequest(
            f"x-accordion-project must name one project, in {_LONGEST_PROJECT} printable characters of UTF-8 at most.",
            param="x-accordion-project",
        )
    return name


def asks_for_compaction(conversation: Conversation) -> bool:
    """Whether the request is one for the provider's own compaction (a trigger as the last item of Responses, a
    top-level `compaction` of Messages), or for a client's, by what it says last."""
    if conversation.dialect == "messages" and conversation.envelope.get("compaction", b"null") != b"null":
        return True
    if not conversation.messages:
        return False
    last = conversation.messages[-1]
    if last.role == "user":
        for part in last.parts:
            if isinstance(part, Text):
                begins = part.text[:_BEGINNING]
                for asks in _ASKS:
                    if asks in begins:
                        return True
        return False
    return any(isinstance(part, Opaque) and part.kind == "compaction_trigger" for part in last.parts)


def thinking_of(conversation: Conversation, beta: str, model: str = "") -> Thinking:
    """How the request's thinking blocks may be handled (wire notes, "Preserved thinking"). `model` is the one that is
    really asked, where the conversation's is only a name for it."""
    if conversation.dialect != "messages":
        return "free"
    if not any(isinstance(part, Reasoning) for message in conversation.messages for part in message.parts):
        return "none"
    if not _BOUND.search(model or conversation.model):
        return "free"
    dropping = b'"drop_block"' in conversation.envelope.get("thinking", b"")
    return "droppable" if dropping and "thinking-binding-controls" in beta else "bound"
