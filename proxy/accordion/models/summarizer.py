"""A model that writes summaries: the request's own, in the request's own name, or one that is named in its place.

Whoever's request is folded pays for its summary. A credential goes only where its owner sends requests anyway; a
model's own key is used for callers that presented a proxy key, and for nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from accordion.core.budget import Window
from accordion.core.errors import AccordionError, SummaryFailed
from accordion.core.ports import Headers, Route, Router, Translator, Upstream, UpstreamReply, UpstreamRequest, Windows
from accordion.core.records import ReplySeen, Usage
from accordion.core.summarizing import Asker, SummaryReply, SummaryRequest
from accordion.core.values import replace
from accordion.dialects.base import Dialect
from accordion.dialects.encodings import Decoder
from accordion.models.summarizer_wire import PATHS, Limit, answer, body, fault
from accordion.summaries.author import SummaryRejected

ANSWER: Final = 16_000
"""The room that is kept for an answer, in tokens; a quarter of smaller windows."""
_THINKING: Final = 6_000
"""Tokens beside the answer: models that reason spend them before the first word."""
_LARGEST: Final = 4 << 20

_CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key")
_SENT: Final = frozenset(
    {*_CREDENTIALS, b"anthropic-version", b"anthropic-beta", b"user-agent", b"openai-organization", b"openai-project"}
)
_OPENAI = re.compile(r"(?:^|/)(?:gpt-|o\d|chatgpt|codex)")


@dataclass(frozen=True, slots=True)
class _Way:
    """How a model is reached: its name for clients, its route, headers and credential."""

    model: str
    route: Route
    headers: Headers = field(repr=False)
    credential: str = field(repr=False)
    beta: str = ""


@dataclass(frozen=True, slots=True)
class _Heard:
    """A reply as it was read."""

    status: int
    data: Any = field(repr=False)
    seen: ReplySeen = field(repr=False)


class ModelSummarizer:
    """Core's Summarizer over the Upstream and Translator ports. Content and credentials are never logged.

    `model` is a model's name: a configured one, or another of the request's own provider; empty for the request's own
    model. `dialects` are known by their names. `longest` is the room kept for an answer, in tokens.
    """

    def __init__(
        self,
        upstream: Upstream,
        translator: Translator,
        router: Router,
        windows: Windows,
        dialects: Mapping[str, Dialect],
        *,
        model: str = "",
        longest: int = ANSWER,
    ) -> None:
        self._upstream = upstream
        self._translator = translator
        self._router = router
        self._windows = windows
        self._dialects = dialects
        self._model = model
        self._longest = longest

    def room(self, asker: Asker) -> int:
        """The window's usable input less the answer, in tokens; 0 where no model can be had."""
        way = self._way(asker)
        if way is None or asker.dialect not in PATHS:
            return 0
        window = self._window(way, asker)
        return max(0, min(window.usable_input, window.size - self._answer(window)))

    async def write(self, request: SummaryRequest, asker: Asker) -> SummaryReply:
        """Asks the model once, not streamed. Raises SummaryFailed whatever goes wrong, SummaryRejected where the model
        said what that cost; sets no time-out."""
        way = self._way(asker)
        if way is None or asker.dialect not in PATHS:
            raise SummaryFailed("no model may be called with this caller's key")
        try:
            return await self._ask(way, request, asker)
        except SummaryFailed:
            raise
        except AccordionError as error:
            raise SummaryFailed(f"the model could not be called: {error.code or error.type}") from error
        except Exception as error:
            raise SummaryFailed(f"the model could not be called: {type(error).__name__}") from error

    async def _ask(self, way: _Way, request: SummaryRequest, asker: Asker) -> SummaryReply:
        longest = min(request.max_tokens + _THINKING, self._answer(self._window(way, asker)))
        named = way.route.model or way.model
        known: Limit = "max_completion_tokens" if _OPENAI.search(named) else "max_tokens"
        other: Limit = "max_tokens" if known == "max_completion_tokens" else "max_completion_tokens"
        heard = await self._send(way, asker.dialect, body(asker.dialect, named, request, longest, known))
        if asker.dialect == "chat" and heard.status in (400, 422) and known in heard.seen.error:
            # Which of the two a server knows can only be found out.
            heard = await self._send(way, asker.dialect, body(asker.dialect, named, request, longest, other))
        text, problem = _answered(asker.dialect, heard)
        usage = heard.seen.usage or Usage()
        if problem:
            answers = int(heard.status == 200)
            raise SummaryRejected(problem, input=usage.input, output=usage.output, answers=answers)
        return SummaryReply(text, heard.seen.model or named, usage.input, usage.output)

    async def _send(self, way: _Way, dialect: str, sent: bytes) -> _Heard:
        if way.route.family == "litellm":
            reply = await self._translator.send(dialect, sent, way.route, way.credential)
        else:
            url = self._router.url(way.route, PATHS[dialect])
            reply = await self._upstream.send(UpstreamRequest("POST", url, way.headers, sent))
        try:
            raw = await _read(reply)
        finally:
            await reply.close()
        tap = self._dialects[dialect].tap(False)
        tap.feed(raw)
        try:
            data = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            if reply.status == 200:
                raise SummaryFailed("the model's answer is not JSON") from None
            data = None
        return _Heard(reply.status, data, tap.seen())

    # -- who is asked, and in whose name -----------------------------------------------

    def _way(self, asker: Asker) -> _Way | None:
        configured = self._router.models.get(self._model)
        if configured is None:
            route = _renamed(asker.route, self._model) if self._model else asker.route
            headers = _headers(asker.headers, route, asker.dialect)
            return _Way(self._model or asker.model, route, headers, asker.credential, _beta(headers))
        route = self._router.for_dialect(configured, asker.dialect)
        if asker.keyed and route.api_key:
            headers = _headers(_with_key(asker.headers, route), route, asker.dialect)
            return _Way(self._model, route, headers, route.api_key, _beta(headers))
        if _same_place(configured, asker.route):
            headers = _headers(asker.headers, route, asker.dialect)
            return _Way(self._model, route, headers, asker.credential, _beta(headers))
        if route.ambient and (asker.keyed or asker.route.ambient):
            return _Way(self._model, route, (), "")
        return None

    def _window(self, way: _Way, asker: Asker) -> Window:
        return self._windows.window(way.model, way.route.name, way.beta, asker.tenant)

    def _answer(self, window: Window) -> int:
        return max(1, min(self._longest, window.size // 4, window.max_output or self._longest))


def _answered(dialect: str, heard: _Heard) -> tuple[str, str]:
    """The text of a reply, and what is wrong with it; the second is empty where nothing is."""
    if heard.status != 200 or heard.seen.error:
        return "", f"the model answered with status {heard.status}{_code(heard.data)}"
    text = answer(dialect, heard.data)
    return text, fault(heard.seen.finish) or ("" if text else "the model answered nothing")


def _headers(headers: Headers, route: Route, dialect: str) -> Headers:
    """Of a request's headers those that say who asks and how, as they go with a question of ours."""
    extra = tuple((name.lower().encode(), value.encode()) for name, value in route.extra_headers)
    own = {name for name, _ in extra}
    kept = [(name.lower(), value) for name, value in headers if name.lower() in _SENT and name.lower() not in own]
    if dialect == "messages" and not any(name == b"anthropic-version" for name, _ in kept):
        kept.append((b"anthropic-version", b"2023-06-01"))
    return (*kept, *extra, (b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


def _with_key(headers: Headers, route: Route) -> Headers:
    """The headers with a model's own key in place of whatever credential they held."""
    kept = tuple(pair for pair in headers if pair[0].lower() not in _CREDENTIALS)
    key = route.api_key.encode()
    return (*kept, (b"x-api-key", key) if route.family == "anthropic" else (b"authorization", b"Bearer " + key))


def _same_place(one: Route, other: Route) -> bool:
    """Whether two routes lead to the same provider, so that the credential for one is meant for the other."""
    if one.base_url or other.base_url:
        return one.base_url == other.base_url
    return one.family == other.family and _provider(one) == _provider(other) != ""


def _renamed(route: Route, model: str) -> Route:
    """The same way to another model of the same provider, which LiteLLM knows by what stands before the slash."""
    provider = _provider(route) if route.family == "litellm" else ""
    bare = model.removeprefix(f"{provider}/")
    return replace(route, model=f"{provider}/{bare}" if provider else model)


def _provider(route: Route) -> str:
    name, slash, _ = (route.model or "").partition("/")
    return name if slash else ""


def _beta(headers: Headers) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == b"anthropic-beta"), "")


async def _read(reply: UpstreamReply) -> bytes:
    """The whole body, without its content encoding. Raises SummaryFailed for one that is too large."""
    fields = {name.lower(): value for name, value in reply.headers}
    decoder, held = Decoder(fields.get(b"content-encoding", b"").decode("latin-1"), _LARGEST), bytearray()
    async with aclosing(reply.chunks()) as chunks:
        async for chunk in chunks:
            held += decoder.feed(chunk)
            if not decoder.readable:
                raise SummaryFailed("the model's answer could not be read, or is too large")
    return bytes(held)


def _code(data: Any) -> str:
    """The code or type of an error, where it is a plain word; its text may hold content."""
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict):
        return ""
    for name in ("code", "type"):
        word = error.get(name)
        if isinstance(word, str) and re.fullmatch(r"[a-z_]{2,60}", word):
            return f" ({word})"
    return ""
