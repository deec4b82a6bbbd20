"""Accordion: a proxy that keeps long-running agents inside their model's context window.

For use as a library it offers `compact_messages` (docs/library.md), and the interface of strategies
(docs/write-a-strategy.md). Their modules are imported at first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accordion.compaction.strategies import Strategy, build_strategy
    from accordion.compaction.strategies.base import (
        DeferredReplace,
        StrategyOptions,
        StrategyView,
        estimate_tokens,
        text_of,
    )
    from accordion.message_compaction import CompactedMessages, compact_messages
    from accordion.model.budget import Thresholds
    from accordion.model.plan import Drop, Replace, Summarize

__version__ = "0.2.0"

__all__ = [
    "CompactedMessages",
    "DeferredReplace",
    "Drop",
    "Replace",
    "Strategy",
    "StrategyOptions",
    "StrategyView",
    "Summarize",
    "Thresholds",
    "build_strategy",
    "compact_messages",
    "estimate_tokens",
    "text_of",
]

_STRATEGIES, _LIBRARY = "accordion.compaction.strategies", "accordion.message_compaction"
_MODULES = {
    "CompactedMessages": _LIBRARY,
    "DeferredReplace": f"{_STRATEGIES}.base",
    "Drop": "accordion.model.plan",
    "Replace": "accordion.model.plan",
    "Strategy": _STRATEGIES,
    "StrategyOptions": f"{_STRATEGIES}.base",
    "StrategyView": f"{_STRATEGIES}.base",
    "Summarize": "accordion.model.plan",
    "Thresholds": "accordion.model.budget",
    "build_strategy": _STRATEGIES,
    "compact_messages": _LIBRARY,
    "estimate_tokens": f"{_STRATEGIES}.base",
    "text_of": f"{_STRATEGIES}.base",
}
"""The module of each name that the package offers."""


def __getattr__(name: str) -> object:
    """Imports what the package offers at first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


# numpy reads it when it is imported. Its matrices are small here: more threads were measured to wait for each other for
# as long as they work, which doubles what a search costs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
