"""Requests summaries from a model: the request's own model, with the caller's credential, or a configured one.

The caller whose request is compacted pays for its summary. A caller's credential is sent only to the provider that the
caller uses anyway. A model's configured key is used only for callers with a proxy key, or of this machine. Structured
output is requested; a model that refuses it is asked for free text, for a day and by all workers. No temperature is
sent, which newer models refuse. The provider is told not to store Responses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from accordion.model.budget import Window
from accordion.model.errors import AccordionError, SummaryFailed
from accordion.model.ports import (
    Headers,
    Route,
    Router,
    Summarizer,
    SummaryCaller,
    SummaryLimits,
    SummaryRequest,
    SummaryResponse,
    Translator,
    Upstream,
    UpstreamRequest,
    UpstreamResponse,
    WindowTable,
)
from accordion.model.records import ObservedResponse, Usage
from accordion.protocols.base import TextPrompt, WireProtocol
from accordion.protocols.clouds import cloud_prompt, prompt_target
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.response_parser import UNDECODABLE, ResponseEvent, ResponseObserver, output_text
from accordion.sessions.tenants import CREDENTIAL_HEADERS
from accordion.summaries.author import SummaryRejected

_LENGTH_REASONS: Final = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded", "MAX_TOKENS"}
)
_REFUSAL_REASONS: Final = frozenset(
    {
        *("content_filter", "refusal", "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "OTHER"),
        *("content_filtered", "guardrail_intervened"),
    }
)

ANSWER: Final = 16_000
"""The tokens that are reserved for an answer; in smaller windows, a quarter of the window."""
_THINKING: Final = 6_000
"""Tokens added to the answer's limit, since reasoning models think before the first word."""
_MAX_RESPONSE_BYTES: Final = 4 << 20
_REFUSED: Final = frozenset({400, 404, 415, 422, 501})
"""The statuses by which servers refuse a field."""
_SCHEMA: Final = "schema"
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
"""The names of fields that models refuse."""

_FORWARDED_HEADERS: Final = frozenset(
    {
        *CREDENTIAL_HEADERS,
        b"anthropic-version",
        b"anthropic-beta",
        b"user-agent",
        b"openai-organization",
        b"openai-project",
    }
)
_OPENAI = re.compile(r"(?:^|/)(?:gpt-|o\d|chatgpt|codex)")


@dataclass(frozen=True, slots=True)
class _SummaryRoute:
    """A model's name for clients, with its route, headers and credential."""

    model: str
    route: Route
    headers: Headers = field(repr=False)
    credential: str = field(repr=False)
    protocol: WireProtocol
    beta: str = ""
    cloud_target: str = ""


@dataclass(frozen=True, slots=True)
class _ParsedResponse:
    """A response: its status, its parsed body, and the observer's result."""

    status: int
    event: ResponseEvent = field(repr=False)
    observed: ObservedResponse = field(repr=False)


class ModelSummarizer:
    """The Summarizer port over the Upstream and Translator ports. Content and credentials are never logged.

    `model` names a configured model, or another one of the request's own provider; empty: the request's own model.
    `protocols` are by name. `max_answer` is the largest answer in tokens.
    """

    def __init__(
        self,
        upstream: Upstream,
        translator: Translator,
        router: Router,
        windows: WindowTable,
        protocols: Mapping[str, WireProtocol],
        *,
        model: str = "",
        max_answer: int = ANSWER,
    ) -> None:
        self._upstream = upstream
        self._translator = translator
        self._router = router
        self._windows = windows
        self._protocols = protocols
        self._model = model
        self._max_answer = max_answer

    def limits(self, caller: SummaryCaller) -> SummaryLimits:
        """Returns the window's usable input less the answer, and the longest answer.

        Raises SummaryFailed if the model cannot be called for this caller.
        """
        target = self._find_route(caller)
        window = self._window(target, caller)
        answer = self._max_answer_tokens(window)
        return SummaryLimits(max(0, min(window.usable_input, window.size - answer)), answer)

    async def write(self, request: SummaryRequest, caller: SummaryCaller) -> SummaryResponse:
        """Requests a summary once, not streamed, without a time-out.

        Raises SummaryRejected if the model responded, with the tokens that this cost, and SummaryFailed for all else.
        """
        target = self._find_route(caller)
        try:
            return await self._request(target, request, caller)
        except SummaryFailed:
            raise
        except AccordionError as error:
            raise SummaryFailed(f"the model could not be called: {error.code or error.type}") from error
        except Exception as error:
            raise SummaryFailed(f"the model could not be called: {type(error).__name__}") from error

    async def _request(self, target: _SummaryRoute, request: SummaryRequest, caller: SummaryCaller) -> SummaryResponse:
        window = self._window(target, caller)
        max_tokens = min(request.max_tokens + _THINKING, self._max_answer_tokens(window))
        model = target.route.model or target.model
        refused = window.refused_fields
        prompt = _write_prompt(model, request, max_tokens, refused)
        response = await self._send(target, prompt)
        # Only a request can show which fields a server accepts.
        while response.status in _REFUSED and (field := _find_refused_field(prompt, response, refused)):
            refused = (*refused, field)
            prompt = _write_prompt(model, request, max_tokens, refused)
            response = await self._send(target, prompt)
        if refused != window.refused_fields and response.status == 200:
            name = target.route.name
            self._windows.learn(target.model, name, target.beta, caller.tenant, 0, refused_fields=refused)
        text, problem = _read_answer(response)
        usage = response.observed.usage or Usage()
        if problem:
            answer_count = int(response.status == 200)
            raise SummaryRejected(problem, input=usage.input, output=usage.output, answers=answer_count)
        return SummaryResponse(text, response.observed.model or model, usage.input, usage.output)

    async def _send(self, target: _SummaryRoute, prompt: TextPrompt) -> _ParsedResponse:
        protocol, body = target.protocol, target.protocol.write_prompt(prompt)
        if target.route.is_translated:
            upstream_response = await self._translator.send(protocol.name, body, target.route, target.credential)
        else:
            cloud_target = target.cloud_target
            path = prompt_target(cloud_target, prompt.model) if cloud_target else protocol.prompt_path(prompt.model)
            url = self._router.url(target.route, path)
            body = cloud_prompt(target.route.family, protocol.name, body)
            upstream_response = await self._upstream.send(UpstreamRequest("POST", url, target.headers, body))
        try:
            raw = await _read_body(upstream_response)
        finally:
            await upstream_response.close()
        parser = protocol.parser(stream=False, reads_content=True)
        event, observer = parser.parse_document(raw), ResponseObserver(parser)
        if upstream_response.status == 200 and UNDECODABLE in event.parts:
            raise SummaryFailed("the model's answer is not JSON")
        observer.take(event)
        return _ParsedResponse(upstream_response.status, event, observer.observation())

    # -- the route and the credential --------------------------------------------------

    def _find_route(self, caller: SummaryCaller) -> _SummaryRoute:
        """Returns the route to the model. Raises SummaryFailed if it cannot be called for this caller.

        A key goes only to the address for which it was configured, and the caller's only to the caller's own provider.
        """
        protocol = self._protocols.get(caller.protocol_name)
        if protocol is None:
            raise SummaryFailed("no model can be asked in the protocol of the request")
        model_route = self._router.models.get(self._model)
        if model_route is None:
            route = _with_model(caller.route, self._model) if self._model else caller.route
            headers = _headers(caller.headers, route, protocol)
            beta = _beta_flags(headers)
            name = self._model or caller.model
            return _SummaryRoute(name, route, headers, caller.credential, protocol, beta, caller.cloud_target)
        if not caller.can_use_configured_keys:
            model_route = model_route.without_secrets()
        protocol, route = self._choose_protocol(protocol, model_route)
        can_use_own = caller.can_use_configured_keys and not model_route.needs_callers_key
        if _is_same_provider(model_route, caller.route) and not (can_use_own and route.api_key):
            headers = _headers(caller.headers, route, protocol)
            return _SummaryRoute(self._model, route, headers, caller.credential, protocol, _beta_flags(headers))
        if can_use_own:
            headers = _headers(_with_own_key(caller.headers, route), route, protocol)
            return _SummaryRoute(self._model, route, headers, route.api_key, protocol, _beta_flags(headers))
        if model_route.needs_callers_key:
            raise SummaryFailed(
                f"{self._model} has no key or address of its own, and the caller's key is for another provider"
            )
        raise SummaryFailed(f"{self._model} is called only for callers with a proxy key, or of this machine")

    def _choose_protocol(self, protocol: WireProtocol, model_route: Route) -> tuple[WireProtocol, Route]:
        """Returns the protocol in which a configured model is asked, and the route for it: the client's, or, where that
        cannot be translated, one that the model's provider speaks."""
        route = self._router.for_protocol(model_route, protocol.name)
        if not route.is_translated or protocol.is_translatable:
            return protocol, route
        others = [each for each in self._protocols.values() if each.is_translatable]
        own = next((each for each in others if each.family == model_route.family), others[0])
        return own, self._router.for_protocol(model_route, own.name)

    def _window(self, target: _SummaryRoute, caller: SummaryCaller) -> Window:
        return self._windows.window(target.model, target.route.name, target.beta, caller.tenant)

    def _max_answer_tokens(self, window: Window) -> int:
        return max(1, min(self._max_answer, window.size // 4, window.max_output or self._max_answer))


def _write_prompt(model: str, request: SummaryRequest, max_tokens: int, refused: tuple[str, ...]) -> TextPrompt:
    """Writes a request without the fields that the model has refused.

    OpenAI's newer models accept only `max_completion_tokens`, other servers of Chat Completions only `max_tokens`.
    """
    fields = (_MAX_COMPLETION_TOKENS, _MAX_TOKENS) if _OPENAI.search(model) else (_MAX_TOKENS, _MAX_COMPLETION_TOKENS)
    limit_field = next((field for field in fields if field not in refused), fields[0])
    schema = request.schema if _SCHEMA not in refused else None
    return TextPrompt(model, request.instructions, request.text, max_tokens, limit_field, schema)


def _find_refused_field(prompt: TextPrompt, refusal: _ParsedResponse, refused: tuple[str, ...]) -> str:
    """Returns the field of a prompt that a server has refused; "" if it can leave out none."""
    is_first = not {_MAX_TOKENS, _MAX_COMPLETION_TOKENS}.intersection(refused)
    if is_first and prompt.limit_field in refusal.observed.error:
        return prompt.limit_field
    return _SCHEMA if prompt.schema is not None else ""


def _read_answer(response: _ParsedResponse) -> tuple[str, str]:
    """Returns the text of a response and a description of its fault; the second is empty if there is none."""
    if response.status != 200 or response.observed.error:
        return "", f"the model answered with status {response.status}{_error_code(response.event.value)}"
    text = output_text(response.event).strip()
    return text, find_fault(response.observed.finish, text)


def _headers(headers: Headers, route: Route, protocol: WireProtocol) -> Headers:
    """Returns the headers of our request: the client's identifying ones, the route's, and the content type."""
    extra_headers = tuple((name.lower().encode(), value.encode()) for name, value in route.extra_headers)
    extra_names = {name for name, _ in extra_headers}
    client_headers = [
        (name.lower(), value)
        for name, value in headers
        if name.lower() in _FORWARDED_HEADERS and name.lower() not in extra_names
    ]
    if protocol.family == "anthropic" and not any(name == b"anthropic-version" for name, _ in client_headers):
        client_headers.append((b"anthropic-version", b"2023-06-01"))
    return (*client_headers, *extra_headers, (b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


def _with_own_key(headers: Headers, route: Route) -> Headers:
    """Returns the headers with the model's own key, if it has one, in place of the client's credentials."""
    others = tuple(pair for pair in headers if pair[0].lower() not in CREDENTIAL_HEADERS)
    return (*others, route.key_header(route.api_key)) if route.api_key else others


def _is_same_provider(first: Route, second: Route) -> bool:
    """Whether two routes lead to the same provider, so that a credential for one is valid for the other."""
    if first.base_url or second.base_url:
        return first.base_url == second.base_url
    return first.family == second.family and _provider(first) == _provider(second) != ""


def _with_model(route: Route, model: str) -> Route:
    """Returns the route to another model of the same provider; for LiteLLM, the part before the slash stays."""
    provider = _provider(route) if route.is_translated else ""
    bare_name = model.removeprefix(f"{provider}/")
    return replace(route, model=f"{provider}/{bare_name}" if provider else model)


def _provider(route: Route) -> str:
    name, slash, _ = (route.model or "").partition("/")
    return name if slash else ""


def _beta_flags(headers: Headers) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == b"anthropic-beta"), "")


async def _read_body(response: UpstreamResponse) -> bytes:
    """Returns the whole decoded body. Raises SummaryFailed if it is too large or cannot be decoded."""
    fields = {name.lower(): value for name, value in response.headers}
    decoder, body = Decoder(fields.get(b"content-encoding", b"").decode("latin-1"), _MAX_RESPONSE_BYTES), bytearray()
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            body += decoder.feed(chunk)
            if not decoder.readable:
                raise SummaryFailed("the model's answer could not be read, or is too large")
    return bytes(body)


def _error_code(data: Any) -> str:
    """Returns the code or type of an error if it is a plain word. The error's text is not used: it may hold content."""
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict):
        return ""
    for name in ("code", "type"):
        word = error.get(name)
        if isinstance(word, str) and re.fullmatch(r"[a-z_]{2,60}", word):
            return f" ({word})"
    return ""


def find_fault(finish: str, text: str) -> str:
    """Returns the fault of an answer with this finish reason; empty if it has none.

    What is whole of an answer that was cut off can be used.
    """
    if finish in _REFUSAL_REASONS:
        return "the model refused"
    if text:
        return ""
    return "the answer was cut short before its text" if finish in _LENGTH_REASONS else "the model answered nothing"


TokenUsageCallback = Callable[[str, int, int], None]
"""Receives the model, input tokens and output tokens of each response."""


class BoundedSummarizer:
    """Wraps a summarizer: at most `max_concurrent` requests at once, and `seconds` for each, its wait included."""

    def __init__(
        self, summarizer: Summarizer, on_usage: TokenUsageCallback, *, max_concurrent: int, seconds: float
    ) -> None:
        self._summarizer, self._on_usage = summarizer, on_usage
        self._slots, self._seconds = asyncio.Semaphore(max_concurrent), seconds

    def limits(self, caller: SummaryCaller) -> SummaryLimits:
        """Returns the wrapped summarizer's limits."""
        return self._summarizer.limits(caller)

    async def write(self, request: SummaryRequest, caller: SummaryCaller) -> SummaryResponse:
        """Requests a summary once. Raises SummaryFailed, also when the time is over."""
        try:
            async with asyncio.timeout(self._seconds), self._slots:
                response = await self._summarizer.write(request, caller)
        except TimeoutError as error:
            raise SummaryFailed(f"the model did not answer within {self._seconds:g} seconds") from error
        self._on_usage(caller.model, response.input, response.output)
        return response
