"""The token budget of a request: the model's window, thresholds, utilization, and the decision that follows."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec

WindowSource = Literal["config", "learnt", "listed", "table", "family", "default"]


CompactionForm = Literal["free", "whole"]
"""What a compaction may do: `free`: all steps; `whole`: only put one summary in place of whole groups of messages, cut
where the client's own list has such neighbours (compaction/whole_groups.py)."""
RefusedForm = Literal["", "free", "whole"]
"""The most careful form of compacted lists that a provider refused, while it took the client's own; empty: none."""


def most_careful(*forms: RefusedForm) -> RefusedForm:
    """Returns the most careful of these forms."""
    return next((form for form in ("whole", "free") if form in forms), "")


class Window(msgspec.Struct, frozen=True):
    """A model's context window, in tokens.

    Utilization is a share of `size`. `usable_input` is the largest input that may be sent: less than `size` if input
    and output share the window. `counts_output` says that the provider refuses a request whose input and requested
    output together exceed the window, as one of its errors has shown; `refused_form` is what it refused of compacted
    lists, and `refused_fields` which fields of requests for summaries.
    """

    size: int
    usable_input: int
    source: WindowSource
    max_output: int = 0
    counts_output: bool = False
    refused_form: RefusedForm = ""
    refused_fields: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the window comes from a source about this very model."""
        return self.source not in ("family", "default")


class Thresholds(msgspec.Struct, frozen=True):
    """Triggers and targets of compaction, as shares of the window. A trigger of 1.0 means never, 0.0 always.

    `generation` and `hard` are None if the window's size decides (see `generation_shares`). A summary is prepared in
    the background from `soft` below the trigger on, and responses warn from `warning` below it on. If the provider's
    prompt cache is cold, a compaction is made from `cold_cache` below the trigger on; if it is warm, a compaction waits
    up to `warm_cache` above it. `reserved_output` is the space kept for the response, in tokens, if the request names
    no maximum; if it names one, the space is at most `output_factor` times the longest response so far (0: no less than
    the maximum).
    """

    conversation: float = 0.50
    generation: float | None = None
    hard: float | None = None
    conversation_target: float = 0.25
    generation_target: float = 0.25
    soft: float = 0.10
    warning: float = 0.05
    cold_cache: float = 0.10
    warm_cache: float = 0.0
    reserved_output: int = 0
    output_factor: float = 2.0

    def limits(self, size: int) -> TokenLimits:
        """Returns the thresholds in tokens, each rounded down, for a window of `size` tokens."""
        return _limits(self, size)


class TokenLimits(msgspec.Struct, frozen=True):
    """The thresholds for one window size, in tokens. A trigger is inclusive.

    `never` has the kinds of compaction that a trigger of 1.0 switches off.
    """

    window: int
    conversation: int
    generation: int
    hard: int
    conversation_target: int = 0
    generation_target: int = 0
    soft: int = 0
    never: tuple[str, ...] = ()
    warning: int = 0
    cold_cache: int = 0
    warm_cache: int = 0

    def tokens_left(self, occupied: int) -> int | None:
        """Returns the tokens left before a compaction at the start of a turn, 0 if the next turn has one.

        Returns None if that is further away than `warning`, or never happens.
        """
        trigger = min(self.conversation, self.hard)
        if not self.warning or "conversation" in self.never or occupied < trigger - self.warning:
            return None
        return max(0, trigger - occupied)


@lru_cache(256)
def _limits(shares: Thresholds, size: int) -> TokenLimits:
    hard, buffer = generation_shares(size)
    hard_limit = size * hard // 100 if shares.hard is None else int(size * shares.hard)
    if shares.generation is None:
        generation = max(0, hard_limit - size * buffer // 100)
    else:
        generation = int(size * shares.generation)
    return TokenLimits(
        window=size,
        conversation=int(size * shares.conversation),
        generation=generation,
        hard=hard_limit,
        conversation_target=int(size * shares.conversation_target),
        generation_target=int(size * shares.generation_target),
        soft=int(size * shares.soft),
        never=tuple(
            kind
            for kind, share in (("conversation", shares.conversation), ("generation", shares.generation))
            if share is not None and share >= 1.0
        ),
        warning=int(size * shares.warning),
        cold_cache=int(size * shares.cold_cache),
        warm_cache=int(size * shares.warm_cache),
    )


def generation_shares(size: int) -> tuple[int, int]:
    """Returns the hard limit and the buffer below it for a window of `size` tokens, in per cent of the window."""
    if size < 100_000:
        return 85, 10
    if size < 500_000:
        return 90, 7
    return 95, 4


class Utilization(msgspec.Struct, frozen=True):
    """Estimated tokens of a request by kind, against the window.

    `includes_report`: `messages` includes a count that the provider reported for the beginning of this very list.
    `insertions` are tool rounds, recalled excerpts and memories.
    """

    window: int
    preamble: int = 0
    tools: int = 0
    messages: int = 0
    media: int = 0
    reserved_output: int = 0
    is_window_known: bool = True
    includes_report: bool = False
    insertions: int = 0

    @property
    def tokens(self) -> int:
        """The tokens that would be sent; the space reserved for the response is not included."""
        return self.preamble + self.tools + self.messages + self.media + self.insertions

    @property
    def occupied_tokens(self) -> int:
        """The tokens that would be sent, plus the space reserved for the response."""
        return self.tokens + self.reserved_output

    def with_total(self, total: int, *, includes_report: bool, factor: float = 1.0) -> Utilization:
        """Returns the utilization with `total` tokens in all, and every kind multiplied by `factor`.

        The messages take up the difference; if they cannot, the other kinds shrink.
        """
        preamble, tools, media, insertions = self.preamble, self.tools, self.media, self.insertions
        if factor != 1.0:
            preamble, tools = round(preamble * factor), round(tools * factor)
            media, insertions = round(media * factor), round(insertions * factor)
        messages = total - preamble - tools - media - insertions
        if messages < 0:
            # The reported total is more certain than the estimate of any kind.
            fixed = total - messages
            preamble, tools, media, insertions = (
                part * total // fixed for part in (preamble, tools, media, insertions)
            )
            messages = total - preamble - tools - media - insertions
        return Utilization(
            self.window,
            preamble,
            tools,
            messages,
            media,
            self.reserved_output,
            self.is_window_known,
            includes_report,
            insertions,
        )

    @property
    def ratio(self) -> float:
        """The occupied share of the window."""
        # Repeats `occupied_tokens`: a property that reads others takes three times as long, and this one is read often.
        occupied = self.preamble + self.tools + self.messages + self.media + self.insertions + self.reserved_output
        return occupied / self.window if self.window else 0.0


Action = Literal["pass", "prepare", "compact", "reconstruct", "resend", "refuse"]
"""The action for a request. `reconstruct` replaces the id of provider-kept state by the messages that it stands for, so
that they can be compacted."""

SUMMARIZE_AHEAD: Final = "prepare"
"""The action that passes a request unchanged and writes a summary in the background."""

END_THREAD: Final = "resend"
"""The action that ends the provider's thread: the client is asked to send the whole conversation."""

CompactionKind = Literal["conversation", "generation"]
"""`conversation`: a compaction of the whole history. `generation`: one of what was produced since the task."""

HoldoutGroup = Literal["", "compaction", "holdout"]
"""The groups of a hold-out: sessions that are compacted, and sessions that are not. Empty: none."""


class Decision(msgspec.Struct, frozen=True):
    """The action for a request, and the reason as a text for people.

    For a compaction: its kind, the `target` in tokens, and the `trigger` that was reached. `must_succeed`: the request
    cannot be sent as it is, because it is over the hard limit or over a limit of bytes or images, or because the
    provider refused it as too long. `is_requested`: a header, a person, the client's edits or such a refusal ask for
    the compaction, whatever the trigger. `is_early`: the trigger is not reached, and the compaction is made because the
    provider's prompt cache is cold. `is_skipped`: a compaction is due and not made, because the session is in the
    hold-out, or because compaction is stopped for its model. `group` is the session's group of the hold-out, if this
    compaction makes the groups differ: one group is compacted here, the other is not.
    """

    action: Action
    reason: str
    target: int = 0
    must_succeed: bool = False
    kind: CompactionKind = "conversation"
    trigger: int = 0
    is_requested: bool = False
    is_early: bool = False
    group: HoldoutGroup = ""
    is_skipped: bool = False
