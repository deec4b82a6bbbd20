"""What is decided about a request, as a value made in one place: pass, prepare, or fold, and why.

Triggers are inclusive and measured on what is occupied of the window, the room for the answer included; a target is
what would be sent, in tokens.
"""

from __future__ import annotations

from typing import Literal

from accordion.core.budget import Decision, FoldKind, Limits, Utilization, Window
from accordion.core.edits import Folded
from accordion.core.plan import OURS
from accordion.core.values import dataclass, replace

Mode = Literal["auto", "observe", "off"]

WORTHWHILE = 0.10
"""A compaction that gains less than this share is not made unless it must be, and not repeated until the history has
grown by as much."""

TABLE_TOLERANCE = 1.1
"""How far above a window of the model table an estimate must be before a request is refused for it: what the table
says is not always what the provider enforces."""

_MARGIN = 2
"""Per cent of a window that stay free for what was counted wrongly, where the hard limit does not see to that."""

_ROOM = 4
"""Of what lies between the fixed overhead and the trigger, at least one part in so many is left for messages."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the previous fold of a history came to: tokens of the whole request before and after it."""

    before: int
    after: int

    @property
    def futile(self) -> bool:
        """Whether it gained too little to be worth the broken prefix."""
        return self.before - self.after < WORTHWHILE * self.before

    @property
    def again_at(self) -> int:
        """The tokens from which on another fold may be tried."""
        return int(self.before * (1 + WORTHWHILE))


@dataclass(frozen=True, slots=True)
class Options:
    """What beside figures decides.

    `mode` is the configured one, `word` the request's own (`auto`, `now`, `off`, `observe`); `off` of either wins.
    `compacting`: the request is the client's own compaction request. `kept_by_provider`: it goes on from a state that
    the provider keeps; `recorded`: whether all of that is counted; `threaded`: whether it is a thread, which can be let
    go of; `linked`: whether it is a reply, in whose place all that led to it can be put. `lost`: the provider does not
    have the client's own list there, so that nothing can go on from a thread, and what replies led to is put together.
    `attempt` is the previous fold of this history; `deferred`: one that was due at the beginning of the turn waits for
    its summary.
    """

    mode: Mode = "auto"
    word: str = "auto"
    compacting: bool = False
    recorded: bool = True
    kept_by_provider: bool = False
    threaded: bool = False
    linked: bool = False
    lost: bool = False
    attempt: Attempt | None = None
    deferred: bool = False


def decide(
    folded: Folded,
    utilization: Utilization,
    limits: Limits,
    window: Window,
    *,
    options: Options,
    bytes_over: bool = False,
    images_over: bool = False,
) -> Decision:
    """What to do with a request that would be forwarded as `folded`. Never `refuse`: that is known only after a fold.

    `bytes_over` and `images_over` tell that the other two budgets are exceeded.
    """
    tokens, fixed = utilization.tokens, utilization.preamble + utilization.tools
    kind: FoldKind = "conversation" if options.deferred else _kind(folded)
    case = _Case(folded, utilization, limits, window, options, bytes_over, images_over, tokens, fixed, kind)
    if options.threaded and options.lost:
        return Decision("resend", f"{case.share}; the provider's thread does not hold the client's own list")
    decision = _decide(case)
    if not options.recorded:
        reason = f"{decision.reason}; the history that the provider keeps is not on record and not counted"
        decision = replace(decision, reason=reason)
    if "observe" not in (options.mode, options.word):
        return decision
    if decision.action == "compact":
        return replace(decision, observed=True)
    return replace(decision, action="pass")


def refuse(utilization: Utilization, window: Window, text: int | None = None) -> bool:
    """Whether a request is known not to fit. A window that is configured or was learnt from an error counts as it
    stands, one of the model table with some tolerance, an unknown one never. Of media and of what is not understood
    the tokens are reckoned, not counted, so that they refuse nothing: the provider says whether it takes them.

    `text` is our own count of the rest before any correction. Where it is given it must be too much as well: what was
    reported for a request that was answered refuses none. Then the provider says whether it takes this one.
    """
    known = utilization.tokens - utilization.media
    if text is not None:
        known = min(known, text)
    if window.source in ("config", "learnt"):
        return known > window.usable_input
    return window.source == "table" and known > TABLE_TOLERANCE * window.usable_input


def ceiling(utilization: Utilization, limits: Limits, window: Window) -> int:
    """What may be sent at most, in tokens, once a fold must succeed: less than the hard limit (it is inclusive, as
    triggers are) without the room for the answer, and no more than the window takes as input.

    Where that room and the fixed overhead alone are over the hard limit, what the window takes as input. Where they
    leave half of what the window has for messages, or less, nearly all of it: else hardly a request would go unfolded,
    and what the provider takes would be sliced.
    """
    fixed, reserved = utilization.preamble + utilization.tools, utilization.reserved_output
    most = limits.hard - reserved - 1
    whole = min(window.usable_input, limits.window - reserved - limits.window * _MARGIN // 100)
    if fixed < most and (most - fixed) * 2 < whole - fixed:
        return whole
    return min(most, window.usable_input) if most > fixed else window.usable_input


@dataclass(frozen=True, slots=True)
class _Case:
    """What is decided about. `tokens` is all that would be sent, `fixed` what of it no fold can change, `kind` which
    fold this moment asks for."""

    folded: Folded
    used: Utilization
    limits: Limits
    window: Window
    options: Options
    bytes_over: bool
    images_over: bool
    tokens: int
    fixed: int
    kind: FoldKind

    @property
    def trigger(self) -> int:
        return self.limits.conversation if self.kind == "conversation" else self.limits.generation

    @property
    def share(self) -> str:
        return f"{self.used.ratio:.1%} of the window"

    @property
    def overflows(self) -> bool:
        """Whether it is over the hard limit, or more than the window takes as input, and a fold might help."""
        return self.tokens > ceiling(self.used, self.limits, self.window) > self.fixed


def _kind(folded: Folded) -> FoldKind:
    """A block of ours at the very end says nothing about the moment."""
    ours = folded.origins[-1:] == (OURS,)
    return "conversation" if folded.conversation.starts_turn and not ours else "generation"


def _decide(case: _Case) -> Decision:
    options = case.options
    if "off" in (options.mode, options.word):
        return Decision("pass", f"{case.share}; compaction is off")
    if options.threaded:
        return _let_go(case)
    if options.kept_by_provider:
        return _complete(case)
    if not case.folded.conversation.messages or case.tokens <= case.fixed:
        return Decision("pass", f"{case.share}; there is nothing to compact")
    if options.compacting:
        if case.tokens > case.window.usable_input:
            return _fold(case, "the client's own compaction request, which would not fit", must=True)
        return Decision("pass", f"{case.share}; the client's own compaction request is not compacted")
    if options.word == "now":
        return replace(_fold(case, "on request", must=case.overflows, deep=True), forced=True)
    return _over(case) or _beside_tokens(case) or _by_trigger(case)


def _let_go(case: _Case) -> Decision:
    """A thread is gone on from until a fold is due: what the provider keeps cannot be folded, what is sent anew can."""
    keeps = f"{case.share}; the provider keeps the thread, so it passes unchanged"
    if case.options.word != "now" and (futile := _futile(case)):
        return Decision("pass", f"{keeps}; {futile}")
    due = _due(case)
    if due.action != "compact":
        return Decision("pass", keeps)
    ends = "the proxy ends the thread, so that the client sends the whole conversation"
    return Decision("resend", f"{due.reason}: {ends}", kind=due.kind)


def _complete(case: _Case) -> Decision:
    """A reply is gone on from until a fold is due. Once the provider has another list there than the client's, what led
    to it is always put together: what was folded and read back stays in its place."""
    options, due = case.options, _due(case)
    if options.linked and options.lost and not options.compacting:
        return Decision(
            "complete", f"{case.share}; a part of the history that the provider keeps was compacted or extended"
        )
    if options.linked and due.action in ("compact", "prepare"):
        return Decision("complete", due.reason, kind=due.kind)
    return Decision("pass", f"{case.share}; the provider keeps the history, so it passes unchanged")


def _due(case: _Case) -> Decision:
    """Whether a fold would be due of what the provider keeps, were it sent."""
    if case.options.compacting:
        return Decision("pass", case.share)
    return _fold(case, "on request") if case.options.word == "now" else _over(case) or _by_trigger(case)


def _over(case: _Case) -> Decision | None:
    """Over the hard limit."""
    if not case.overflows:
        return None
    if case.kind in case.limits.never and not refuse(case.used, case.window):
        return None
    if case.used.occupied >= case.limits.hard:
        return _fold(case, f"over the hard limit of {case.limits.hard:,} tokens", must=True)
    return _fold(case, f"over the {case.window.usable_input:,} tokens that the window takes as input", must=True)


def _beside_tokens(case: _Case) -> Decision | None:
    """Over one of the two budgets beside tokens. History is touched for it, and no more than it takes."""
    if not (case.bytes_over or case.images_over):
        return None
    over = " and ".join(word for word, is_over in (("bytes", case.bytes_over), ("images", case.images_over)) if is_over)
    reason = f"{case.share}, but more {over} than the provider takes"
    by_tokens = case.kind == "conversation" and _by_trigger(case)
    target = by_tokens.target if by_tokens and by_tokens.action == "compact" else case.tokens
    return Decision("compact", reason, target=target, must_succeed=True, kind="conversation", trigger=case.trigger)


def _by_trigger(case: _Case) -> Decision:
    kind, trigger, reserved = case.kind, case.trigger, case.used.reserved_output
    occupied = case.tokens + reserved
    if kind in case.limits.never:
        return Decision("pass", f"{case.share}; the {kind} trigger is off")
    if trigger == 0:
        return _fold(case, "the trigger is 0, so every request is compacted", deep=True)
    named = f"the {kind} trigger of {trigger:,} tokens"
    if case.fixed + reserved >= trigger:
        return Decision("pass", f"{case.share}; {_needless(case)}, over {named}", kind=kind, trigger=trigger)
    if occupied >= trigger:
        if futile := _futile(case):
            return Decision("pass", f"{case.share}, over {named}; {futile}", kind=kind, trigger=trigger)
        return _fold(case, f"over {named}")
    if occupied >= trigger - case.limits.soft and not _futile(case):
        reason = f"{case.share}, near {named}: a summary is prepared"
        return Decision("prepare", reason, target=_target(case, kind), kind=kind, trigger=trigger)
    return Decision("pass", f"{case.share}, under {named}", kind=kind, trigger=trigger)


def _needless(case: _Case) -> str:
    """What is above a trigger for ever, in words."""
    alone, reserved = case.fixed + case.used.reserved_output, case.used.reserved_output
    what = "system prompt, tools and the tokens reserved for the answer" if reserved else "system prompt and tools"
    return f"compaction cannot help: {what} alone take {alone:,} tokens"


def _futile(case: _Case) -> str:
    """Why another fold is not worth it yet; empty where it is."""
    attempt = case.options.attempt
    if attempt is None or not attempt.futile or case.tokens >= attempt.again_at:
        return ""
    gained = max(0.0, 1 - attempt.after / attempt.before)
    return f"the last compaction gained only {gained:.1%}; the next is tried at {attempt.again_at:,} tokens"


def _fold(case: _Case, why: str, *, must: bool = False, deep: bool = False) -> Decision:
    """A compaction. `deep`: it is to remove something whatever the size, but no more than the one before it left."""
    target = _target(case, case.kind)
    if deep:
        half = case.fixed + (case.tokens - case.fixed) // 2
        before = case.folded.compaction
        # What an earlier compaction left is no longer than it must be: to halve it again and again would leave nothing.
        target = min(target, max(half, before.after) if before is not None else half)
    return Decision(
        "compact", f"{case.share}, {why}", target=target, must_succeed=must, kind=case.kind, trigger=case.trigger
    )


def _target(case: _Case, kind: FoldKind) -> int:
    """What is to be sent after a fold, in tokens.

    The configured target, where there is room for an answer reserved scaled to what lies below the trigger without it,
    and never so near to the fixed overhead that nothing would be left for messages.
    """
    limits, used = case.limits, case.used
    target, trigger = limits.conversation_target, limits.conversation
    if kind == "generation":
        target, trigger = limits.generation_target, limits.generation
    below = trigger - used.reserved_output
    if below > case.fixed:
        target = max(target * below // trigger, case.fixed + (below - case.fixed + _ROOM - 1) // _ROOM)
    most = ceiling(used, limits, case.window)
    if below <= case.fixed and most > case.fixed:
        target = case.fixed + (most - case.fixed) // 2
    return min(target, most) if most > 0 else target
