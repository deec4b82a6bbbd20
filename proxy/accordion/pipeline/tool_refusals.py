"""Learns which models take no tools, so that they are not offered ours.

Many models, and servers that were started without a parser of calls, refuse every request with tools. A client of such
a model sends none, so ours would be the only one, and each request after the first compaction would be refused. The
refusal shows it; it holds for a day. The same holds for a provider that takes the tool and refuses its results by a
rule that we do not know.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from accordion.model.cache import BoundedCache, count_entry
from accordion.pipeline.request import MeasuredRequest

_STATUSES = frozenset({400, 404, 405, 422, 500, 501})
"""The statuses by which servers refuse tools: 404 is OpenRouter's, 500 llama.cpp's."""

_MAX_CACHED_REFUSALS = 10_000
_REFUSAL_SECONDS = 86_400.0
_LONGEST_REFUSAL = 65_536

# Sources: error texts of Ollama ("does not support tools"), vLLM ('"auto" tool choice requires
# --enable-auto-tool-choice'), llama.cpp ("tools param requires --jinja flag"), OpenAI ("Unsupported parameter: 'tools'
# is not supported with this model"), OpenRouter ("No endpoints found that support tool use"), Groq, Mistral and Gemini
# ("Function calling is not enabled for this model"), Bedrock ("This model doesn't support tool use"), pydantic.
_TOOLS = re.compile(r"\btools?\b|\btool[ _]|function[ _]?call", re.IGNORECASE)
_REFUSAL = re.compile(
    r"support|\benabled?\b|requires|unrecognized|unknown|unexpected|not (?:permitted|allowed|available)", re.IGNORECASE
)

_log = logging.getLogger("accordion")


class ToolRefusals:
    """The models that refused tools, remembered for a day in this process.

    A refusal of one tenant's request counts for that tenant only. `now` returns seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._expiries: BoundedCache[tuple[str, ...], float] = BoundedCache(_MAX_CACHED_REFUSALS, count_entry)
        self._has_learned = False

    def covers(self, request: MeasuredRequest) -> bool:
        """Returns whether the model of a request takes no tools."""
        return self._has_learned and (self._expiries.get(_cache_key(request)) or 0.0) > self._now()

    def learn(self, request: MeasuredRequest, status: int, refusal: bytes) -> bool:
        """Learns from the refusal of a request whose only tool is ours; returns whether it says that the model takes no
        tools."""
        text = refusal[:_LONGEST_REFUSAL].decode(errors="replace")
        if status not in _STATUSES or not (_TOOLS.search(text) and _REFUSAL.search(text)):
            return False
        self.add(request, "takes no tools")
        return True

    def add(self, request: MeasuredRequest, reason: str) -> None:
        """Adds the model of a request, for a day; the log gives the reason."""
        self._has_learned = True
        self._expiries[_cache_key(request)] = self._now() + _REFUSAL_SECONDS
        _log.warning(
            "model %s %s: read_artifact is not offered to it for a day",
            request.conversation.model,
            reason,
            extra={"request_id": request.inbound.request_id},
        )


def _cache_key(request: MeasuredRequest) -> tuple[str, ...]:
    route = request.route
    return request.caller.tenant.name, route.base_url, route.model or "", request.conversation.model
