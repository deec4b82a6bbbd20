"""Compacts a list of messages in the caller's own process: no server, no store, no model (docs/library.md).

`compact_messages` takes the steps of a proxied request (read, replay, measure, decide, plan, summarize, apply) with the
same modules. What a proxy keeps in its store is in the result, which the caller passes to the next call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from accordion.accounting.token_meter import MessageTokenCache, TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.artifacts import artifact_text
from accordion.compaction.apply import PlanNotApplicable
from accordion.compaction.assembly import CompactionAssembler, build_assembler
from accordion.compaction.policy import PolicyOptions, PreviousCompaction, decide
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.request import CompactionRequest
from accordion.compaction.request_controls import thinking_mode
from accordion.compaction.strategies import DEFAULT_STRATEGIES, Strategy, build_strategy
from accordion.model.budget import Thresholds, Window
from accordion.model.compaction import CompactedConversation, Compaction, apply_compaction, without_compaction
from accordion.model.conversation import Conversation, Message
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopTasks
from accordion.stores.memory_store import InMemoryStore
from accordion.summaries.author import SummaryAuthor
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.prompts import load_prompts

ProtocolName = Literal["chat", "responses", "messages", "gemini", "converse"]

_TENANT = TenantScope("", b"compact_messages")
"""The tenant key: there is one tenant, and its messages stay in this process."""
_DEFAULT_THRESHOLDS = Thresholds()


class CompactedMessages(msgspec.Struct, frozen=True):
    """The result of `compact_messages`: the messages to send, and the texts of what they only refer to."""

    messages: list[Any]
    tokens: int
    """The estimated tokens of the request with these messages."""
    tokens_before: int
    """The estimated tokens with the messages as they were given, or as the previous call had compacted them."""
    artifacts: dict[str, str]
    """The removed texts by artifact id; the messages name the ids. Those of the previous result are among them."""
    is_compacted: bool
    """Whether the messages differ from those given."""
    reason: str
    """Why the messages were compacted, or were not."""
    compaction: Compaction | None = None
    """The record that the next call applies again."""


def compact_messages(
    messages: Sequence[Any],
    *,
    window: int,
    protocol: ProtocolName = "chat",
    model: str = "",
    previous: CompactedMessages | None = None,
    strategies: Sequence[Strategy] | None = None,
    thresholds: Thresholds = _DEFAULT_THRESHOLDS,
    pinned_call_ids: Collection[str] = (),
    is_forced: bool = False,
    **fields: Any,
) -> CompactedMessages:
    """Returns messages that fit a window of `window` tokens; the same messages if they are below the trigger.

    `messages` is the whole conversation in the form of the protocol: Chat Completions, Responses, Messages or Gemini.
    `fields` are the request's other fields that the model reads, such as `tools` and `system`. `model` selects the
    tokenizer. `previous` is the result of the call before on the same conversation: its compaction is applied again,
    so that the beginning stays the same. `strategies` are the pipeline, by default Accordion's. `is_forced` compacts at
    any size.

    Raises ValueError for messages that cannot be read and for an unknown protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"there is no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    services, wire_protocol = _services(), PROTOCOLS[protocol]
    try:
        body = json.dumps({**fields, "model": model, wire_protocol.messages_field: list(messages)}).encode()
    except TypeError as error:
        raise ValueError(f"the messages are no JSON: {error}") from error
    conversation = BodyReader().read(wire_protocol, body, _TENANT)
    history = services.replay(wire_protocol, conversation, previous)
    request = services.build_request(
        wire_protocol, conversation, history, window, model, thresholds, frozenset(pinned_call_ids), is_forced
    )
    artifacts = dict(previous.artifacts) if previous is not None and history.compaction is not None else {}
    tokens, reason = request.utilization.tokens, request.decision.reason
    if request.decision.action == "compact" and conversation.chain:
        pipeline = [build_strategy(name) for name in DEFAULT_STRATEGIES] if strategies is None else strategies
        try:
            history, compaction, texts = services.compact(request, pipeline)
            tokens = compaction.after
            artifacts |= texts
        except PlanNotApplicable as error:
            reason = error.message
    return CompactedMessages(
        messages=_render(wire_protocol, history) if history.compaction is not None else list(messages),
        tokens=tokens,
        tokens_before=request.utilization.tokens,
        artifacts=artifacts,
        is_compacted=history.compaction is not None,
        reason=reason,
        compaction=history.compaction,
    )


def _render(protocol: WireProtocol, history: CompactedConversation) -> list[Any]:
    body = json.loads(RequestRenderer().render_body(protocol, history))
    return list(body[protocol.messages_field])


@lru_cache(1)
def _services() -> _Services:
    return _Services()


class _Services:
    """What all calls share: the tokenizer, the writer of extracts, and their caches."""

    def __init__(self) -> None:
        self._meter = TokenMeter(TiktokenCounter())
        self._message_tokens = MessageTokenCache(self._meter)
        self._reader = WrittenMessageReader()
        self._extractor = ExtractiveWriter()
        self._author = SummaryAuthor(None, self._extractor, LoopTasks(), load_prompts())
        self._archive = Archive(InMemoryStore())

    def replay(
        self, protocol: WireProtocol, conversation: Conversation, previous: CompactedMessages | None
    ) -> CompactedConversation:
        """Applies the previous compaction if the conversation still begins with what it covers."""
        if previous is not None and previous.compaction is not None:
            try:
                return apply_compaction(conversation, previous.compaction, self._reader.reader_for(protocol, _TENANT))
            except ValueError:
                pass
        return without_compaction(conversation)

    def build_request(
        self,
        protocol: WireProtocol,
        conversation: Conversation,
        history: CompactedConversation,
        size: int,
        model: str,
        thresholds: Thresholds,
        pinned_call_ids: frozenset[str],
        is_forced: bool,
    ) -> CompactionRequest:
        """Measures a history and decides about it."""
        window, limits = Window(size, size, "config"), thresholds.limits(size)
        utilization = self._meter.measure(history.conversation, window, model)
        earlier = history.compaction
        options = PolicyOptions(
            request_mode="now" if is_forced else "auto",
            last_compaction=PreviousCompaction(earlier.before, earlier.after) if earlier is not None else None,
        )
        return CompactionRequest(
            ref=ConversationRef(_TENANT, b"", ""),
            protocol=protocol,
            uncompacted=conversation,
            history=history,
            utilization=utilization,
            window=window,
            limits=limits,
            decision=decide(history, utilization, limits, window, options=options),
            actual_model=model,
            started_at=0.0,
            thinking=thinking_mode(history.conversation, "", model),
            pinned_call_ids=pinned_call_ids,
        )

    def compact(
        self, request: CompactionRequest, pipeline: Sequence[Strategy]
    ) -> tuple[CompactedConversation, Compaction, dict[str, str]]:
        """Carries out the decision. Returns the compacted history, its record, and the texts of its artifacts.

        Raises PlanNotApplicable.
        """
        assembler = build_assembler(pipeline, self._archive, self._message_tokens, self._reader, self._extractor)
        try:
            return self._attempt(assembler, request, without_summary=False)
        except PlanNotApplicable:
            if not request.decision.must_succeed:
                raise
            return self._attempt(assembler, request, without_summary=True)

    def _attempt(
        self, assembler: CompactionAssembler, request: CompactionRequest, *, without_summary: bool
    ) -> tuple[CompactedConversation, Compaction, dict[str, str]]:
        planned = assembler.plan_compaction(request, at=0.0, without_summary=without_summary)
        task = planned.summary_task
        summary = self._author.write_extractive(task) if task is not None else None
        history, compaction, _ = assembler.finish(request, planned, summary)
        by_key: dict[bytes, Message] = {message.key: message for message in request.uncompacted.messages}
        texts = {
            artifact.id: artifact_text(artifact, [by_key[key] for key in artifact.keys])
            for artifact in planned.removed_content.artifacts
        }
        return history, compaction, texts
