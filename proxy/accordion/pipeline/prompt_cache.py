"""The provider's prompt cache: its rules, and whether it still has the prompt of the request before.

What is known of the request before is in its node (sessions/prefix_nodes.py), so any worker decides alike and nothing
else is read. Lifetimes count from the last use, and are those that providers document:

- Anthropic (platform.claude.com/docs/en/build-with-claude/prompt-caching): 5 minutes, or an hour for breakpoints with
  `"ttl": "1h"`. The newest message with a breakpoint counts.
- OpenAI (developers.openai.com/api/docs/guides/prompt-caching): 30 minutes since GPT-5.6, which `prompt_cache_options`
  may raise to 12 hours. Before it, `prompt_cache_retention` says `24h`, or `in_memory`: 5 to 10 minutes.
- Others document none. Gemini evicts implicit caches when it needs the memory, within a day
  (docs.cloud.google.com, context cache overview); DeepSeek keeps them on disk for hours to days.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from accordion.accounting.cost_model import AUTOMATIC, MARKED, CacheRules
from accordion.compaction.policy import PromptCache
from accordion.model.cache import LONGEST_NAME
from accordion.model.conversation import Conversation
from accordion.pipeline.count import previous_request
from accordion.pipeline.request import MeasuredRequest

_HOUR: Final = 3_600.0
_HOUR_BREAKPOINT = b'"1h"'
_RETENTIONS: Final = {b"24h": 24 * _HOUR, b"12h": 12 * _HOUR, b"30m": _HOUR / 2, b"memory": _HOUR / 6}
"""Seconds by words in OpenAI's fields, the longest first."""
_RETENTION_FIELDS = ("prompt_cache_retention", "prompt_cache_options")
_OPENAI_MODEL = re.compile(r"(?:^|[/.])(?:gpt-(?!oss)|chatgpt-|codex-|o\d)")
_MARKED_FOR_AN_HOUR = MARKED._replace(lifetime=_HOUR)
_MARKED_ELSEWHERE = MARKED._replace(is_lifetime_known=False)
_AUTOMATIC_ELSEWHERE = AUTOMATIC._replace(is_lifetime_known=False)
_UNKNOWN = PromptCache()


def find_cache_rules(request: MeasuredRequest) -> CacheRules:
    """Returns the rules of the prompt cache of the provider of a request."""
    model, conversation = request.actual_model, request.conversation
    if "claude" in model:
        return _MARKED_FOR_AN_HOUR if _lasts_an_hour(conversation) else MARKED
    if request.route.family == "anthropic":
        return _MARKED_ELSEWHERE
    if _OPENAI_MODEL.search(model) is None:
        return _AUTOMATIC_ELSEWHERE
    lifetime = _find_retention(conversation.envelope)
    return AUTOMATIC._replace(lifetime=lifetime) if lifetime else AUTOMATIC


def find_prompt_cache(request: MeasuredRequest, now: float) -> PromptCache:
    """Returns what is known of the provider's prompt cache at the time `now`, in seconds since the epoch.

    Nothing is known of a new conversation, or if the request before was not the last one of this conversation.
    """
    node, conversation = previous_request(request.session_match), request.conversation
    if node is None or node.cached is None:
        return _UNKNOWN
    if node.model != conversation.model[:LONGEST_NAME]:
        return PromptCache("the model changed")
    if node.overhead_key != conversation.overhead_key:
        return PromptCache("the system prompt or the tools changed")
    rules = find_cache_rules(request)
    if not rules.is_lifetime_known:
        return _UNKNOWN
    pause = now - node.cached.at
    if pause > rules.lifetime:
        return PromptCache(f"the last request was {_format_pause(pause)} ago")
    return PromptCache(is_warm=True)


def _lasts_an_hour(conversation: Conversation) -> bool:
    """Whether the newest breakpoint lasts an hour. Without one in the messages, it is that of the whole request."""
    for message in reversed(conversation.messages):
        if message.cache_breakpoints:
            return _HOUR_BREAKPOINT in message.wire
    return _HOUR_BREAKPOINT in conversation.envelope.get("cache_control", b"")


def _find_retention(envelope: Mapping[str, bytes]) -> float:
    """Returns the lifetime that a request to OpenAI asks for, in seconds; 0 if it asks for none."""
    value = b"".join(envelope.get(name, b"") for name in _RETENTION_FIELDS)
    return next((seconds for word, seconds in _RETENTIONS.items() if word in value), 0.0) if value else 0.0


def _format_pause(seconds: float) -> str:
    if seconds < _HOUR:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / _HOUR:.1f} hours"
