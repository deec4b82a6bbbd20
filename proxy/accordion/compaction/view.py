"""Builds the view that strategies plan on: the history, and which parts of it a compaction may change.

Protected: standing instructions (see `_find_standing_instructions`; other system and developer messages leave with
their round); content that holds for the rest of the list (a provider's compaction item, tools); the user's first
message; the task, and the message that began its turn; the newest message; the newest tool batch, which the model has
not read yet; open calls; pinned results with their calls; and all messages of a sub-agent's history before its first
reply. Other content that the proxy does not understand is not changed; it leaves with its round, but not in the most
careful form. Only the last resort (planner.py) cuts the newest batch, the user's first message and the task, if a
request would exceed the hard limit. A mid-generation compaction changes only messages after the task. Messages that the
provider ignores cost no tokens, and are free only if the request has too many bytes or images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Final

import msgspec

from accordion.accounting.token_meter import RESPONSE_START
from accordion.compaction.policy import max_sendable_tokens
from accordion.compaction.request import CompactionRequest, RequestBudgets, ThinkingMode
from accordion.compaction.strategies.base import (
    DigestFunction,
    StrategyView,
    WritableFunction,
    always_writable,
    count_images,
    media_parts,
    no_digest,
    text_of,
)
from accordion.compaction.whole_groups import join_groups
from accordion.insertions.differences import count_extra_tokens, find_orphan_reasoning
from accordion.model.boundaries import (
    find_indivisible_groups,
    find_open_calls,
    find_skipped_messages,
    find_waiting_program,
    has_item_reference,
    has_lasting_part,
    has_opaque_part,
    is_instruction,
    is_known_to_provider_only,
    match_results_to_calls,
)
from accordion.model.budget import CompactionForm, CompactionKind
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import INSTRUCTION_ROLES, Message, Reasoning, Text, ToolCall, ToolResult
from accordion.model.delegation import DelegationNode
from accordion.model.plan import Slot
from accordion.model.tenant import NO_TENANT, TenantScope
from accordion.protocols.base import WireProtocol
from accordion.sessions.user_text import user_text
from accordion.summaries.sentence_forms import is_remark, split_sentences

_NO_BUDGETS = RequestBudgets()

_REQUEST_DISTANCE, _MAX_REQUEST_CHARACTERS = 2, 8_000
"""An agent may open with a text of its own. The user's actual request then follows two messages later, after an answer,
and has at most this many characters."""

_MIN_AGENT_CHARACTERS = 400
"""A user's text of fewer characters is a person's, not an agent's own."""

_TAG = re.compile(r"\s*<([A-Za-z_-]+)")
"""The tag that an instruction of a client begins with. A number in it is of one message, not of a kind."""

_MIN_ROOM_DIVISOR = 4
"""The target leaves at least the tokens between protected content and limit, divided by this number: a compaction that
can never meet its target would remove everything."""

_TAGGED_DIVISOR = 4
"""Messages that are pinned by a tag have at most the tokens of the window, divided by this number: a pasted document
may contain the tag."""


class PinRules(msgspec.Struct, frozen=True):
    """What the settings pin: calls and results of `tools` (names or patterns with *), and the user's messages that
    contain the `tag` (empty: none)."""

    tools: frozenset[str] = frozenset()
    tag: str = ""


NO_PINS: Final = PinRules()


def _find_tagged_slots(slots: Sequence[Slot], tag: str, budget: int) -> frozenset[int]:
    """Returns the slots that a user pinned by a tag, the oldest first as far as their tokens fit the budget.

    Text from tools and models pins nothing, also where a summary quotes it.
    """
    found = set[int]()
    for index, slot in enumerate(slots):
        is_users = bool(tag) and slot.message.role == "user" and not slot.is_summary
        texts = [part.text for part in slot.message.parts if isinstance(part, Text)] if is_users else []
        if slot.tokens <= budget and any(f"<{tag}>" in text and f"</{tag}>" in text for text in texts):
            found.add(index)
            budget -= slot.tokens
    return frozenset(found)


def build_view(
    history: CompactedConversation,
    kind: CompactionKind,
    *,
    tokens: int,
    overhead: int,
    target: int,
    window: int,
    count_message: Callable[[Message], int],
    pinned_call_ids: frozenset[str] = frozenset(),
    pin_rules: PinRules = NO_PINS,
    form: CompactionForm = "free",
    thinking: ThinkingMode = "none",
    must_succeed: bool = False,
    limit: int = 0,
    tenant: TenantScope = NO_TENANT,
    make_digest: DigestFunction = no_digest,
    count_instruction_tokens: Callable[[Message], int] = lambda _message: 0,
    size: int = 0,
    budgets: RequestBudgets = _NO_BUDGETS,
    is_writable: WritableFunction = always_writable,
    insertion_tokens: Mapping[int, int] | None = None,
    orphan_reasoning: tuple[tuple[int, int], ...] = (),
    is_tool_new: bool = False,
    is_subagent: bool = False,
    delegations_by_call: Mapping[str, DelegationNode] | None = None,
) -> StrategyView:
    """Builds the view of a history for a compaction of this kind.

    `tokens` counts the whole request, `overhead` its part that is not messages, both corrected or both not; the slots'
    counts are scaled to the difference. `limit` is the most the request may count (0: the window). `size` is the
    request's bytes. `insertion_tokens` and `orphan_reasoning` are as in
    insertions/differences.py. `delegations_by_call` are the delegations that calls of this history started.
    """
    slots, insertions, skipped = (
        history.slots(count_message),
        insertion_tokens or {},
        find_skipped_messages(history.conversation.messages),
    )
    if skipped:
        slots = tuple([_add_tokens(slot, -slot.tokens) if at in skipped else slot for at, slot in enumerate(slots)])
        insertions = {index: count for index, count in insertions.items() if index not in skipped}
    slots, scale = _scale_slots(slots, insertions, tokens - overhead)
    images = sum(count_images(part) for slot in slots for part in slot.message.parts)
    exceeds_other_limits = 0 < budgets.max_images < images or 0 < budgets.max_body_bytes < size
    skipped = frozenset() if exceeds_other_limits else skipped
    analysis = _HistoryAnalysis(slots, pinned_call_ids, pin_rules, window, skipped)
    leavable = analysis.leavable_slots(kind, thinking, must_succeed)
    if is_subagent:
        leavable[: analysis.first_response] = [False] * analysis.first_response
    free = [may_leave and not unclear for may_leave, unclear in zip(leavable, analysis.unclear, strict=True)]
    if form == "whole":
        leavable = free
    groups = find_indivisible_groups(analysis.messages, analysis.standing)
    whole = [False] * len(slots)
    for first, last in groups:
        is_removable = all(leavable[first : last + 1]) and analysis.fixed_slots.isdisjoint(range(first, last + 1))
        whole[first : last + 1] = [is_removable] * (last + 1 - first)
    for at in range(find_waiting_program(analysis.messages, analysis.open_calls) + 1, len(slots)):
        whole[at] = False
    if form == "whole":
        groups, joined = join_groups(slots, groups, whole, tokens - (limit or window))
        whole = list(joined)
    removable_tokens = sum(slot.tokens for slot, is_removable in zip(slots, whole, strict=True) if is_removable)
    return StrategyView(
        kind=kind,
        slots=slots,
        free=tuple(free),
        removable=tuple(whole),
        groups=groups,
        tokens=tokens,
        overhead=overhead,
        target=_attainable_target(target, tokens, tokens - removable_tokens, limit or window),
        task=analysis.task,
        pinned=analysis.pinned,
        removed=(False,) * len(slots),
        reachable=tuple(analysis.reachable),
        limit=limit or window,
        newest_batch=analysis.newest_batch,
        open_turn=analysis.open_turn,
        opening_request=analysis.opening_request,
        form=form,
        thinking=thinking,
        calls=MappingProxyType(analysis.calls),
        open_calls=analysis.open_calls,
        tenant=tenant,
        make_digest=make_digest,
        count_message=count_message,
        count_instruction_tokens=count_instruction_tokens,
        scale=scale,
        images=images,
        max_images=budgets.max_images,
        body_size=size,
        max_body_size=budgets.max_body_bytes,
        is_writable=is_writable,
        insertion_tokens=tuple([round(insertions.get(index, 0) * scale) for index in range(len(slots))])
        if insertions
        else (),
        orphan_reasoning=orphan_reasoning,
        is_tool_new=is_tool_new,
        delegations_by_call=MappingProxyType(dict(delegations_by_call or {})),
    )


def build_view_for_request(
    request: CompactionRequest,
    kind: CompactionKind,
    *,
    count_message: Callable[[Message], int],
    pin_rules: PinRules = NO_PINS,
    make_digest: DigestFunction = no_digest,
    count_instruction_tokens: Callable[[Message], int] = lambda _message: 0,
) -> StrategyView:
    """Builds the view of a compaction request. A kind other than the decision's has its own configured target."""
    utilization, decision, limits = request.utilization, request.decision, request.limits
    target = decision.target
    if kind != decision.kind:
        kind_target = limits.conversation_target if kind == "conversation" else limits.generation_target
        target = min(kind_target, max_sendable_tokens(utilization, limits, request.window))
    return build_view(
        request.history,
        kind,
        tokens=utilization.tokens + request.tool_tokens,
        overhead=utilization.preamble + utilization.tools + request.tool_tokens + RESPONSE_START,
        target=target,
        window=request.window.size,
        count_message=count_message,
        pinned_call_ids=request.pinned_call_ids,
        pin_rules=pin_rules,
        form=request.form,
        thinking=request.thinking,
        must_succeed=decision.must_succeed,
        limit=max_sendable_tokens(utilization, limits, request.window),
        tenant=request.ref.tenant,
        make_digest=make_digest,
        count_instruction_tokens=count_instruction_tokens,
        size=request.body_size,
        budgets=request.budgets,
        is_writable=partial(_is_writable, request.protocol),
        insertion_tokens=count_extra_tokens(request.history, request.history_with_insertions, count_message)
        if request.history_with_insertions is not None
        else {},
        orphan_reasoning=find_orphan_reasoning(request.history, request.history_with_insertions)
        if request.history_with_insertions is not None
        else (),
        is_tool_new=request.tool_tokens > 0,
        is_subagent=request.is_subagent,
        delegations_by_call=request.delegations_by_call,
    )


def _is_writable(protocol: WireProtocol, message: Message, part: int) -> bool:
    """Whether the protocol allows a text in place of a part.

    Only results that consist of media are in doubt (a computer tool's must be a screenshot), so only those are tried.
    """
    content = message.parts[part]
    if not isinstance(content, ToolResult) or not media_parts(content) or text_of(content):
        return True
    try:
        protocol.edit_message(message, {part: "-"})
    except ValueError:
        return False
    return True


def _states_task(message: Message) -> bool:
    """Whether a user's message is a person's own, and more than a greeting or a question."""
    text = user_text(message.text)
    lines = text.split("\n") if len(text) < _MIN_AGENT_CHARACTERS else ()
    return any(not is_remark(sentence) for line in lines for sentence in split_sentences(line))


def _attainable_target(target: int, tokens: int, staying: int, limit: int) -> int:
    """Raises a target that cannot be met: `staying` tokens cannot be removed."""
    upper = min(tokens, limit)
    return (
        max(target, staying + max(0, upper - staying) // _MIN_ROOM_DIVISOR) if staying < upper else max(target, limit)
    )


def _scale_slots(
    slots: tuple[Slot, ...], insertion_tokens: Mapping[int, int], tokens: int
) -> tuple[tuple[Slot, ...], float]:
    """Returns the slots, insertions included, scaled so that together they count `tokens`, and the factor."""
    if insertion_tokens:
        slots = tuple([_add_tokens(slot, insertion_tokens.get(index, 0)) for index, slot in enumerate(slots)])
    raw = sum(slot.tokens for slot in slots)
    if not raw or tokens <= 0 or abs(tokens - raw) <= len(slots):
        return slots, 1.0
    scale = tokens / raw
    ends = [round(end * scale) for end in accumulate((slot.tokens for slot in slots), initial=0)]
    return tuple(
        Slot(slot.message, slot.origin, ends[index + 1] - ends[index], slot.is_edited, slot.first, slot.last)
        for index, slot in enumerate(slots)
    ), scale


def _add_tokens(slot: Slot, tokens: int) -> Slot:
    return Slot(slot.message, slot.origin, slot.tokens + tokens, slot.is_edited, slot.first, slot.last)


class _HistoryAnalysis:
    """Finds the task, the opening request, calls and results, and other landmarks of a history."""

    def __init__(
        self,
        slots: Sequence[Slot],
        pinned_call_ids: frozenset[str],
        pin_rules: PinRules,
        window: int,
        skipped_messages: frozenset[int],
    ) -> None:
        self.slots, self._skipped = slots, skipped_messages
        self.messages = [slot.message for slot in slots]
        calls = [part for message in self.messages for part in message.parts if isinstance(part, ToolCall)]
        names = {call.name for call in calls}
        pinned_names = {name for name in names if any(fnmatchcase(name, pattern) for pattern in pin_rules.tools)}
        self.pinned = pinned_call_ids | {call.call_id for call in calls if call.name in pinned_names}
        self.calls, self.open_calls = match_results_to_calls(self.messages), find_open_calls(self.messages)
        self.pinned |= self._find_other_ids(self.pinned)
        self._tagged = _find_tagged_slots(slots, pin_rules.tag, window // _TAGGED_DIVISOR)
        self.fixed_slots = {
            *(index for index, _ in self.open_calls),
            *(index for index, message in enumerate(self.messages) if self._has_pin(message)),
            *self._tagged,
        }
        """Slots with an open call, a pinned result or a tag."""
        user_slots = [index for index, slot in enumerate(slots) if slot.has_user_text]
        self.task = user_slots[-1] if user_slots else -1
        self.opening_request = user_slots[0] if user_slots else -1
        self._first_task = self._find_first_task(user_slots)
        self._turn_request = self._find_turn_request(user_slots)
        self._replies = [at for at, slot in enumerate(slots) if slot.is_summary or slot.message.role == "assistant"]
        self.first_response = self._replies[0] if self._replies else len(slots)
        """The first slot of a reply. The messages before it are the task and its material."""
        self.standing = self._find_standing_instructions()
        """Instructions that stay."""
        self.newest_batch = self._find_newest_batch()
        last = next((slot for slot in reversed(slots) if slot.message.role not in INSTRUCTION_ROLES), None)
        is_turn_open = bool(self.messages) and not (last is not None and last.has_user_text)
        self.open_turn = self.task + 1 if is_turn_open else len(slots)
        self.unclear = [has_opaque_part(message) for message in self.messages]
        """Whether each slot has content that the proxy does not understand: it leaves as it is, or stays."""
        self._may_leave = [self._is_leavable(index) for index in range(len(slots))]
        self.reachable = [each and not unclear for each, unclear in zip(self._may_leave, self.unclear, strict=True)]

    def leavable_slots(self, kind: CompactionKind, thinking: ThinkingMode, must_succeed: bool) -> list[bool]:
        """Returns, for each slot, whether it may leave with its group."""
        count = len(self.messages)
        if thinking == "bound" and not must_succeed and self._has_open_thinking():
            # The thinking is bound to everything before it, and must stay while the tool turn is open.
            return [False] * count
        start = self.task + 1 if kind == "generation" else 0
        leavable = [start <= index < self.newest_batch and self._may_leave[index] for index in range(count)]
        for index in (self.opening_request, self._first_task, self._turn_request, self.task, count - 1):
            if index >= 0:
                leavable[index] = False
        for index in {index for index, _ in self.open_calls}:
            leavable[index] = False
        return leavable

    def _find_first_task(self, user_slots: Sequence[int]) -> int:
        """Returns the slot of the user's first task, by default the first message.

        Some agents open with a text of their own, and some users with a greeting or a question. Then the task is the
        second user message, if it is short and follows the first response.
        """
        if len(user_slots) < 2:
            return self.opening_request
        first, second = user_slots[:2]
        if self.slots[second].origin - self.slots[first].origin != _REQUEST_DISTANCE:
            return self.opening_request
        is_second = len(self.messages[second].text) <= _MAX_REQUEST_CHARACTERS
        return second if is_second and not _states_task(self.messages[first]) else self.opening_request

    def _find_turn_request(self, user_slots: Sequence[int]) -> int:
        """Returns the slot of the user's message that began the turn: behind it, users only add to the task while the
        agent works."""
        for slot in reversed(user_slots):
            before = slot - 1
            while before >= 0 and self.messages[before].role in INSTRUCTION_ROLES:
                before -= 1
            if before < 0 or self.slots[before].is_summary:
                return slot
            message = self.messages[before]
            if message.role == "assistant" and not any(isinstance(part, ToolCall) for part in message.parts):
                return slot
        return self.task

    def _find_standing_instructions(self) -> frozenset[int]:
        """Returns the system and developer messages, and those of unknown roles, that stay.

        They are those before the first reply and after the last one; those with more than text, such as changes of the
        tools; and of the others the newest of each kind. The tag that a text begins with tells its kind.
        """
        last_reply, newest, standing = self._replies[-1] if self._replies else -1, set[tuple[str, str]](), set[int]()
        for index in range(len(self.messages) - 1, -1, -1):
            message = self.messages[index]
            if not is_instruction(message):
                continue
            if has_opaque_part(message):
                standing.add(index)
                continue
            tag = _TAG.match(message.text)
            kind = message.role, tag[1] if tag is not None else ""
            if kind not in newest or not self.first_response < index < last_reply:
                standing.add(index)
            newest.add(kind)
        return frozenset(standing)

    def _is_leavable(self, index: int) -> bool:
        """Whether a message could leave with its group."""
        message = self.messages[index]
        if index in self.standing or index in self._skipped:
            return False
        if has_lasting_part(message) or (message.role == "other" and not message.parts):
            return False
        if index in self._tagged:
            return False
        if is_known_to_provider_only(message) and not 0 <= self.opening_request < index:
            return False
        return not message.parts or not all(
            isinstance(part, ToolCall | ToolResult) and part.call_id in self.pinned for part in message.parts
        )

    def _find_other_ids(self, call_ids: frozenset[str]) -> frozenset[str]:
        """Returns the ids of pinned calls and results on their other side, where only one side has an id."""
        pairs = (
            [
                {self.messages[index].parts[part].call_id for index, part in pair}  # type: ignore[union-attr]
                for pair in self.calls.items()
            ]
            if call_ids
            else []
        )
        return frozenset().union(*(ids for ids in pairs if not ids.isdisjoint(call_ids)))

    def _has_pin(self, message: Message) -> bool:
        return bool(self.pinned) and any(
            isinstance(part, ToolCall | ToolResult) and part.call_id in self.pinned for part in message.parts
        )

    def _find_newest_batch(self) -> int:
        """Returns the first slot of the newest tool batch, whose results no reply follows; the slot count if none."""
        count, first = len(self.messages), len(self.messages)
        for index in range(count - 1, -1, -1):
            if self.messages[index].role == "assistant" or has_item_reference(self.messages[index]):
                break
            if self.messages[index].has_tool_result:
                first = index
        return self._first_call_of(first) if first < count else count

    def _first_call_of(self, first: int) -> int:
        """Returns the slot of the first call that the results from `first` on answer."""
        calls = [call for (result, _), (call, _) in self.calls.items() if result >= first]
        return min([first, *calls])

    def _has_open_thinking(self) -> bool:
        """Whether the open tool turn contains thinking."""
        return any(isinstance(part, Reasoning) for message in self.messages[self.open_turn :] for part in message.parts)
