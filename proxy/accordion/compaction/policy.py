"""The compaction policy: decides whether a request passes, prepares a summary, or is compacted, and gives the reason.

`decide` is pure: measured tokens, limits and options in, a `Decision` out. The first of these that applies decides: a
thread of the provider whose list differs from the client's; compaction is off or only reported; another thread; another
history that the provider keeps; there is nothing to compact; the client's own compaction request; the provider refuses
compacted lists; a compaction on request; the hard limit; a limit of bytes or images; the trigger. A session in the
hold-out is not compacted as long as its requests fit.

Triggers are inclusive and compare the occupied tokens, the reserved output included. Targets are tokens to be sent.

A compaction changes the prefix, so the provider must read the prompt again. While its prompt cache is cold, it must do
that in any case, and a compaction near the trigger is made at once. `bench/README.md` has what that saves.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from accordion.model.budget import (
    END_THREAD,
    SUMMARIZE_AHEAD,
    CompactionKind,
    Decision,
    HoldoutGroup,
    TokenLimits,
    Utilization,
    Window,
)
from accordion.model.compaction import CompactedConversation
from accordion.model.plan import WRITTEN_BY_COMPACTION

Mode = Literal["auto", "observe", "off"]

MIN_GAIN = 0.10
"""A compaction that gains less than this share is made only if it must be, and not repeated until the history has grown
by as much."""

TABLE_TOLERANCE = 1.1
"""An estimate must exceed a window of the model table by this factor before the request is refused: the provider does
not always enforce the table's figure."""

_MARGIN_PERCENT = 2
"""Per cent of a window that stay free for counting errors, if the hard limit leaves no such margin."""

_ROOM_DIVISOR = 4
"""The tokens between fixed overhead and trigger, divided by this number, are always left for messages."""


class PreviousCompaction(msgspec.Struct, frozen=True):
    """The result of the last compaction of a history: tokens of the whole request before and after it.

    If somebody undid it, both are the tokens without it.
    """

    before: int
    after: int
    is_undone: bool = False

    @property
    def is_futile(self) -> bool:
        """Whether it gained too little to be worth the broken prefix."""
        return self.before - self.after < MIN_GAIN * self.before

    @property
    def retry_at(self) -> int:
        """The number of tokens from which on another compaction may be tried."""
        return int(self.before * (1 + MIN_GAIN))


class PromptCache(msgspec.Struct, frozen=True):
    """What is known of the provider's prompt cache: whether it still has the prompt of the request before.

    `cold_since` says why it does not, such as `the model changed`. Neither is set if nothing is known.
    """

    cold_since: str = ""
    is_warm: bool = False


class PolicyOptions(msgspec.Struct, frozen=True):
    """The inputs of a decision beside token counts.

    `mode`: the configured mode. `request_mode`: the request's own (`auto`, `now`, `off`, `observe`). `off` of either
    wins. A compaction that is only reported is decided in a dry run, with the mode `auto`. `is_client_compaction`: the
    request is the client's own compaction request. `is_kept_by_provider`: the request continues a state that the
    provider keeps. `is_history_known`: all of that state is on record and counted. `is_thread`: the state is a thread,
    which the proxy can end. `is_reconstructable`: the state is a response, and the messages that led to it can be sent
    in its place. `provider_list_differs`: the provider's messages differ from the client's, so that a thread cannot be
    continued, and the history of a response is reconstructed. `last_compaction`: the last compaction of this history.
    `is_waiting_for_summary`: a compaction due at the start of the turn still waits for its summary. `group`: the
    session's group of the hold-out; empty if there is no hold-out. `is_stopped`: compaction is stopped for the model,
    because it does not pay. `prompt_cache`: the state of the provider's cache.
    """

    mode: Mode = "auto"
    request_mode: str = "auto"
    is_client_compaction: bool = False
    is_history_known: bool = True
    is_kept_by_provider: bool = False
    is_thread: bool = False
    is_reconstructable: bool = False
    provider_list_differs: bool = False
    last_compaction: PreviousCompaction | None = None
    is_waiting_for_summary: bool = False
    group: HoldoutGroup = ""
    is_stopped: bool = False
    is_compaction_refused: bool = False
    """Whether the provider refuses compacted lists of every form."""
    prompt_cache: PromptCache = PromptCache()


def decide(
    history: CompactedConversation,
    utilization: Utilization,
    limits: TokenLimits,
    window: Window,
    *,
    options: PolicyOptions,
    exceeds_bytes: bool = False,
    exceeds_images: bool = False,
) -> Decision:
    """Decides about a request that would be forwarded with `history`.

    Never returns `refuse`: only a failed compaction shows that. `exceeds_bytes` and `exceeds_images`: the request is
    over one of the two other limits.
    """
    tokens, fixed_tokens = utilization.tokens, utilization.preamble + utilization.tools
    kind: CompactionKind = "conversation" if options.is_waiting_for_summary else _kind_for(history)
    inputs = _DecisionInput(
        history, utilization, limits, window, options, exceeds_bytes, exceeds_images, tokens, fixed_tokens, kind
    )
    # Also if compaction is off: the client's next message refers to a list that the provider does not have.
    if options.is_thread and options.provider_list_differs:
        return Decision(END_THREAD, f"{inputs.share_text}; the provider's thread does not hold the client's own list")
    decision = _decide(inputs)
    if options.is_history_known:
        return decision
    reason = f"{decision.reason}; the history that the provider keeps is not on record and not counted"
    return replace(decision, reason=reason)


def certainly_overflows(utilization: Utilization, window: Window, text_tokens: int | None = None) -> bool:
    """Whether a request certainly does not fit the window.

    A window that is configured or was learnt from an error counts exactly, one of a list or table of models with a
    tolerance, an unknown one never. Tokens of media and of unknown content are estimates, so they refuse nothing; the
    provider decides about them.

    `text_tokens` is our own count of the rest without any correction. If given, it must be too large as well: usage
    reported for a request that was answered must not refuse another one.
    """
    certain_tokens = utilization.tokens - utilization.media
    if text_tokens is not None:
        certain_tokens = min(certain_tokens, text_tokens)
    if window.source in ("config", "learnt"):
        return certain_tokens > window.usable_input
    return window.source in ("listed", "table") and certain_tokens > TABLE_TOLERANCE * window.usable_input


def max_sendable_tokens(utilization: Utilization, limits: TokenLimits, window: Window) -> int:
    """Returns the largest input, in tokens, that may be sent once a compaction must succeed.

    That is less than the hard limit (which is inclusive, like triggers) minus the reserved output, and at most the
    window's input. If reserved output and fixed overhead alone exceed the hard limit, it is the window's input. If they
    leave less than half of the window's room for messages, it is nearly all of the window: otherwise almost every
    request would be compacted, and messages sliced that the provider would accept.
    """
    fixed_tokens, reserved = utilization.preamble + utilization.tools, utilization.reserved_output
    below_hard = limits.hard - reserved - 1
    whole_window = min(window.usable_input, _window_without_margin(limits) - reserved)
    if fixed_tokens < below_hard and (below_hard - fixed_tokens) * 2 < whole_window - fixed_tokens:
        return whole_window
    return min(below_hard, window.usable_input) if below_hard > fixed_tokens else window.usable_input


def fits_beside_output(tokens: int, utilization: Utilization, limits: TokenLimits) -> bool:
    """Whether an input of `tokens` fits the window together with the reserved output."""
    return tokens + utilization.reserved_output <= _window_without_margin(limits)


def _window_without_margin(limits: TokenLimits) -> int:
    return limits.window - limits.window * _MARGIN_PERCENT // 100


class _DecisionInput(msgspec.Struct, frozen=True):
    """One request to decide about. `tokens` counts the whole request, `fixed_tokens` its part that no compaction can
    change; `kind` is the kind of compaction that fits the moment."""

    history: CompactedConversation
    utilization: Utilization
    limits: TokenLimits
    window: Window
    options: PolicyOptions
    exceeds_bytes: bool
    exceeds_images: bool
    tokens: int
    fixed_tokens: int
    kind: CompactionKind

    @property
    def active_trigger(self) -> int:
        return self.limits.conversation if self.kind == "conversation" else self.limits.generation

    @property
    def share_text(self) -> str:
        return f"{self.utilization.ratio:.1%} of the {'window' if self.window.is_known else 'assumed window'}"

    @property
    def exceeds_hard_limit(self) -> bool:
        """Whether the request is over the hard limit or the window's input, and a compaction might help."""
        return self.tokens > max_sendable_tokens(self.utilization, self.limits, self.window) > self.fixed_tokens


def _kind_for(history: CompactedConversation) -> CompactionKind:
    """Returns `conversation` at the start of a turn. A summary at the very end does not start one."""
    ends_in_summary = history.origins[-1:] == (WRITTEN_BY_COMPACTION,)
    return "conversation" if history.conversation.starts_turn and not ends_in_summary else "generation"


def _decide(inputs: _DecisionInput) -> Decision:
    options = inputs.options
    if "off" in (options.mode, options.request_mode):
        return Decision("pass", f"{inputs.share_text}; compaction is off")
    if "observe" in (options.mode, options.request_mode):
        return Decision("pass", f"{inputs.share_text}; compaction is only reported")
    if options.is_thread:
        return _decide_thread(inputs)
    if options.is_kept_by_provider:
        return _decide_kept_by_provider(inputs)
    if not inputs.history.conversation.messages or inputs.tokens <= inputs.fixed_tokens:
        return Decision("pass", f"{inputs.share_text}; there is nothing to compact")
    if options.is_client_compaction:
        if inputs.tokens > inputs.window.usable_input:
            return _build_compact_decision(
                inputs, "the client's own compaction request, which would not fit", must_succeed=True
            )
        return Decision("pass", f"{inputs.share_text}; the client's own compaction request is not compacted")
    if (refused := _decide_if_refused(inputs)) is not None:
        return refused
    if options.request_mode == "now":
        return _decide_on_request(inputs)
    decision = _decide_over_hard_limit(inputs) or _decide_other_limits(inputs) or _decide_by_trigger(inputs)
    return _apply_holdout(inputs, decision)


def _decide_if_refused(inputs: _DecisionInput) -> Decision | None:
    """Compacts nothing that fits the window if the provider refuses compacted lists, whatever asks for a compaction."""
    if not inputs.options.is_compaction_refused or certainly_overflows(inputs.utilization, inputs.window):
        return None
    reason = "the provider refuses compacted lists; the next is made for a request that does not fit its window"
    return Decision("pass", f"{inputs.share_text}; {reason}", kind=inputs.kind, trigger=inputs.active_trigger)


def _decide_on_request(inputs: _DecisionInput) -> Decision:
    """Compacts a request because the client asks for it: to the window's target, and the first time by a half at least.

    Once a compaction is in force, asking again and again would take away what each one left.
    """
    is_first = inputs.history.compaction is None
    target = _target_tokens(inputs, inputs.kind)
    if not is_first and inputs.tokens <= target:
        return Decision("pass", f"{inputs.share_text}, on request, but at most the target of {target:,} tokens is left")
    decision = _build_compact_decision(
        inputs, "on request", must_succeed=inputs.exceeds_hard_limit, remove_something=is_first
    )
    return replace(decision, is_requested=True)


def _apply_holdout(inputs: _DecisionInput, decision: Decision) -> Decision:
    """Leaves a compaction out if the session is in the hold-out or compaction is stopped for its model, and notes the
    group with a compaction that is due.

    Both groups are compacted alike if the compaction must succeed, or if one is in force already, because a client
    asked for it or the session reached the hard limit. So such a session does not enter the comparison here. While
    compaction is stopped, both groups are left alone alike, so that no session enters.
    """
    options, is_due = inputs.options, decision.action == "compact"
    group: HoldoutGroup = "" if options.is_stopped else options.group
    if decision.must_succeed or inputs.history.compaction is not None:
        return decision
    if not options.is_stopped and group != "holdout":
        return replace(decision, group=group) if is_due else decision
    cause = "compaction does not pay for this model" if options.is_stopped else "the session is in the hold-out"
    if is_due:
        reason = f"{decision.reason}; {cause}, so it is not compacted"
        return Decision("pass", reason, kind=decision.kind, trigger=decision.trigger, group=group, is_skipped=True)
    if decision.action == SUMMARIZE_AHEAD:
        near = f"near the {decision.kind} trigger of {decision.trigger:,} tokens"
        reason = f"{inputs.share_text}, {near}; {cause}, so no summary is prepared"
        return Decision("pass", reason, kind=decision.kind, trigger=decision.trigger)
    return decision


def _decide_thread(inputs: _DecisionInput) -> Decision:
    """Lets a thread continue until a compaction is due, and then ends it: only a history sent anew can be compacted."""
    unchanged = f"{inputs.share_text}; the provider keeps the thread, so it passes unchanged"
    if inputs.options.request_mode != "now" and (futile := _describe_futile(inputs)):
        return Decision("pass", f"{unchanged}; {futile}")
    due = _decide_due(inputs)
    if due.is_skipped:
        return due
    if due.action != "compact":
        return Decision("pass", unchanged)
    end_of_thread = "the proxy ends the thread, so that the client sends the whole conversation"
    return Decision(END_THREAD, f"{due.reason}: {end_of_thread}", kind=due.kind, group=due.group)


def _decide_kept_by_provider(inputs: _DecisionInput) -> Decision:
    """Lets a response be continued until a compaction is due, and then has its history reconstructed.

    Once the provider's messages differ from the client's, the history is reconstructed every time, so that compactions
    and read-backs stay in place.
    """
    options, due = inputs.options, _decide_due(inputs)
    if options.is_reconstructable and options.provider_list_differs and not options.is_client_compaction:
        return Decision(
            "reconstruct",
            f"{inputs.share_text}; a part of the history that the provider keeps was compacted or extended",
        )
    if options.is_reconstructable and due.is_skipped:
        return due
    if options.is_reconstructable and due.action in ("compact", SUMMARIZE_AHEAD):
        return Decision("reconstruct", due.reason, kind=due.kind, group=due.group)
    return Decision("pass", f"{inputs.share_text}; the provider keeps the history, so it passes unchanged")


def _decide_due(inputs: _DecisionInput) -> Decision:
    """Decides as if the history that the provider keeps were sent."""
    if inputs.options.is_client_compaction:
        return Decision("pass", inputs.share_text)
    if (refused := _decide_if_refused(inputs)) is not None:
        return refused
    if inputs.options.request_mode == "now":
        return _build_compact_decision(inputs, "on request")
    return _apply_holdout(inputs, _decide_over_hard_limit(inputs) or _decide_by_trigger(inputs))


def _decide_over_hard_limit(inputs: _DecisionInput) -> Decision | None:
    """Compacts a request over the hard limit."""
    if not inputs.exceeds_hard_limit:
        return None
    if inputs.kind in inputs.limits.never and not certainly_overflows(inputs.utilization, inputs.window):
        return None
    if inputs.utilization.occupied_tokens >= inputs.limits.hard:
        return _build_compact_decision(
            inputs, f"over the hard limit of {inputs.limits.hard:,} tokens", must_succeed=True
        )
    return _build_compact_decision(
        inputs, f"over the {inputs.window.usable_input:,} tokens that the window takes as input", must_succeed=True
    )


def _decide_other_limits(inputs: _DecisionInput) -> Decision | None:
    """Compacts a request over the byte or the image limit, by no more than needed."""
    if not (inputs.exceeds_bytes or inputs.exceeds_images):
        return None
    over = " and ".join(
        word for word, is_over in (("bytes", inputs.exceeds_bytes), ("images", inputs.exceeds_images)) if is_over
    )
    reason = f"{inputs.share_text}, but more {over} than the provider takes"
    token_decision = inputs.kind == "conversation" and _decide_by_trigger(inputs)
    target = token_decision.target if token_decision and token_decision.action == "compact" else inputs.tokens
    return Decision(
        "compact", reason, target=target, must_succeed=True, kind="conversation", trigger=inputs.active_trigger
    )


def _decide_by_trigger(inputs: _DecisionInput) -> Decision:
    kind, trigger, reserved = inputs.kind, inputs.active_trigger, inputs.utilization.reserved_output
    occupied = inputs.tokens + reserved
    if kind in inputs.limits.never:
        return Decision("pass", f"{inputs.share_text}; the {kind} trigger is off")
    if trigger == 0:
        return _build_compact_decision(inputs, "the trigger is 0, so every request is compacted", remove_something=True)
    named = f"the {kind} trigger of {trigger:,} tokens"
    if inputs.fixed_tokens + reserved >= trigger:
        return Decision(
            "pass", f"{inputs.share_text}; {_describe_useless(inputs)}, over {named}", kind=kind, trigger=trigger
        )
    futile = _describe_futile(inputs)
    if occupied >= trigger:
        if futile:
            return Decision("pass", f"{inputs.share_text}, over {named}; {futile}", kind=kind, trigger=trigger)
        if occupied < (latest := _latest_compaction(inputs)):
            waits = f"waits for a cold prompt cache up to {latest:,} tokens"
            return _build_ahead_decision(inputs, f"over {named}; the compaction {waits}")
        return _build_compact_decision(inputs, f"over {named}")
    if not futile and occupied >= trigger - inputs.limits.cold_cache and _is_cheap_now(inputs):
        reason = f"near {named}, and the prompt cache is cold: {inputs.options.prompt_cache.cold_since}"
        return replace(_build_compact_decision(inputs, reason), is_early=True)
    if not futile and occupied >= trigger - inputs.limits.soft:
        return _build_ahead_decision(inputs, f"near {named}: a summary is prepared")
    return Decision("pass", f"{inputs.share_text}, under {named}", kind=kind, trigger=trigger)


def _build_ahead_decision(inputs: _DecisionInput, reason: str) -> Decision:
    """Returns the decision to pass the request and to prepare the summary of a compaction that comes soon."""
    kind, trigger = inputs.kind, inputs.active_trigger
    target = _target_tokens(inputs, kind)
    return Decision(SUMMARIZE_AHEAD, f"{inputs.share_text}, {reason}", target=target, kind=kind, trigger=trigger)


def _is_cheap_now(inputs: _DecisionInput) -> bool:
    """Whether the prompt cache is cold, and a compaction would remove enough.

    The provider must read the whole prompt again in any case, so a shorter one costs less at once.
    """
    most_left = inputs.tokens * (1 - MIN_GAIN)
    return bool(inputs.options.prompt_cache.cold_since) and _target_tokens(inputs, inputs.kind) <= most_left


def _latest_compaction(inputs: _DecisionInput) -> int:
    """Returns the occupied tokens up to which a compaction waits for a cold prompt cache; 0 if it does not wait.

    It does not wait nearer to the hard limit than summaries take to be prepared, nor in a window that is not known.
    """
    limits = inputs.limits
    if not (inputs.options.prompt_cache.is_warm and limits.warm_cache and inputs.window.is_known):
        return 0
    return min(inputs.active_trigger + limits.warm_cache, limits.hard - limits.soft)


def _describe_useless(inputs: _DecisionInput) -> str:
    """Explains that the fixed overhead alone exceeds the trigger."""
    reserved = inputs.utilization.reserved_output
    overhead = "system prompt, tools and the tokens reserved for the answer" if reserved else "system prompt and tools"
    return f"compaction cannot help: {overhead} alone take {inputs.fixed_tokens + reserved:,} tokens"


def _describe_futile(inputs: _DecisionInput) -> str:
    """Returns why another compaction is too early, or an empty text."""
    last = inputs.options.last_compaction
    if last is None or not last.is_futile or inputs.tokens >= last.retry_at:
        return ""
    if last.is_undone:
        return f"a compaction was undone; the next is tried at {last.retry_at:,} tokens"
    gain = max(0.0, 1 - last.after / last.before)
    return f"the last compaction gained only {gain:.1%}; the next is tried at {last.retry_at:,} tokens"


def _build_compact_decision(
    inputs: _DecisionInput, reason: str, *, must_succeed: bool = False, remove_something: bool = False
) -> Decision:
    """Returns the decision to compact. `remove_something`: lower the target below the current size, but not below what
    the compaction before left."""
    target = _target_tokens(inputs, inputs.kind)
    if remove_something:
        half = inputs.fixed_tokens + (inputs.tokens - inputs.fixed_tokens) // 2
        earlier = inputs.history.compaction
        # An earlier compaction left no more than necessary: halving that again and again would leave nothing.
        target = min(target, max(half, earlier.after) if earlier is not None else half)
    return Decision(
        "compact",
        f"{inputs.share_text}, {reason}",
        target=target,
        must_succeed=must_succeed,
        kind=inputs.kind,
        trigger=inputs.active_trigger,
    )


def _target_tokens(inputs: _DecisionInput, kind: CompactionKind) -> int:
    """Returns the tokens to be sent after a compaction.

    That is the configured target. If output is reserved, it is scaled to the tokens below the trigger without the
    reserved ones, and always leaves room for messages above the fixed overhead.
    """
    limits, utilization = inputs.limits, inputs.utilization
    target, trigger = limits.conversation_target, limits.conversation
    if kind == "generation":
        target, trigger = limits.generation_target, limits.generation
    below = trigger - utilization.reserved_output
    if below > inputs.fixed_tokens:
        target = max(
            target * below // trigger,
            inputs.fixed_tokens + (below - inputs.fixed_tokens + _ROOM_DIVISOR - 1) // _ROOM_DIVISOR,
        )
    sendable = max_sendable_tokens(utilization, limits, inputs.window)
    if below <= inputs.fixed_tokens and sendable > inputs.fixed_tokens:
        # Fixed overhead and reserved output alone reach the trigger: half of the room for messages is left to them.
        target = inputs.fixed_tokens + (sendable - inputs.fixed_tokens) // 2
    return min(target, sendable) if sendable > 0 else target
