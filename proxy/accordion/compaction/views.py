"""Which parts of a list a fold may touch.

Never free, whatever the kind: messages of system and developer, what is not understood (a provider's compaction item
among it), the opening request, the task, the newest message, the newest tool batch, which the model has not read yet,
open calls, and pinned results with their calls; of a sub-agent's list all that it was given before its first reply. A
mid-generation fold touches only what was produced since the task. What the provider does not read any more costs
nothing, and is free only where there are too many bytes or images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate

from accordion.accounting.meter import REPLY
from accordion.compaction.case import Budgets, Case, Thinking
from accordion.compaction.policy import ceiling
from accordion.compaction.sketch import images_of
from accordion.compaction.strategies.base import Digest, Draft, Writable, anything, media_of, no_digest, text_of
from accordion.compaction.woven import longer, orphans
from accordion.core.boundaries import groups, opaque, open_places, pairs, passed_over, refers, running, unheard
from accordion.core.conversation import INSTRUCTING, Message, Reasoning, Text, ToolCall, ToolResult
from accordion.core.delegation import Delegation
from accordion.core.edits import Folded
from accordion.core.plan import Kind, Slot
from accordion.dialects.base import Dialect

_ANYTHING = Budgets()

_BEHIND, _SHORT = 2, 8_000
"""How far behind the opening what is asked may stand, in messages: an answer is between them; and how long it may be,
in characters."""

_ROOM = 4
"""Of what lies between what must stay and the limit, at least one part in so many is left, even where the target is
less: a fold that can never meet its target would take everything away."""


def view_of(
    folded: Folded,
    kind: Kind,
    *,
    tokens: int,
    overhead: int,
    target: int,
    window: int,
    count: Callable[[Message], int],
    pinned: frozenset[str] = frozenset(),
    pinned_tools: frozenset[str] = frozenset(),
    thinking: Thinking = "none",
    must_succeed: bool = False,
    limit: int = 0,
    space: bytes = b"",
    digest: Digest = no_digest,
    instructions: Callable[[Message], int] = lambda _message: 0,
    size: int = 0,
    budgets: Budgets = _ANYTHING,
    writable: Writable = anything,
    woven: Mapping[int, int] | None = None,
    orphans: tuple[tuple[int, int], ...] = (),
    afresh: bool = False,
    delegated: bool = False,
    begun: Mapping[str, Delegation] | None = None,
) -> Draft:
    """The list with what a fold of this kind may touch.

    `tokens` is the whole request and `overhead` what of it is not messages, both corrected or both not; the messages
    are made to count the difference. `limit` is what the request may come to at most (0: the window). `count` counts a
    message, `size` is the request's bytes, `pinned_tools` are names or patterns with *. `writable` tells whether a text
    may stand instead of a part. `woven` and `orphans` are as in woven.py. `delegated`: a sub-agent asks; `begun` are
    the delegations that calls of the list began.
    """
    slots, beside, passed = folded.slots(count), woven or {}, passed_over(folded.conversation.messages)
    if passed:
        slots = tuple([_heavier(slot, -slot.tokens) if at in passed else slot for at, slot in enumerate(slots)])
        beside = {index: more for index, more in beside.items() if index not in passed}
    slots, scale = _scaled(slots, beside, tokens - overhead)
    images = sum(images_of(part) for slot in slots for part in slot.message.parts)
    over = 0 < budgets.images < images or 0 < budgets.body < size
    marked = _Marked(slots, pinned, pinned_tools, frozenset() if over else passed)
    free = marked.free(kind, thinking, must_succeed)
    if delegated:
        free[: marked.given] = [False] * marked.given
    held = marked.held
    ranges = groups(marked.messages)
    whole = [False] * len(slots)
    for first, last in ranges:
        leaves = all(free[first : last + 1]) and not held.intersection(range(first, last + 1))
        whole[first : last + 1] = [leaves] * (last + 1 - first)
    for at in range(running(marked.messages, marked.open) + 1, len(slots)):
        whole[at] = False
    movable = sum(slot.tokens for slot, leaves in zip(slots, whole, strict=True) if leaves)
    return Draft(
        kind=kind,
        slots=slots,
        free=tuple(free),
        whole=tuple(whole),
        groups=ranges,
        tokens=tokens,
        overhead=overhead,
        target=_attainable(target, tokens, tokens - movable, limit or window),
        task=marked.task,
        pinned=marked.pinned,
        gone=(False,) * len(slots),
        reach=tuple(marked.reach),
        limit=limit or window,
        unread=marked.unread,
        turn=marked.turn,
        opening=marked.opening,
        thinking=thinking,
        calls=marked.pairs,
        open=marked.open,
        space=space,
        digest=digest,
        count=count,
        instructions=instructions,
        scale=scale,
        images=images,
        images_at_most=budgets.images,
        size=size,
        size_at_most=budgets.body,
        writable=writable,
        woven=tuple([round(beside.get(index, 0) * scale) for index in range(len(slots))]) if beside else (),
        orphans=orphans,
        afresh=afresh,
        begun=begun or {},
    )


def view_for(
    case: Case,
    kind: Kind,
    *,
    count: Callable[[Message], int],
    pinned_tools: frozenset[str] = frozenset(),
    digest: Digest = no_digest,
    instructions: Callable[[Message], int] = lambda _message: 0,
) -> Draft:
    """The view of a request as the compactor has it. A kind that is not the decision's has the target of its own."""
    used, decision, limits = case.utilization, case.decision, case.limits
    target = decision.target
    if kind != decision.kind:
        own = limits.conversation_target if kind == "conversation" else limits.generation_target
        target = min(own, ceiling(used, limits, case.window))
    return view_of(
        case.folded,
        kind,
        tokens=used.tokens + case.brought,
        overhead=used.preamble + used.tools + case.brought + REPLY,
        target=target,
        window=case.window.size,
        count=count,
        pinned=case.pins,
        pinned_tools=pinned_tools,
        thinking=case.thinking,
        must_succeed=decision.must_succeed,
        limit=ceiling(used, limits, case.window),
        space=case.space,
        digest=digest,
        instructions=instructions,
        size=case.size,
        budgets=case.budgets,
        writable=partial(_writable, case.dialect),
        woven=longer(case.folded, case.shown, count) if case.shown is not None else {},
        orphans=orphans(case.folded, case.shown) if case.shown is not None else (),
        afresh=case.brought > 0,
        delegated=case.delegated,
        begun=case.begun,
    )


def _writable(dialect: Dialect, message: Message, part: int) -> bool:
    """Whether the dialect has a place for a text instead of a part. Only a result of media alone is in doubt (that of
    a computer tool is a screenshot and nothing else), so that no other is looked into."""
    found = message.parts[part]
    if not isinstance(found, ToolResult) or not media_of(found) or text_of(found):
        return True
    try:
        dialect.edit(message, {part: "-"})
    except ValueError:
        return False
    return True


def _attainable(target: int, tokens: int, staying: int, limit: int) -> int:
    most = min(tokens, limit)
    return max(target, staying + max(0, most - staying) // _ROOM) if staying < most else max(target, limit)


def _scaled(slots: tuple[Slot, ...], woven: Mapping[int, int], tokens: int) -> tuple[tuple[Slot, ...], float]:
    """The slots, with what is `woven` in, so that together they count `tokens`, and the factor."""
    if woven:
        slots = tuple([_heavier(slot, woven.get(index, 0)) for index, slot in enumerate(slots)])
    raw = sum(slot.tokens for slot in slots)
    if not raw or tokens <= 0 or abs(tokens - raw) <= len(slots):
        return slots, 1.0
    scale = tokens / raw
    ends = [round(end * scale) for end in accumulate((slot.tokens for slot in slots), initial=0)]
    return tuple(
        Slot(slot.message, slot.origin, ends[index + 1] - ends[index], slot.edited, slot.first, slot.last)
        for index, slot in enumerate(slots)
    ), scale


def _heavier(slot: Slot, tokens: int) -> Slot:
    return Slot(slot.message, slot.origin, slot.tokens + tokens, slot.edited, slot.first, slot.last)


class _Marked:
    """What stands where in a list."""

    def __init__(
        self, slots: Sequence[Slot], pinned: frozenset[str], pinned_tools: frozenset[str], passed: frozenset[int]
    ) -> None:
        self.slots, self.passed = slots, passed
        self.messages = [slot.message for slot in slots]
        calls = [part for message in self.messages for part in message.parts if isinstance(part, ToolCall)]
        names = {call.name for call in calls}
        kept = {name for name in names if any(fnmatchcase(name, pattern) for pattern in pinned_tools)}
        self.pinned = pinned | {call.call_id for call in calls if call.name in kept}
        self.pairs, self.open = pairs(self.messages), open_places(self.messages)
        self.held = {index for index, _ in self.open} | {
            index for index, message in enumerate(self.messages) if self._pins(message)
        }
        """Slots with an open call or something pinned."""
        said = [index for index, slot in enumerate(slots) if slot.says]
        self.task = said[-1] if said else -1
        self.opening = said[0] if said else -1
        self.request = self._request(said)
        replies = (at for at, slot in enumerate(slots) if slot.summary or slot.message.role == "assistant")
        self.given = next(replies, len(slots))
        """How many slots stand before the first reply: the task, and what it was given for it."""
        self.unread = self._first_unread()
        last = next((slot for slot in reversed(slots) if slot.message.role not in INSTRUCTING), None)
        open_turn = bool(self.messages) and not (last is not None and last.says)
        self.turn = self.task + 1 if open_turn else len(slots)
        self.reach = [self._may(index) for index in range(len(slots))]

    def free(self, kind: Kind, thinking: Thinking, must_succeed: bool) -> list[bool]:
        """Which slots may be touched at all."""
        count = len(self.messages)
        if thinking == "bound" and not must_succeed and self._thinks():
            # Its thinking is bound to all that is before it, and must stay while the tool turn is open.
            return [False] * count
        start = self.task + 1 if kind == "generation" else 0
        free = [start <= index < self.unread and self._may(index) for index in range(count)]
        for index in (self.opening, self.request, self.task, count - 1):
            if index >= 0:
                free[index] = False
        for index in {index for index, _ in self.open}:
            free[index] = False
        return free

    def _request(self, said: Sequence[int]) -> int:
        """What the user says second, where nothing but one answer stands before it and it is not long: some agents open
        with words of their own, and what is asked stands behind them."""
        if len(said) < 2 or self.slots[said[1]].origin - self.slots[said[0]].origin != _BEHIND:
            return self.opening
        size = sum(len(part.text) for part in self.messages[said[1]].parts if isinstance(part, Text))
        return said[1] if size <= _SHORT else self.opening

    def _may(self, index: int) -> bool:
        """Whether a message holds anything that could be touched."""
        message = self.messages[index]
        if message.role in INSTRUCTING or message.role == "other" or index in self.passed or opaque(message):
            return False
        if unheard(message) and not 0 <= self.opening < index:
            return False
        return not message.parts or not all(
            isinstance(part, ToolCall | ToolResult) and part.call_id in self.pinned for part in message.parts
        )

    def _pins(self, message: Message) -> bool:
        return bool(self.pinned) and any(
            isinstance(part, ToolCall | ToolResult) and part.call_id in self.pinned for part in message.parts
        )

    def _first_unread(self) -> int:
        """Where the newest tool batch begins, results that no reply came after; behind the end where there is none."""
        count, first = len(self.messages), len(self.messages)
        for index in range(count - 1, -1, -1):
            if self.messages[index].role == "assistant" or refers(self.messages[index]):
                break
            if self.messages[index].has_tool_result:
                first = index
        return self._calls_of(first) if first < count else count

    def _calls_of(self, first: int) -> int:
        """Where the calls begin that the results from `first` on answer, back to the end of what others said."""
        answered = [call for (result, _), (call, _) in self.pairs.items() if result >= first]
        return min([first, *answered])

    def _thinks(self) -> bool:
        """Whether a tool turn is open that holds thinking."""
        return any(isinstance(part, Reasoning) for message in self.messages[self.turn :] for part in message.parts)
