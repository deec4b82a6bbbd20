"""The interface of strategies: the view that a strategy gets, the steps that it proposes, and shared helpers.

`Strategy` is the base class of Accordion's strategies and of those of other packages (docs/write-a-strategy.md). Its
traits are all that the planner and its callers know of a strategy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from accordion.archive.references import artifact_id
from accordion.compaction.request import ThinkingMode
from accordion.model.boundaries import PartPosition
from accordion.model.budget import CompactionForm, CompactionKind
from accordion.model.conversation import Media, Message, Part, Text, ToolCall, ToolResult
from accordion.model.delegation import DelegationNode
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.plan import PlanStep, Slot
from accordion.model.tenant import NO_TENANT, TenantScope

BUDGETS = ("tokens", "images", "bytes")
Budget = Literal["tokens", "images", "bytes"]
"""The limit that a strategy serves: of tokens, or the provider's limit of images or of the body's bytes."""

HANDOFF_TOOLS = ("transfer_to_*",)
"""Tools whose results only report a hand-off to another agent."""

NO_ARGUMENTS = "{}"
"""The only text that may take the place of a call's arguments."""

REMOVED_PART = Text("")
"""Takes the place of a dropped part, so that the other parts keep their indexes."""

DigestFunction = Callable[[str, int], str]
"""Digests a text in at most a number of characters; returns an empty text if there is nothing worth saying."""


def no_digest(_text: str, _max_characters: int) -> str:
    """Returns no digest."""
    return ""


WritableFunction = Callable[[Message, int], bool]
"""Whether a text may replace a part of a message."""


def always_writable(_message: Message, _part: int) -> bool:
    """Allows a text in place of every part."""
    return True


class StrategyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of strategies' options; an unknown key is an error."""

    def find_useless_options(self) -> Iterator[tuple[str, str]]:
        """Yields (key, sentence) for options that have no effect beside the others; the user is told of them."""
        return iter(())


class StrategyView(StructWithHiddenFields, frozen=True):
    """A history as the earlier strategies left it: the list that would be forwarded. Slots and parts keep their
    indexes: a removed slot is marked in `removed`, a removed part is an empty text.

    `free[i]` is True if slot i may be changed, `removable[i]` if it may leave the list: it is free, and its group has
    no pinned result and no open call. `reachable[i]`: slot i may be changed as a last resort, even if it is not free.
    `groups` are ranges (first, last; inclusive) of slots that leave together or not at all; they cover the list in
    order. `tokens` counts everything that would be sent; `overhead` is the part of the system prompt, the tools and the
    tokens that begin the response. `target` is the goal of the compaction, `limit` the most that the request may count,
    in tokens. `newest_batch` is the first slot of the newest tool batch. Reasoning from slot `open_turn` on stays,
    because its tool turn is still open. `calls` maps each result to its call, as (slot, part). `max_images` and
    `max_body_size` (bytes of the request) are the provider's limits; 0 means none.
    """

    kind: CompactionKind
    slots: tuple[Slot, ...]
    free: tuple[bool, ...]
    removable: tuple[bool, ...]
    groups: tuple[tuple[int, int], ...]
    tokens: int
    overhead: int
    target: int
    task: int
    """The slot of the task (the last message with user text and no tool result); -1 if there is none."""
    pinned: frozenset[str] = frozenset()
    """The call ids of results that no strategy may touch."""
    removed: tuple[bool, ...] = ()
    reachable: tuple[bool, ...] = ()
    limit: int = 0
    newest_batch: int = 0
    open_turn: int = 0
    opening_request: int = -1
    """The slot of the user's first message."""
    form: CompactionForm = "free"
    """What the compaction may do. `whole`: only the removable groups may leave, which are joined up to safe cuts."""
    thinking: ThinkingMode = "none"
    calls: Mapping[PartPosition, PartPosition] = msgspec.field(default_factory=dict)
    open_calls: frozenset[PartPosition] = frozenset()
    tenant: TenantScope = NO_TENANT
    make_digest: DigestFunction = no_digest
    count_message: Callable[[Message], int] = lambda _message: 0
    """Counts a message without correction; `scale` is the correction."""
    count_instruction_tokens: Callable[[Message], int] = lambda _message: 0
    """Estimates the tokens of the standing instructions in a message."""
    scale: float = 1.0
    count_part_tokens: Callable[[int], Sequence[int]] = lambda _slot: ()
    """Returns the current tokens of each part of a slot."""
    images: int = 0
    max_images: int = 0
    body_size: int = 0
    max_body_size: int = 0
    is_writable: WritableFunction = always_writable
    is_tool_new: bool = False
    """Whether our tool is offered from this compaction on. Then the prefix changes for everything bound to it."""
    insertion_tokens: tuple[int, ...] = ()
    """Tokens of read-backs and recalls in each slot's count; dropped if this slot or a later one is changed."""
    delegations_by_call: Mapping[str, DelegationNode] = msgspec.field(default_factory=dict)
    """The delegations that calls started, by call id."""
    orphan_reasoning: tuple[tuple[int, int], ...] = ()
    """Slots of reasoning that led only to calls of our tool, each with the slot that these calls belong to."""

    @property
    def live_slots(self) -> list[int]:
        """The remaining slots without system and developer messages."""
        return [
            index
            for index, slot in enumerate(self.slots)
            if not self.removed[index] and slot.message.role not in ("system", "developer")
        ]

    def is_exceeded(self, budget: Budget) -> bool:
        """Whether the history is over the limit of images or bytes, or over the target of tokens."""
        if budget == "images":
            return 0 < self.max_images < self.images
        return 0 < self.max_body_size < self.body_size if budget == "bytes" else self.tokens > self.target

    def removable_groups(self) -> list[tuple[int, int]]:
        """Returns the remaining groups that may be removed, in order."""
        return [
            group for group in self.groups if self.removable[group[0]] and not all(self.removed[group_slice(group)])
        ]

    def count_group_tokens(self, group: tuple[int, int]) -> int:
        """Counts the tokens of a group."""
        return sum(slot.tokens for slot in self.slots[group_slice(group)])

    def list_results(self) -> Iterator[tuple[int, int, ToolResult]]:
        """Yields (slot, part, result) for the tool results that a step may change, in order."""
        return self.list_results_in((0, len(self.slots) - 1))

    def list_results_in(self, group: tuple[int, int]) -> Iterator[tuple[int, int, ToolResult]]:
        """Yields the same for one group. Results of a provider's own tools are part of the reply and do not count."""
        for index in range(group[0], group[1] + 1):
            if self.free[index] and not self.removed[index] and self.slots[index].message.role != "assistant":
                for at, part in enumerate(self.slots[index].message.parts):
                    if isinstance(part, ToolResult) and part.call_id not in self.pinned:
                        yield index, at, part

    def is_replaceable(self, slot: int, part: int) -> bool:
        """Whether a part is of a kind that a text may replace."""
        message = self.slots[slot].message
        content = message.parts[part]
        if isinstance(content, ToolResult):
            is_pinned = content.call_id in self.pinned
            return message.role != "assistant" and not is_pinned and self.is_writable(message, part)
        return isinstance(content, Text | Media)

    def artifact_id_of(self, slot: int, part: int) -> str:
        """Returns the id under which the archive has a part after a step removes it; a replacement may name it."""
        return artifact_id(self.tenant, self.slots[slot].message.key, part)

    def find_call(self, slot: int, part: int) -> ToolCall | None:
        """Returns the call that a result answers."""
        position = self.calls.get((slot, part))
        call = self.slots[position[0]].message.parts[position[1]] if position is not None else None
        return call if isinstance(call, ToolCall) else None


class Proposal(msgspec.Struct, frozen=True):
    """The steps of one strategy, and the tokens of the list before and after them."""

    strategy: str
    steps: tuple[PlanStep, ...]
    before: int
    after: int


class Plan(msgspec.Struct, frozen=True):
    """All steps of one compaction, in the order in which the strategies proposed them."""

    view: StrategyView
    proposals: tuple[Proposal, ...]

    @property
    def after(self) -> int:
        """The tokens of the list after all steps; a summary counts with its budget."""
        return self.proposals[-1].after if self.proposals else self.view.tokens

    @property
    def steps(self) -> tuple[PlanStep, ...]:
        """All steps in order. Of two steps for the same part the later one takes effect."""
        return tuple(step for proposal in self.proposals for step in proposal.steps)


class DeferredReplace(msgspec.Struct, frozen=True):
    """A Replace whose text is written only if the part is still in the finished plan. `tokens` estimates the text's
    count, rather too high."""

    slot: int
    part: int
    tokens: int
    render_text: Callable[[], str]


ProposedStep = PlanStep | DeferredReplace
"""What a strategy proposes."""


class Strategy(ABC):
    """One way to shorten a history. Pure: the same view gives the same steps.

    A subclass has a name, the type of its options, the traits that differ from the defaults, and `propose`. It is built
    with its options; a subclass without options needs no `__init__`.
    """

    name: ClassVar[str] = ""
    """The name in `compaction.pipeline`, in the log and in the records of compactions."""
    options_type: ClassVar[type[StrategyOptions]] = StrategyOptions

    budget: ClassVar[Budget] = "tokens"
    """A strategy for another budget than tokens runs after those for tokens, and if its limit is exceeded."""
    ignores_target: ClassVar[bool] = False
    """Whether all of its steps are applied, also if the target is met."""
    handles_delegations: ClassVar[bool] = False
    """Whether it replaces the results of sub-agents. If no strategy does, they count as results like any other."""
    is_restorable: bool = False
    """Whether it leaves a reference in place of everything that it removes, and removes nothing but tool results. A
    plan whose summary covers most of these results is made once more without the strategy."""
    summary_model: str | None = None
    """The model that writes the texts of its `Summarize` steps without a note; empty: the settings for summaries
    decide. None: it proposes no such steps."""
    skipped_tools: Sequence[str] | None = None
    """Tools (names, or patterns with *) whose results are no artifacts of their own; None: hand-offs only."""

    def __init__(self, options: StrategyOptions) -> None:  # noqa: B027
        """Builds the strategy with its options, which are of `options_type`."""

    @abstractmethod
    def propose(self, view: StrategyView) -> Iterable[ProposedStep]:
        """Proposes steps, those with the least loss first; the planner stops when the target is met.

        The planner leaves out steps that are not legal. A strategy that fails is left out of the plan.
        """


def estimate_tokens(text: str) -> int:
    """Estimates the tokens of a text at three bytes each, rather too many."""
    return len(text.encode()) // 3 + 4


def text_of(part: Part) -> str:
    """Returns the text of a result or of a text part; empty for others."""
    if isinstance(part, ToolResult):
        return part.text
    return part.text if isinstance(part, Text) else ""


def media_parts(part: Part) -> tuple[Media, ...]:
    """Returns the media of a result, or a media part itself."""
    if isinstance(part, ToolResult):
        return tuple(inner for inner in part.parts if isinstance(inner, Media))
    return (part,) if isinstance(part, Media) else ()


def count_images(part: Part) -> int:
    """Counts the images in a part."""
    return sum(media.kind == "image" for media in media_parts(part))


def group_slice(group: tuple[int, int]) -> slice:
    """Returns a group as a slice of slots."""
    return slice(group[0], group[1] + 1)
