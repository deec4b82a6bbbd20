"""Which provider a request goes to, and at which URL. Pure: plain values in, values out.

A configured model decides; without one, what speaks Anthropic's dialect goes to the Anthropic upstream and all else
to the OpenAI one. `litellm_params.model` is LiteLLM's "provider/name"; what the provider's word means here is
`family_of`'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from accordion.core.errors import BadRequest, NotFound
from accordion.core.ports import Route
from accordion.core.values import replace
from accordion.upstream.providers import AMBIENT, OPENAI_COMPATIBLE, PROVIDERS

Family = Literal["openai", "anthropic", "litellm"]

DEFAULT_NAMES = frozenset({"openai", "anthropic"})
"""The names of the two default upstreams; no configured model may have them."""

Pattern = Callable[[str], Route | None]
"""Gives the route of a model by its name; None where the name does not fit."""

Upstreams = Mapping[str, tuple[str, str]]
"""Base URL and key of the default upstream, by family."""

_RESOLVED = 1_000
_NATIVE: Mapping[str, Family] = {"chat": "openai", "responses": "openai", "messages": "anthropic"}


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of `model_list`, in plain values. What may hold a secret is left out of its repr."""

    name: str
    model: str
    api_base: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    extra_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    options: tuple[tuple[str, object], ...] = field(default=(), repr=False)
    """The other `litellm_params`; of use to LiteLLM only."""


class Routes:
    """Where requests go: the configured models, and the two default upstreams for all others."""

    __slots__ = ("_anthropic", "_openai", "_patterns", "_resolved", "models")

    def __init__(
        self,
        openai_base: str,
        anthropic_base: str,
        models: Mapping[str, Route],
        *,
        openai_key: str = "",
        anthropic_key: str = "",
        patterns: Sequence[Pattern] = (),
    ) -> None:
        self._patterns, self._resolved = tuple(patterns), dict[str, Route | None]()
        self._openai = Route("openai", "openai", _base("openai", openai_base), api_key=openai_key)
        self._anthropic = Route("anthropic", "anthropic", _base("anthropic", anthropic_base), api_key=anthropic_key)
        self.models: Mapping[str, Route] = dict(models)
        """The configured models' routes by the name that clients ask for."""

    def route(self, path: str, anthropic: bool, model: str | None) -> Route:
        """The route of a request for `model` (None where its body names none).

        `anthropic` says that the request carries `anthropic-version`; a path below /v1/messages needs no header.
        """
        if model is not None:
            configured = self.models.get(model) or (self._by_pattern(model) if self._patterns else None)
            if configured is not None:
                return configured
        return self._anthropic if anthropic or _is_messages(path) else self._openai

    def _by_pattern(self, model: str) -> Route | None:
        """The route of the first pattern that fits a name: the most particular pattern comes first."""
        if model not in self._resolved:
            if len(self._resolved) >= _RESOLVED:
                self._resolved.clear()
            found = (pattern(model) for pattern in self._patterns)
            self._resolved[model] = next((route for route in found if route is not None), None)
        return self._resolved[model]

    def for_dialect(self, route: Route, dialect: str) -> Route:
        """`for_dialect` as a method, for the Router port."""
        return for_dialect(route, dialect)

    def url(self, route: Route, path_and_query: str) -> str:
        """`url` as a method, for the Router port."""
        return url(route, path_and_query)


def routes_from(
    models: Iterable[ModelEntry],
    openai_base: str,
    anthropic_base: str,
    *,
    openai_key: str = "",
    anthropic_key: str = "",
) -> Routes:
    """Routes for the entries of `model_list`; entries of one name are its deployments, in their order. Raises
    ValueError for an entry that `family_of` does not understand."""
    upstreams: Upstreams = {"openai": (openai_base, openai_key), "anthropic": (anthropic_base, anthropic_key)}
    named: dict[str, list[ModelEntry]] = {}
    for entry in models:
        named.setdefault(entry.name, []).append(entry)
    routes = {name: _deployments([_route(entry, upstreams) for entry in entries]) for name, entries in named.items()}
    wild = sorted((name for name in named if "*" in name), key=lambda name: -len(name.replace("*", "")))
    return Routes(
        openai_base,
        anthropic_base,
        routes,
        openai_key=openai_key,
        anthropic_key=anthropic_key,
        patterns=[_pattern(name, named[name], upstreams) for name in wild],
    )


def _deployments(routes: Sequence[Route]) -> Route:
    return replace(routes[0], others=tuple(routes[1:])) if len(routes) > 1 else routes[0]


def _pattern(name: str, entries: Sequence[ModelEntry], upstreams: Upstreams) -> Pattern:
    """What gives the route of a model whose name fits `name`, in which each `*` stands for any text. The texts stand
    for the stars of the entry's `model`; `*` alone is the whole name, with its provider, as LiteLLM has it."""
    shape = re.compile("(.*)".join(re.escape(part) for part in name.split("*")), re.DOTALL)

    def route(model: str) -> Route | None:
        found = shape.fullmatch(model)
        if found is None:
            return None
        try:
            return _deployments(
                [
                    _route(replace(entry, model=_filled(entry.model, found.groups())), upstreams, model)
                    for entry in entries
                ]
            )
        except ValueError:
            return None

    return route


def _filled(model: str, texts: Sequence[str]) -> str:
    """The pattern `model` with these texts for its stars; stars that are left over stay out."""
    parts, given = model.split("*"), iter(texts)
    return parts[0] + "".join(next(given, "") + part for part in parts[1:])


def family_of(entry: ModelEntry) -> tuple[Family, str]:
    """How an entry's provider is spoken to, and the provider's own name for the model.

    `openai/name` natively; `anthropic/name` natively; servers known to speak OpenAI's protocol (`hosted_vllm/name`,
    ...) natively where they have an `api_base`; every other provider that LiteLLM knows through LiteLLM, under the
    whole `provider/name`. Without a provider it is OpenAI, and Anthropic for names that begin with `claude`, as in
    LiteLLM. `custom_llm_provider` among the options names the provider outright.
    Raises ValueError where no model is named or the provider is unknown.
    """
    provider, name = provider_of(entry)
    if not name:
        raise ValueError("it names no model; it must read `provider/name`")
    if provider == "anthropic":
        return "anthropic", name
    if provider == "openai" or (entry.api_base and provider in OPENAI_COMPATIBLE):
        return "openai", name
    return "litellm", entry.model


def for_dialect(route: Route, dialect: str) -> Route:
    """The route for a request that speaks `dialect` (`chat`, `responses`, `messages`; anything else: as it is).

    A configured model whose provider speaks another protocol goes by translation. The default upstreams are never
    translated for: what is sent there is what the client meant for them.
    """
    native = _NATIVE.get(dialect)
    if native is None or route.name in DEFAULT_NAMES:
        return route
    if route.family in (native, "litellm"):
        others = tuple(for_dialect(other, dialect) for other in route.others)
        return replace(route, others=others) if others != route.others else route
    others = tuple(for_dialect(other, dialect) for other in route.others)
    return replace(route, family="litellm", model=f"{route.family}/{route.model or route.name}", others=others)


def url(route: Route, path_and_query: str) -> str:
    """The upstream's URL for a request target such as "/v1/files/a%20b?limit=2", percent-encoded as it came.

    An OpenAI base stands for "/v1" itself, as `base_url` in OpenAI's SDK; an Anthropic base stands before "/v1", as in
    Anthropic's. A target that could leave the base is refused, not repaired: upstreams and libraries differ in how
    they resolve `..`, and a model's key must not open another path of its host.

    Raises NotFound outside /v1 and for translated models, BadRequest for a path with `..` segments.
    """
    if not path_and_query.startswith("/v1") or path_and_query[3:4] not in ("", "/", "?"):
        raise NotFound("There is no such path; the paths of providers begin with /v1.")
    if route.family == "litellm":
        raise NotFound(
            f"Model `{route.name}` is reached by translation, which serves chat completions, responses and messages."
        )
    if (".." in path_and_query or "%" in path_and_query) and _climbs(path_and_query.partition("?")[0]):
        raise BadRequest("A path with `..` segments is not forwarded; write the path without them.")
    if route.family == "openai":
        return f"{route.base_url}{path_and_query[3:]}"
    return f"{route.base_url}{path_and_query}"


def _route(entry: ModelEntry, upstreams: Upstreams, asked: str = "") -> Route:
    """The route of an entry; `asked` is the name that the client uses, where the entry's is a pattern. An entry without
    an `api_base` goes to its family's upstream, and without a key of its own with the key of that."""
    family, name = family_of(entry)
    base, key = upstreams.get(family, ("", ""))
    return Route(
        name=entry.name,
        family=family,
        base_url=_base(family, entry.api_base or base),
        # A name that need not change is not written again: such a request leaves byte for byte.
        model=None if family != "litellm" and name == (asked or entry.name) else name,
        api_key=entry.api_key or ("" if entry.api_base else key),
        extra_headers=entry.extra_headers,
        options=entry.options,
        ambient=family == "litellm" and not entry.api_key and provider_of(entry)[0] in AMBIENT,
    )


def provider_of(entry: ModelEntry) -> tuple[str, str]:
    """LiteLLM's word for an entry's provider, and the provider's own name for the model. Raises ValueError."""
    custom = dict(entry.options).get("custom_llm_provider")
    if isinstance(custom, str) and custom:
        return custom, entry.model.removeprefix(f"{custom}/")
    provider, slash, name = entry.model.partition("/")
    if not slash:
        return "anthropic" if entry.model.startswith("claude") else "openai", entry.model
    if provider not in PROVIDERS:
        raise ValueError(
            "its part before the first `/` is no provider that is known; "
            "write `openai/...` before the name of a model on an OpenAI-compatible server"
        )
    return provider, name


def _base(family: Family, base: str) -> str:
    """A base URL to which a path can be added: no slash at the end, and for Anthropic no /v1 either."""
    base = base.rstrip("/")
    if family == "anthropic":
        # LiteLLM takes either form of an Anthropic `api_base`.
        base = base.removesuffix("/v1/messages").removesuffix("/v1").rstrip("/")
    return base


def _is_messages(path: str) -> bool:
    return path.startswith("/v1/messages") and path[12:13] in ("", "/", "?")


def _climbs(path: str) -> bool:
    """Whether any server could take a segment for `..`: also encoded (more than once), behind `\\`, before `;`."""
    while (decoded := unquote(path)) != path:
        path = decoded
    return any(segment.partition(";")[0] == ".." for segment in path.replace("\\", "/").split("/"))
