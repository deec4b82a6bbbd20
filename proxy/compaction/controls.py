"""What a request says about its own folding, by header or by what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.compaction.case import Thinking
from proxy.core.conversation import Conversation, Opaque, Reasoning
from proxy.core.errors import BadRequest
from proxy.core.values import dataclass

_HEADER, _PINS = b"x-accordion-compact", b"x-accordion-pin"
_WORDS = ("auto", "now", "off", "observe")
_CALL_ID = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}")
_MOST_PINS = 64
# Models that bind each thinking block to the exact prefix before it, and those that come after them.
_BOUND = re.compile(
    r"(?:fable|mythos)-5[.-][1-9]|(?:opus|sonnet|haiku)-5[.-][5-9]|(?:opus|sonnet|haiku|fable|mythos)-[6-9]"
)


@dataclass(frozen=True, slots=True)
class Controls:
    """`word` is `auto`, `now` (fold whatever the size), `off` or `observe` (only report). `pins` are call ids whose
    results stay. `compacting` says that the client asks for a compaction of its own."""

    word: str = "auto"
    pins: frozenset[str] = frozenset()
    compacting: bool = False


_NONE = Controls()


def read_controls(fields: Mapping[bytes, bytes], conversation: Conversation, *, compacting: bool) -> Controls:
    """Reads `x-accordion-compact` and `x-accordion-pin` (call ids with commas between). Raises BadRequest."""
    compacting = compacting or asks_for_compaction(conversation)
    said, pins = fields.get(_HEADER), fields.get(_PINS)
    if said is None and pins is None:
        return Controls(compacting=True) if compacting else _NONE
    word = said.decode("latin-1").strip().lower() if said is not None else "auto"
    if word not in _WORDS:
        raise BadRequest(f"x-accordion-compact must be one of {', '.join(_WORDS)}.", param="x-accordion-compact")
    ids = [entry.strip() for entry in pins.decode("latin-1").split(",")] if pins is not None else []
    ids = [entry for entry in ids if entry]
    if len(ids) > _MOST_PINS or not all(map(_CALL_ID.fullmatch, ids)):
        raise BadRequest(
            f"x-accordion-pin must hold call ids with commas between, {_MOST_PINS} at most.", param="x-accordion-pin"
        )
    return Controls(word, frozenset(ids), compacting)


def asks_for_compaction(conversation: Conversation) -> bool:
    """Whether the request is one for the provider's own compaction: a trigger as the last item of Responses, a
    top-level `compaction` of Messages."""
    if conversation.dialect == "messages" and conversation.envelope.get("compaction", b"null") != b"null":
        return True
    last = conversation.messages[-1].parts if conversation.messages else ()
    return any(isinstance(part, Opaque) and part.kind == "compaction_trigger" for part in last)


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
