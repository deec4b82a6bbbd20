"""The product as a compactor that `quality.py` can measure: the same path as a request's, without a network or a model.

Each list goes through the real protocol, identity, replay, policy, planner, strategies, extractive writer and executor,
with the settings that are shipped. What is returned is what would be sent.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from accordion.config import Settings
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.http import Inbound
from accordion.pipeline.request import PassthroughRequest

T = TypeVar("T")
Messages = list[dict[str, Any]]

_ID = re.compile(r"art_[0-9a-f]{12}")
_HEADERS = ((b"content-type", b"application/json"),)
# A model of no known window or family: the window is given, and tokens are counted as o200k_base has them.
_MODEL = "measured"


class _Product:
    """One proxy for all conversations of a run, on an event loop of its own."""

    def __init__(self, window: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._pipeline = self.run(self._opened(window))
        self._caller = self._pipeline.caller
        self._texts: dict[str, str] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self._pipeline.close())
        self._loop.close()

    async def _opened(self, window: int) -> OfflinePipeline:
        return OfflinePipeline(Settings(), window)

    async def forwarded(self, body: bytes, name: str, on_request: bool) -> tuple[Messages, dict[str, str]]:
        fields = (*_HEADERS, _label(name), *(((b"x-accordion-compact", b"now"),) if on_request else ()))
        inbound = Inbound("POST", "/v1/chat/completions", "", fields, body, name)
        prepared = await self._pipeline.process(inbound, self._caller)
        if isinstance(prepared, PassthroughRequest) or prepared.rewritten_body is None:
            return json.loads(body)["messages"], {}
        shown = set(_ID.findall(prepared.rewritten_body.decode(errors="replace")))
        for artifact in shown - self._texts.keys():
            text = await self._pipeline.text_of(artifact, self._caller)
            if text is not None:
                self._texts[artifact] = text
        return msgspec.json.decode(prepared.rewritten_body)["messages"], {
            each: self._texts[each] for each in shown & self._texts.keys()
        }


_products: dict[int, _Product] = {}


def compact(
    messages: Messages, tools: list[Any], model_window: int, state: dict[str, Any]
) -> tuple[Messages, dict[str, str]]:
    """The plug-in of `quality.py`: the list that would be sent, and the texts of the artifacts that it names.

    `state` names the conversation; `on_request` in it has the list compacted whatever its size.
    """
    product = _products.get(model_window)
    if product is None:
        product = _products[model_window] = _Product(model_window)
    request: dict[str, Any] = {"model": _MODEL, "messages": messages, **({"tools": tools} if tools else {})}
    text = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
    try:
        body = text.encode()
    except UnicodeEncodeError:
        body = json.dumps(request, separators=(",", ":")).encode()
    return product.run(product.forwarded(body, str(state.get("conversation_id", "")), bool(state.get("on_request"))))


def close() -> None:
    """Ends what `compact` began."""
    while _products:
        _products.popitem()[1].close()


def _label(name: str) -> tuple[bytes, bytes]:
    """Conversations of a recording may share their openings; a label keeps them apart, as a client's own would."""
    return b"x-accordion-session", ("recorded-" + re.sub(r"[^A-Za-z0-9_.:-]", "-", name))[-128:].encode()
