"""Checks what a strategy proposes before the rules look at it: types, texts, and token counts that can be true.

A strategy may be another package's. What it returns is not trusted: a malformed step is left out, an implausible count
is replaced by an estimate, and a step that would make the history longer is left out.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from accordion.compaction.strategies.base import DeferredReplace, ProposedStep, Strategy, StrategyView, estimate_tokens
from accordion.model.conversation import Text, ToolResult
from accordion.model.plan import Drop, Replace, Summarize

_MAX_STEPS_PER_PART, _MORE_STEPS = 2, 1_000
"""The most steps of one proposal: so many for each part of the history, and so many more."""

_ESTIMATE_FACTOR = 4
"""An announced count is plausible if it is at most so many times more or less than the estimate."""

_WRITTEN_FACTOR, _MORE_WRITTEN_TOKENS = 8, 200
"""A deferred text may be estimated at so many times the announced tokens, and so many more."""


class StrategyFailed(Exception):
    """A strategy raised an error or returned something unusable. `strategy` is its name, `reason` has no content of the
    conversation."""

    def __init__(self, strategy: str, reason: str) -> None:
        super().__init__(f"{strategy}: {reason}")
        self.strategy, self.reason = strategy, reason


def propose_steps(strategy: Strategy, view: StrategyView) -> list[ProposedStep]:
    """Returns a strategy's well-formed steps. Raises StrategyFailed."""
    most = _MORE_STEPS + _MAX_STEPS_PER_PART * sum(len(slot.message.parts) for slot in view.slots)
    try:
        proposed = list(islice(strategy.propose(view), most + 1))
    except (Exception, SystemExit) as error:
        # The error's message may quote the conversation.
        raise StrategyFailed(strategy.name, type(error).__name__) from error
    if len(proposed) > most:
        raise StrategyFailed(strategy.name, f"more than {most:,} steps")
    steps = (_plausible_step(strategy, view, step) for step in proposed)
    return [step for step in steps if step is not None]


def write_deferred_text(strategy: str, step: DeferredReplace) -> Replace:
    """Returns a deferred step with its text. Raises StrategyFailed."""
    try:
        text = step.render_text()
    except (Exception, SystemExit) as error:
        raise StrategyFailed(strategy, type(error).__name__) from error
    if not _is_text(text) or not text.strip():
        raise StrategyFailed(strategy, "a deferred step has no text")
    tokens = estimate_tokens(text)
    if tokens > _WRITTEN_FACTOR * step.tokens + _MORE_WRITTEN_TOKENS:
        raise StrategyFailed(strategy, "a deferred text is far longer than announced")
    return Replace(step.slot, step.part, text, tokens)


def _plausible_step(strategy: Strategy, view: StrategyView, step: object) -> ProposedStep | None:
    """Returns a well-formed step, with an estimated count if the announced one is implausible; else None."""
    if type(step) is Drop:
        is_valid = _is_whole_number(step.slot) and type(step.parts) is tuple and all(map(_is_whole_number, step.parts))
        return step if is_valid else None
    if type(step) is Replace:
        return _plausible_replacement(strategy, view, step)
    if type(step) is DeferredReplace:
        is_valid = _has_position(view, step) and callable(step.render_text) and _is_whole_number(step.tokens)
        return step if is_valid and step.tokens > 0 and _is_worthwhile(strategy, view, step) else None
    return _plausible_summary(strategy, step) if type(step) is Summarize else None


def _plausible_replacement(strategy: Strategy, view: StrategyView, step: Replace) -> Replace | None:
    if not (_has_position(view, step) and _is_text(step.text) and _is_whole_number(step.tokens)):
        return None
    plausible = replace(step, tokens=_plausible_tokens(step.text, step.tokens))
    has_content = bool(step.text.strip()) or _is_result(view, step)
    return plausible if has_content and _is_worthwhile(strategy, view, plausible) else None


def _plausible_summary(strategy: Strategy, step: Summarize) -> Summarize | None:
    if not all(map(_is_whole_number, (step.first, step.last, step.budget))) or not _is_text(step.note):
        return None
    if step.note:
        return replace(step, budget=_plausible_tokens(step.note, step.budget)) if step.note.strip() else None
    return step if strategy.summary_model is not None else None


def _plausible_tokens(text: str, announced: int) -> int:
    estimate = estimate_tokens(text)
    return announced if estimate <= announced * _ESTIMATE_FACTOR <= estimate * _ESTIMATE_FACTOR**2 else estimate


def _is_worthwhile(strategy: Strategy, view: StrategyView, step: Replace | DeferredReplace) -> bool:
    """Whether a replacement is shorter than the part. One for another limit may be somewhat longer; of protected
    messages it replaces only media and results."""
    tokens = view.count_part_tokens(step.slot)[step.part]
    if strategy.budget == "tokens":
        return step.tokens < tokens
    is_permitted = view.free[step.slot] or not isinstance(view.slots[step.slot].message.parts[step.part], Text)
    return is_permitted and step.tokens <= 2 * tokens + 500


def _is_result(view: StrategyView, step: Replace) -> bool:
    return isinstance(view.slots[step.slot].message.parts[step.part], ToolResult)


def _has_position(view: StrategyView, step: Replace | DeferredReplace) -> bool:
    return (
        _is_whole_number(step.slot)
        and _is_whole_number(step.part)
        and 0 <= step.slot < len(view.slots)
        and 0 <= step.part < len(view.slots[step.slot].message.parts)
    )


def _is_whole_number(value: object) -> bool:
    return type(value) is int


def _is_text(value: object) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
