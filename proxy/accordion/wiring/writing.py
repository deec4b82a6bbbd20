"""Who writes memories in place of the rules, where `memory.writer` names a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from accordion.accounting.limits import Limits
from accordion.core.ports import Clock, Tasks, Translator, Upstream
from accordion.core.summarizing import Asker
from accordion.memory.narrated import Narrator
from accordion.models.bounded import BoundedSummarizer, Spent
from accordion.models.summarizer import ModelSummarizer
from accordion.settings import Settings
from accordion.summaries.extractive import Extractor
from accordion.summaries.prompts import load
from accordion.wiring.shares import shares
from accordion.wiring.tables import dialects_by_name, routes, windows

_SECONDS: Final = 120.0
"""The longest that one answer is waited for, in seconds; then the rules write."""
_AT_ONCE: Final = 4
"""Answers that one worker waits for at once."""
_FACTS: Final = 1 << 20


def narrator(
    settings: Settings,
    upstream: Upstream,
    translator: Translator,
    tasks: Tasks,
    clock: Clock,
    count: Callable[[str], int],
    spent: Spent,
) -> Narrator | None:
    """The configured model, asked in its own name; None where the rules write. `count` counts tokens of a text."""
    name = settings.memory.model
    if not name:
        return None
    # `check` has seen to it that there is one of this name, with a key.
    router, spoken = routes(settings), dialects_by_name()
    route = router.models[name]
    asker = Asker("", route, "messages" if route.family == "anthropic" else "chat", name, (), keyed=True)
    model = ModelSummarizer(upstream, translator, router, windows(settings, Limits(clock.now)), spoken, model=name)
    bounded = BoundedSummarizer(model, spent, at_once=_AT_ONCE, seconds=_SECONDS)
    return Narrator(bounded, asker, Extractor(_FACTS, shares(settings.limits.cache_bytes).words), tasks, load(), count)
