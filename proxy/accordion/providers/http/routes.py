"""Routes: the provider, the URL and the key of a request. Pure functions of plain values.

A configured model has its own route. Other requests go to the default upstream of the family of APIs that they are for
(protocols/registry.py). `litellm_params.model` is LiteLLM's "provider/name"; `family_of` interprets the provider.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from accordion.model.cache import LONGEST_NAME
from accordion.model.errors import BadRequest, NotFound
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Family, Route
from accordion.protocols.clouds import find_cloud
from accordion.protocols.registry import PROTOCOLS, decode_path

_PROVIDER_NAMES = """
    a2a a2a_agent ai21 ai21_chat aiml aiohttp_openai amazon_nova anthropic anthropic_text apertis assemblyai
    auto_router aws_polly aws_textract azure azure_ai azure_speech azure_text baseten bedrock bedrock_mantle
    black_forest_labs bytez cerebras charity_engine chatgpt chutes clarifai cloudflare codestral cognition cohere
    cohere_chat cometapi compactifai cortecs cursor custom custom_openai darkbloom dashscope databricks datarobot
    deepgram deepinfra deepseek docker_model_runner dotprompt edenai elevenlabs empower fal_ai featherless_ai
    fireworks_ai friendliai galadriel gdc gemini gigachat github github_copilot gradient_ai groq helicone heroku
    hosted_vllm huggingface humanloop hyperbolic inception infinity jina_ai lambda_ai langflow langfuse langgraph
    lemonade libertai litellm_agent litellm_proxy llamafile lm_studio manus maritalk meta meta_llama milvus minimax
    mistral modelscope mongodb moonshot morph nadir nano-gpt nebius neosantara nlp_cloud novita nscale nvidia_nim
    nvidia_riva oci ollama ollama_chat oobabooga openai openai_like openrouter ovhcloud parasail perplexity petals
    pg_vector pinstripes poe predibase prism publicai qwen_ai_platform qwencloud ragflow recraft reducto replicate
    runwayml s3_vectors sagemaker sagemaker_chat sagemaker_nova sail sambanova sap scaleway scx-ai snowflake soniox
    stability strands_decider synthetic tencent tensormesh text-completion-codestral text-completion-inception
    text-completion-openai together_ai topaz transcribe triton typesafe v0 valkey vercel_ai_gateway vertex_ai
    vertex_ai_beta vllm volcengine voyage wandb watsonx watsonx_text xai xiaomi_mimo xinference zai
"""

PROVIDERS = frozenset(_PROVIDER_NAMES.split())
"""LiteLLM's `LlmProviders`. A provider that a newer LiteLLM adds is named with `custom_llm_provider`."""

OPENAI_COMPATIBLE = frozenset(
    {"custom_openai", "hosted_vllm", "litellm_proxy", "llamafile", "lm_studio", "openai_like", "xinference"}
)
"""Servers that speak OpenAI's protocol at their `api_base`, so that no translation is needed."""

AMBIENT = frozenset(
    {"azure", "bedrock", "bedrock_mantle", "oci", "sagemaker", "sagemaker_chat", "sagemaker_nova"}
    | {"vertex_ai", "vertex_ai_beta", "watsonx", "watsonx_text"}
)
"""Clouds at which LiteLLM uses the credentials of its own machine if no key is given."""

_DEFAULT_NAMES: Mapping[Family, str] = {
    "openai": "openai", "anthropic": "anthropic", "gemini": "gemini-api", "azure": "azure-openai",
    "vertex": "vertex-ai", "bedrock": "amazon-bedrock",
}  # fmt: skip
DEFAULT_NAMES: frozenset[str] = frozenset(_DEFAULT_NAMES.values())
"""The names of the default upstreams, by the family of their APIs. No configured model may have such a name."""

_CLOUDS: Mapping[Family, str] = {"azure": "Azure OpenAI", "vertex": "Vertex AI", "bedrock": "Amazon Bedrock"}

Pattern = Callable[[str], Route | None]
"""Returns the route of a model by its name; None if the name does not match."""

Upstreams = Mapping[Family, tuple[str, str]]
"""Base URL and key of the default upstream, by family."""

_MOST_CACHED_NAMES = 1_000

_NATIVE: Mapping[str, Family] = {each.name: each.family for each in PROTOCOLS.values()}

_UPLOADS = "/upload"
_VERSION = re.compile(r"/v1(?:(?:alpha|beta)\d*)?(?=[/?]|$)")
"""The version at the beginning of a path: `/v1` of all providers, `/v1beta` and `/v1alpha` of Google's."""
_REPEATED_VERSION = re.compile(_VERSION.pattern + _VERSION.pattern)
"""Two versions at the beginning: the client adds one to a base URL that has one, such as Anthropic's SDK to `…/v1`."""
_OPENAI_VERSION = re.compile(r"/v1(?=[/?]|$)")
_LAST_VERSION = re.compile(r"/v1(?:(?:alpha|beta)\d*)?$")


class ModelEntry(StructWithHiddenFields, frozen=True):
    """One entry of `model_list`, in plain values. Fields that may hold a secret are left out of its repr."""

    hidden_fields = frozenset({"api_base", "api_key", "extra_headers", "options"})

    name: str
    model: str
    api_base: str = ""
    api_key: str = ""
    extra_headers: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    """The other `litellm_params`; only LiteLLM uses them."""


class RouteTable:
    """The routes of the configured models, and the default upstreams for all other requests."""

    __slots__ = ("_defaults", "_patterns", "_routes_by_name", "models")

    def __init__(self, upstreams: Upstreams, models: Mapping[str, Route], *, patterns: Sequence[Pattern] = ()) -> None:
        self._patterns, self._routes_by_name = tuple(patterns), dict[str, Route | None]()
        self._defaults: Mapping[Family, Route] = {
            family: Route(_DEFAULT_NAMES[family], family, _base(family, base), api_key=key)
            for family, (base, key) in upstreams.items()
        }
        self.models: Mapping[str, Route] = dict(models)
        """The configured models' routes by the name that clients use."""

    def route(self, family: Family, model: str | None) -> Route:
        """Returns the route of a request for `model` (None if it names none); `family` is that of the API it is for.

        The paths of clouds lead to the cloud's upstream whichever model they name. Raises NotFound if it is not set.
        """
        if model is not None and family not in _CLOUDS:
            model_route = self.models.get(model) or (self._by_pattern(model) if self._patterns else None)
            if model_route is not None:
                return model_route
        if family not in self._defaults:
            raise NotFound(
                f"This path is one of {_CLOUDS[family]}. Set upstreams.{family}.base_url in config.yaml to forward it."
            )
        return self._defaults[family]

    def _by_pattern(self, model: str) -> Route | None:
        """Returns the route of the first pattern that matches a name; the most specific pattern comes first."""
        if len(model) > LONGEST_NAME:
            return None
        if model not in self._routes_by_name:
            if len(self._routes_by_name) >= _MOST_CACHED_NAMES:
                self._routes_by_name.clear()
            matches = (pattern(model) for pattern in self._patterns)
            self._routes_by_name[model] = next((route for route in matches if route is not None), None)
        return self._routes_by_name[model]

    def for_protocol(self, route: Route, protocol_name: str) -> Route:
        """Returns the route of a request in the protocol of that name, as the function `for_protocol` does.

        A model that LiteLLM reaches as `gemini/name` needs no translation for a client of Google's protocol.
        """
        family = _NATIVE.get(protocol_name)
        if family is None or family in _CLOUDS or not _names_provider(route, family):
            return for_protocol(route, protocol_name)
        fallbacks = tuple(self.for_protocol(other, protocol_name) for other in route.fallbacks)
        return replace(self._untranslated(route, family), fallbacks=fallbacks)

    def _untranslated(self, route: Route, family: Family) -> Route:
        """Returns the route to the provider itself; it has the default upstream's base URL and key if it has none."""
        default, name = self._defaults[family], (route.model or "").removeprefix(f"{family}/")
        return replace(
            route,
            family=family,
            base_url=_base(family, route.base_url) or default.base_url,
            model=None if name == route.name else name,
            api_key=route.api_key or ("" if route.base_url else default.api_key),
        )

    def url(self, route: Route, path_and_query: str) -> str:
        """`url` as a method, for the Router port."""
        return url(route, path_and_query)


def routes_from(models: Iterable[ModelEntry], upstreams: Upstreams) -> RouteTable:
    """Returns the routes of `model_list`. Entries with the same name are deployments of that model, in order.

    Raises ValueError for an entry that `family_of` does not understand.
    """
    entries_by_name: dict[str, list[ModelEntry]] = {}
    for entry in models:
        entries_by_name.setdefault(entry.name, []).append(entry)
    routes = {
        name: _join_deployments([_route(entry, upstreams) for entry in entries])
        for name, entries in entries_by_name.items()
    }
    wildcard_names = sorted(
        (name for name in entries_by_name if "*" in name), key=lambda name: -len(name.replace("*", ""))
    )
    patterns = [_compile_pattern(name, entries_by_name[name], upstreams) for name in wildcard_names]
    return RouteTable(upstreams, routes, patterns=patterns)


def _join_deployments(routes: Sequence[Route]) -> Route:
    return replace(routes[0], fallbacks=tuple(routes[1:])) if len(routes) > 1 else routes[0]


def _compile_pattern(name: str, entries: Sequence[ModelEntry], upstreams: Upstreams) -> Pattern:
    """Returns a Pattern for `name`, in which each `*` matches any text.

    These texts replace the stars of the entry's `model`. As in LiteLLM, `*` alone matches the whole name with its
    provider.
    """
    expression = re.compile("(.*)".join(re.escape(part) for part in name.split("*")), re.DOTALL)

    def route(model: str) -> Route | None:
        match = expression.fullmatch(model)
        if match is None:
            return None
        try:
            return _join_deployments(
                [
                    _route(replace(entry, model=_fill_pattern(entry.model, match.groups())), upstreams, model)
                    for entry in entries
                ]
            )
        except ValueError:
            return None

    return route


def _fill_pattern(model: str, texts: Sequence[str]) -> str:
    """Returns the pattern `model` with `texts` in place of its stars; surplus stars are removed."""
    parts, replacements = model.split("*"), iter(texts)
    return parts[0] + "".join(next(replacements, "") + part for part in parts[1:])


def family_of(entry: ModelEntry) -> tuple[Family, str]:
    """Returns the family of an entry's provider, and the provider's own name for the model.

    `openai/name` and `anthropic/name` are native, and so are servers known to speak OpenAI's protocol
    (`hosted_vllm/name`, ...) that have an `api_base`. LiteLLM translates for all other providers that it knows, under
    the whole `provider/name`. Without a provider, names that begin with `claude` are Anthropic's and all others are
    OpenAI's, as in LiteLLM. The option `custom_llm_provider` sets the provider directly.
    Raises ValueError if no model is named or the provider is unknown.
    """
    provider, name = provider_of(entry)
    if not name:
        raise ValueError("it names no model; it must read `provider/name`")
    if provider == "anthropic":
        return "anthropic", name
    if provider == "openai" or (entry.api_base and provider in OPENAI_COMPATIBLE):
        return "openai", name
    return "litellm", entry.model


def for_protocol(route: Route, protocol_name: str) -> Route:
    """Returns the route of a request in the protocol of that name (for any other: unchanged).

    If the provider of a configured model speaks another protocol, LiteLLM translates. Requests to the default upstreams
    are never translated: the client chose their protocol.
    """
    native_family = _NATIVE.get(protocol_name)
    if native_family is None or route.name in DEFAULT_NAMES:
        return route
    if route.family in (native_family, "litellm"):
        fallbacks = tuple(for_protocol(other, protocol_name) for other in route.fallbacks)
        return replace(route, fallbacks=fallbacks) if fallbacks != route.fallbacks else route
    fallbacks = tuple(for_protocol(other, protocol_name) for other in route.fallbacks)
    return replace(route, family="litellm", model=f"{route.family}/{route.model or route.name}", fallbacks=fallbacks)


def _names_provider(route: Route, family: Family) -> bool:
    """Whether LiteLLM reaches the model at the provider that has the family's name."""
    return route.is_translated and (route.model or "").startswith(f"{family}/")


def url(route: Route, path_and_query: str) -> str:
    """Returns the upstream's URL for a request target such as "/v1/files/a%20b?limit=2"; its encoding is unchanged.

    An OpenAI base URL includes "/v1", like `base_url` in OpenAI's SDK; an Anthropic one does not, as in Anthropic's
    SDK. A target that could leave the base is refused, not repaired: upstreams and libraries resolve `..` in different
    ways, and a model's key must not open another path of its host.

    Raises NotFound for a path that does not begin with a version of the provider's, and for translated models,
    BadRequest for a path with `..` segments.
    """
    if not is_provider_path(path_and_query):
        raise NotFound("There is no such path; the paths of providers begin with /v1.")
    if route.is_translated:
        raise NotFound(
            f"Model `{route.name}` is reached by translation, which serves chat completions, responses and messages."
        )
    if (".." in path_and_query or "%" in path_and_query) and _has_dot_dot(path_and_query.partition("?")[0]):
        raise BadRequest("A path with `..` segments is not forwarded; write the path without them.")
    if route.family == "openai":
        # Without the slash after `/v1`, the rest of the path would belong to the base, or to its host.
        if _OPENAI_VERSION.match(path_and_query) is None:
            raise NotFound(f"There is no such path at {route.name!r}; its paths begin with /v1.")
        return f"{route.base_url}{path_and_query[3:]}"
    return f"{route.base_url}{path_and_query}"


def is_provider_path(path: str) -> bool:
    """Whether a path is a provider's: it begins with a version, or with Google's `/upload` and a version, or is one of
    a cloud. It is none if the version is repeated."""
    version_path = path.removeprefix(_UPLOADS)
    if _VERSION.match(version_path) is None:
        return find_cloud(path) is not None
    return _REPEATED_VERSION.match(version_path) is None


def _route(entry: ModelEntry, upstreams: Upstreams, requested_name: str = "") -> Route:
    """Returns the route of an entry. `requested_name` is the client's name for the model if the entry's is a pattern.

    An entry without an `api_base` uses its family's default upstream, and that upstream's key if it has none itself.
    """
    family, name = family_of(entry)
    base, key = upstreams.get(family, ("", ""))
    return Route(
        name=entry.name,
        family=family,
        base_url=_base(family, entry.api_base or base),
        # A name that stays the same is not rewritten, so that the request is forwarded byte for byte.
        model=None if family != "litellm" and name == (requested_name or entry.name) else name,
        api_key=entry.api_key or ("" if entry.api_base else key),
        extra_headers=entry.extra_headers,
        options=entry.options,
        has_own_address=bool(entry.api_base),
        uses_machine_credentials=family == "litellm" and not entry.api_key and provider_of(entry)[0] in AMBIENT,
    )


def provider_of(entry: ModelEntry) -> tuple[str, str]:
    """Returns LiteLLM's name for an entry's provider, and the provider's own name for the model. Raises ValueError."""
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
    """Returns a base URL to which a path can be added: without a slash at the end, and without a version for Anthropic
    and Google."""
    base = base.rstrip("/")
    if family in ("gemini", "vertex"):
        # LiteLLM's `api_base` has the version, the base URL of Google's SDK does not.
        base = _LAST_VERSION.sub("", base).rstrip("/")
    if family == "anthropic":
        # LiteLLM accepts either form of an Anthropic `api_base`.
        base = base.removesuffix("/v1/messages").removesuffix("/v1").rstrip("/")
    return base


def _has_dot_dot(path: str) -> bool:
    """Whether a server could read a segment as `..`: also encoded (more than once), after `\\`, before `;`."""
    return any(segment.partition(";")[0] == ".." for segment in decode_path(path).replace("\\", "/").split("/"))
