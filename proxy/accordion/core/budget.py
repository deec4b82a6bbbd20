"""Windows, thresholds, utilization, decisions: how full, how full is too full, and what follows."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from accordion.core.values import dataclass

WindowSource = Literal["config", "learnt", "table", "default"]


@dataclass(frozen=True, slots=True)
class Window:
    """A model's limit, in tokens.

    `size` is what utilization is measured against; `usable_input` is how much input may be sent at most,
    the room for the answer taken off where input and output share the window.
    """

    size: int
    usable_input: int
    source: WindowSource
    max_output: int = 0

    @property
    def known(self) -> bool:
        """False where nothing is known of the model and a default stands in."""
        return self.source != "default"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where folding starts and how far it goes, as shares of the window; a trigger of 1.0 disables, 0.0 means always.

    `generation` and `hard` are None where the window's size decides (see `generation_shares`). `soft` is how far below
    its trigger a summary is prepared. `reserved_output` is room kept for the answer where the request asks for none,
    in tokens.
    """

    conversation: float = 0.50
    generation: float | None = None
    hard: float | None = None
    conversation_target: float = 0.25
    generation_target: float = 0.25
    soft: float = 0.10
    reserved_output: int = 0

    def limits(self, size: int) -> Limits:
        """The same in tokens, each floored, for a window of `size` tokens."""
        return _limits(self, size)


@dataclass(frozen=True, slots=True)
class Limits:
    """Window, triggers, targets and hard limit as separate figures, in tokens. A trigger is inclusive.

    `never` names the kinds of fold that a trigger of 1.0 switches off.
    """

    window: int
    conversation: int
    generation: int
    hard: int
    conversation_target: int = 0
    generation_target: int = 0
    soft: int = 0
    never: tuple[str, ...] = ()


@lru_cache(256)
def _limits(shares: Thresholds, size: int) -> Limits:
    hard, buffer = generation_shares(size)
    hard_limit = size * hard // 100 if shares.hard is None else int(size * shares.hard)
    if shares.generation is None:
        generation = max(0, hard_limit - size * buffer // 100)
    else:
        generation = int(size * shares.generation)
    return Limits(
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
    )


def generation_shares(size: int) -> tuple[int, int]:
    """Hard limit and buffer of a window of `size` tokens, in per cent of it."""
    if size < 100_000:
        return 85, 10
    if size < 500_000:
        return 90, 7
    return 95, 4


@dataclass(frozen=True, slots=True)
class Utilization:
    """How full a window is: estimated tokens by kind, against the window.

    `carried` says that a count reported by the provider for the beginning of this very list is part of `messages`.
    `unfolded` is by how much the list is longer for what the model read back and what was recalled to it.
    """

    window: int
    preamble: int = 0
    tools: int = 0
    messages: int = 0
    media: int = 0
    reserved_output: int = 0
    window_known: bool = True
    carried: bool = False
    unfolded: int = 0

    @property
    def tokens(self) -> int:
        """Everything that would be sent; the room reserved for the answer is not part of it."""
        return self.preamble + self.tools + self.messages + self.media + self.unfolded

    @property
    def occupied(self) -> int:
        """What is taken of the window: all that would be sent, and the room reserved for the answer."""
        return self.tokens + self.reserved_output

    def corrected(self, factor: float, total: int, *, carried: bool) -> Utilization:
        """The same with the parts times `factor`, and `total` tokens in all: the messages take up the difference, and
        the other parts give way where there is none to take."""
        preamble, tools, media, unfolded = self.preamble, self.tools, self.media, self.unfolded
        if factor != 1.0:
            preamble, tools = round(preamble * factor), round(tools * factor)
            media, unfolded = round(media * factor), round(unfolded * factor)
        messages = total - preamble - tools - media - unfolded
        if messages < 0:
            # What was reported in all is surer than what any part was taken for.
            fixed = total - messages
            preamble, tools, media, unfolded = (part * total // fixed for part in (preamble, tools, media, unfolded))
            messages = total - preamble - tools - media - unfolded
        return Utilization(
            self.window, preamble, tools, messages, media, self.reserved_output, self.window_known, carried, unfolded
        )

    @property
    def ratio(self) -> float:
        """The occupied share of the window."""
        # Not by way of `occupied`: a property that asks another takes three times as long, and requests ask often.
        taken = self.preamble + self.tools + self.messages + self.media + self.unfolded + self.reserved_output
        return taken / self.window if self.window else 0.0


Action = Literal["pass", "prepare", "compact", "complete", "resend", "refuse"]
"""`prepare` passes the request as it is, and has a summary written meanwhile. `complete` puts what the
provider keeps in place of the id that it goes on from, so that all of it can be folded. `resend` lets go of the thread
that it goes on from: the client is told to send all of it."""

FoldKind = Literal["conversation", "generation"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with a request, and why, in words that a person reads.

    For a fold: which kind, the `target` in tokens, the `trigger` that was met, whether it `must_succeed` (the request
    is over the hard limit), whether it was asked for (`forced`), and whether it is only reported (`observed`).
    """

    action: Action
    reason: str
    target: int = 0
    must_succeed: bool = False
    kind: FoldKind = "conversation"
    trigger: int = 0
    forced: bool = False
    observed: bool = False
