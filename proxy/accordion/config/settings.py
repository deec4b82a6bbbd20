"""All settings with their defaults, a class for each section of the file. config.yaml explains each one."""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from accordion.accounting.key_limits import DollarsPerDay, KeyLimits, RequestsPerMinute, TokensPerDay
from accordion.archive.transcripts import Record
from accordion.compaction.request import RequestBudgets
from accordion.config.pipelines import DEFAULT_PIPELINE, PipelineEntry
from accordion.config.thresholds import AllThresholds
from accordion.config.value_types import (
    BaseUrl,
    CompactionMode,
    ConfigSection,
    Count,
    HeaderTable,
    Host,
    Keys,
    Name,
    RecordMode,
    Seconds,
    Secret,
    SecretMapping,
    Size,
    SocketMode,
    StoreUrl,
    is_loopback,
)
from accordion.model.costs import ModelPrice, Rates
from accordion.model.ports import Family
from accordion.model.shares import Share
from accordion.pipeline.upgrade import ModelSockets
from accordion.providers.http.routes import ModelEntry
from accordion.providers.models.prices import FIELDS, rates_from
from accordion.sessions.proxy_keys import ProxyKey

Dollars = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
"""US dollars for a million tokens."""
_MOST_FOR_A_TOKEN = 0.01
_NANODOLLARS_A_TOKEN = 1_000
"""The price of a token in nanodollars, where a million tokens cost a dollar."""
_SQLITE = "sqlite:///"
_STATE = "~/.local/state/accordion"

ModeName = Literal["auto", "observe", "off"]
Images = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_LARGEST_200K = 200_000
_CLAUDE_BODIES = {"anthropic": 32_000_000, "bedrock": 20_000_000, "vertex_ai": 30_000_000}

WRITERS = ("request", "extractive")
"""The fixed values of `summaries.writer`. Any other value is the name of a model."""

RULES = "rules"
"""The value of `memory.writer` for the rules. Any other value is the name of a model."""


class ModelPriceConfig(ConfigSection, frozen=True):
    """The prices of one model. Cached input and cache writes cost as much as other input if they are not set."""

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None

    def price(self) -> ModelPrice:
        """Returns the price."""
        cached = self.input if self.cached_input is None else self.cached_input
        cache_write = self.input if self.cache_write is None else self.cache_write
        figures = (self.input, cached, cache_write, self.output)
        return ModelPrice(Rates(*(figure * _NANODOLLARS_A_TOKEN for figure in figures)), "config")


class PricesConfig(ConfigSection, frozen=True):
    """The `prices` section: prices that replace those of the model table."""

    models: dict[str, ModelPriceConfig] = msgspec.field(default_factory=dict)


def price_from_litellm(values: Mapping[str, Any]) -> ModelPrice | None:
    """Returns the price in an entry's `model_info` or `litellm_params`; None if they have none.

    Raises ValueError for a price that is not a number of at least 0; its argument is the key.
    """
    prices: dict[str, float] = {}
    for name in FIELDS:
        value = values.get(name)
        if value is None:
            continue
        try:
            prices[name] = float(value)
        except (TypeError, ValueError):
            raise ValueError(name) from None
        if not 0 <= prices[name] <= _MOST_FOR_A_TOKEN:
            raise ValueError(name)
    rates = rates_from(prices)
    return ModelPrice(Rates(*rates), "config") if rates is not None else None


class ServerConfig(ConfigSection, frozen=True):
    """The `server` section: address, workers, limits of connections and bodies."""

    host: Host = Host("127.0.0.1")
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8787
    base_path: Annotated[str, msgspec.Meta(pattern=r"\A(/[A-Za-z0-9._~-]{1,100}){0,8}\Z")] = ""
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    max_body_bytes: Size = Size(64 << 20)
    idle_seconds: Seconds = 120.0
    shutdown_seconds: Annotated[int, msgspec.Meta(ge=0, le=3_600)] = 30
    tenant_key: Secret = Secret()
    responses_websocket: SocketMode = SocketMode("read")

    @property
    def model_sockets(self) -> ModelSockets:
        """What is done with WebSockets of models."""
        return cast("ModelSockets", str(self.responses_websocket))


class OpenAIUpstream(ConfigSection, frozen=True):
    """The default upstream of Chat Completions, Responses and the other paths of OpenAI's SDK."""

    base_url: BaseUrl = BaseUrl("https://api.openai.com/v1")
    api_key: Secret = Secret()


class AnthropicUpstream(ConfigSection, frozen=True):
    """The default upstream of Anthropic's Messages."""

    base_url: BaseUrl = BaseUrl("https://api.anthropic.com")
    api_key: Secret = Secret()


class GeminiUpstream(ConfigSection, frozen=True):
    """The default upstream of Google's Gemini API."""

    base_url: BaseUrl = BaseUrl("https://generativelanguage.googleapis.com")
    api_key: Secret = Secret()


class AzureUpstream(ConfigSection, frozen=True):
    """The upstream of Azure OpenAI's paths."""

    base_url: BaseUrl | None = None
    api_key: Secret = Secret()


class VertexUpstream(ConfigSection, frozen=True):
    """The upstream of Vertex AI's paths."""

    base_url: BaseUrl | None = None
    api_key: Secret = Secret()


class BedrockUpstream(ConfigSection, frozen=True):
    """The upstream of Amazon Bedrock's paths."""

    base_url: BaseUrl | None = None
    api_key: Secret = Secret()


class UpstreamsConfig(ConfigSection, frozen=True):
    """The upstreams of models that are not configured."""

    openai: OpenAIUpstream = OpenAIUpstream()
    anthropic: AnthropicUpstream = AnthropicUpstream()
    gemini: GeminiUpstream = GeminiUpstream()
    azure: AzureUpstream = AzureUpstream()
    vertex: VertexUpstream = VertexUpstream()
    bedrock: BedrockUpstream = BedrockUpstream()

    def by_family(self) -> dict[Family, tuple[BaseUrl, Secret]]:
        """Returns the base URL and the key of the upstreams that are set, by the family of their APIs."""
        upstreams: dict[Family, tuple[BaseUrl | None, Secret]] = {
            "openai": (self.openai.base_url, self.openai.api_key),
            "anthropic": (self.anthropic.base_url, self.anthropic.api_key),
            "gemini": (self.gemini.base_url, self.gemini.api_key),
            "azure": (self.azure.base_url, self.azure.api_key),
            "vertex": (self.vertex.base_url, self.vertex.api_key),
            "bedrock": (self.bedrock.base_url, self.bedrock.api_key),
        }
        return {family: (base, key) for family, (base, key) in upstreams.items() if base is not None}


class TimeoutsConfig(ConfigSection, frozen=True):
    """Time-outs of upstreams."""

    connect_seconds: Seconds = 10.0
    read_seconds: Seconds = 600.0


class RetriesConfig(ConfigSection, frozen=True):
    """Attempts of operations that are safe to repeat."""

    connect_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 2


class LitellmParams(ConfigSection, frozen=True):
    """A model's address and parameters, with LiteLLM's names."""

    model: Name
    api_base: BaseUrl | None = None
    api_key: Secret = Secret()
    extra_headers: HeaderTable = HeaderTable()
    options: SecretMapping = SecretMapping()
    """All other keys of the entry."""


class ModelInfo(ConfigSection, frozen=True):
    """Properties of a model."""

    max_input_tokens: Count | None = None
    max_output_tokens: Count | None = None
    base_model: Name | None = None
    options: SecretMapping = SecretMapping()
    """All other keys, which LiteLLM uses: `id`, `mode`, prices and others."""


class ModelConfig(ConfigSection, frozen=True):
    """One entry of `model_list`."""

    model_name: Name
    litellm_params: LitellmParams
    model_info: ModelInfo = ModelInfo()

    def entry(self) -> ModelEntry:
        """Returns the entry in plain values, secrets included, for the routes."""
        params = self.litellm_params
        return ModelEntry(
            name=self.model_name,
            model=params.model,
            api_base=params.api_base or "",
            api_key=params.api_key.reveal(),
            extra_headers=tuple(params.extra_headers.items()),
            options=tuple(params.options.items()),
        )

    def price(self) -> ModelPrice | None:
        """Returns the price that the entry has in LiteLLM's keys; None if it has none. Raises ValueError."""
        return price_from_litellm({**self.litellm_params.options, **self.model_info.options})


class ProxyKeyConfig(ConfigSection, frozen=True):
    """A key of the proxy's own; `id` names its tenant."""

    id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,128}\Z")]
    key: Secret
    tokens_per_day: TokensPerDay = 0
    dollars_per_day: DollarsPerDay = 0.0
    requests_per_minute: RequestsPerMinute = 0

    def proxy_key(self) -> ProxyKey:
        """Returns the key with its limits, the secret included."""
        limits = KeyLimits(self.tokens_per_day, self.dollars_per_day, self.requests_per_minute)
        return ProxyKey(self.id, self.key.reveal(), limits)


class WindowsConfig(ConfigSection, frozen=True):
    """The window of unknown models."""

    default: Count = 120_000


class AgentCompaction(ConfigSection, frozen=True):
    """Compaction for one kind of agent. Omitted keys have the value of the next more general section."""

    mode: CompactionMode | None = None
    pipeline: tuple[PipelineEntry, ...] | None = None


class ModelCompaction(AgentCompaction, frozen=True):
    """Compaction for one model."""

    delegated: AgentCompaction = AgentCompaction()


class CompactionConfig(ConfigSection, frozen=True):
    """The `compaction` section: whether requests are compacted, and by which strategies."""

    mode: CompactionMode = CompactionMode("auto")
    pipeline: tuple[PipelineEntry, ...] = DEFAULT_PIPELINE
    pinned_tools: tuple[Name, ...] = ()
    pin_tag: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,63})?$")] = "keep"
    holdout: Share = Share(0.0)
    stop_if_worse: bool = False
    delegated: AgentCompaction = AgentCompaction()
    models: dict[str, ModelCompaction] = msgspec.field(default_factory=dict)

    def mode_of(self, model: str, *, delegated: bool = False) -> ModeName:
        """Returns the mode for a model by the clients' name; `delegated` for requests of sub-agents."""
        modes = (section.mode for section in self._sections(model, delegated=delegated) if section.mode is not None)
        return cast(ModeName, str(next(modes, self.mode)))

    def pipeline_of(self, model: str, *, delegated: bool = False) -> tuple[PipelineEntry, ...]:
        """Returns a model's strategies in order."""
        sections = self._sections(model, delegated=delegated)
        pipelines = (section.pipeline for section in sections if section.pipeline is not None)
        return next(pipelines, self.pipeline)

    def writer_of(self, model: str, *, delegated: bool = False) -> str:
        """Returns the model that the pipeline sets for summaries; empty if the `summaries` section decides."""
        models = (entry.build().summary_model for entry in self.pipeline_of(model, delegated=delegated))
        return next((each for each in models if each is not None), "")

    def _sections(self, model: str, *, delegated: bool) -> Iterator[AgentCompaction]:
        """Yields the sections that may override the general one, the most specific first, as with thresholds."""
        own = self.models.get(model)
        if own is not None:
            if delegated:
                yield own.delegated
            yield own
        if delegated:
            yield self.delegated


_SummaryInstructions = Annotated[str, msgspec.Meta(max_length=4_000)]


class ModelSummaries(ConfigSection, frozen=True):
    """The summaries of one model's conversations. Omitted keys have the value for all models."""

    instructions: _SummaryInstructions | None = None


class SummariesConfig(ConfigSection, frozen=True):
    """The `summaries` section: the writer, its instructions, its time limit, and the longest wait for it."""

    writer: Name = "request"
    instructions: _SummaryInstructions = ""
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 20.0
    timeout_seconds: Seconds = 180.0
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8
    models: dict[str, ModelSummaries] = msgspec.field(default_factory=dict)

    def instructions_for(self, model: str) -> str:
        """Returns the user's instructions for summaries of a model's conversations, by the clients' name."""
        own = self.models.get(model, ModelSummaries()).instructions
        return self.instructions if own is None else own

    @property
    def model(self) -> str:
        """The configured model that writes summaries; empty if there is none."""
        return "" if self.writer in WRITERS else self.writer


class ModelBudgets(ConfigSection, frozen=True):
    """The limits of one model's provider. Omitted keys have the value for all models."""

    max_body_bytes: Size | None = None
    max_images: Images | None = None


class AllBudgets(ModelBudgets, frozen=True):
    """The `budgets` section: the providers' limits beside tokens; 0: no limit."""

    models: dict[str, ModelBudgets] = msgspec.field(default_factory=dict)

    def of(self, model: str, provider: str, window: int = 0) -> RequestBudgets:
        """Returns the limits of a model by the clients' name.

        `provider` is a name for `provider_budgets`, `window` is in tokens (0: unknown).
        """
        own, documented = self.models.get(model, self), provider_budgets(provider, window)
        sizes = (own.max_body_bytes, self.max_body_bytes, documented.max_body_bytes)
        images = (own.max_images, self.max_images, documented.max_images)
        return RequestBudgets(*(next(limit for limit in limits if limit is not None) for limits in (sizes, images)))


def provider_budgets(provider: str, window: int = 0) -> RequestBudgets:
    """Returns a provider's documented limits.

    `provider` is `anthropic` or `openai`, for compatible servers too, or `bedrock` or `vertex_ai` for Claude models.
    Anthropic: 32 MB, 20 on Bedrock, 30 on Vertex AI (its API overview), and 100 images, 600 for models with more than
    200,000 tokens of window (its vision guide). OpenAI: 512 MB and 1,500 images (its guide to images; the older 50 MB
    and 500 are no longer in it). Other providers have no known limits.
    """
    if provider in _CLAUDE_BODIES:
        return RequestBudgets(
            max_body_bytes=_CLAUDE_BODIES[provider], max_images=600 if window > _LARGEST_200K else 100
        )
    if provider == "openai":
        return RequestBudgets(max_body_bytes=512_000_000, max_images=1_500)
    return RequestBudgets()


class StoreConfig(ConfigSection, frozen=True):
    """The store of sessions, compactions and the archive, and its spool."""

    url: StoreUrl = StoreUrl("sqlite:///~/.local/state/accordion/accordion.db")
    timeout_seconds: Seconds = 0.5
    write_timeout_seconds: Seconds = 3.0
    retention_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 30.0
    spool: Name | None = None
    spool_bytes: Size = Size(64 << 20)
    session_bytes: Size = Size(512 << 20)

    def spool_path(self) -> str:
        """Returns the spool's file, one for each store; empty for a store in memory, which is always available."""
        if self.spool is not None:
            return os.path.expanduser(self.spool)
        if file := self.file():
            return f"{file}.spool"
        if self.url.reveal() == "memory://":
            return ""
        return os.path.expanduser(f"{_STATE}/spool-{self.address_hash()}.log")

    def address_hash(self) -> str:
        """Returns a hash of the store's normalized address, without credentials and options."""
        return hashlib.sha256(_address(self.url.reveal()).encode()).hexdigest()[:16]

    def file(self) -> str:
        """Returns the SQLite file; empty for other stores."""
        url = self.url.reveal()
        return unquote(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else ""


def _address(url: str) -> str:
    """Returns the normalized address: kind, host, port and database of a server, or a file's path."""
    if url.startswith(_SQLITE):
        return f"{_SQLITE}{os.path.realpath(unquote(url.removeprefix(_SQLITE)))}"
    parts = urlsplit(url)
    kind = "cluster" if parts.scheme.endswith("+cluster") else "server"
    number = dict(parse_qsl(parts.query)).get("db", "") or parts.path.strip("/")
    return f"{kind}://{parts.hostname or 'localhost'}:{parts.port or 6379}/{number.lstrip('0') or '0'}"


class ArchiveConfig(ConfigSection, frozen=True):
    """The `archive` section: key, size, retention and recorded transcripts."""

    key: Keys = Keys()
    max_bytes: Size = Size(2 << 30)
    retention_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 30.0
    record: RecordMode = RecordMode("compacted")

    @property
    def record_mode(self) -> Record:
        """The conversations whose transcripts are recorded."""
        return cast(Record, str(self.record))


class DelegationConfig(ConfigSection, frozen=True):
    """The `delegation` section: the tools for delegations (names, or patterns with *), and the limits of a tree."""

    tools: tuple[Name, ...] = ("Task", "Agent", "task", "delegate_to_*")
    handoff_tools: tuple[Name, ...] = ("transfer_to_*", "transfer_back_to_*", "handoff_to_*")
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    max_agents: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 256


class RecallConfig(ConfigSection, frozen=True):
    """The largest recall for one turn, as a share of the window and in tokens (0: none).

    `embedding`: sentences are also ranked by the embedding.
    """

    share: Share = Share(0.03)
    tokens: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 2_000
    embedding: bool = False


class ReadBackConfig(ConfigSection, frozen=True):
    """Whether the model may read back, how many rounds a response may have, and the automatic recall."""

    tool: bool = True
    max_rounds: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    recall: RecallConfig = RecallConfig()


class EndpointModel(ConfigSection, frozen=True):
    """A model of `model_list` or, with `api_base`, any model at that URL."""

    model: Name
    api_base: BaseUrl | None = None
    api_key: Secret = Secret()
    timeout_seconds: Seconds = 5.0
    max_characters: Count = 2_000


class EmbeddingModel(EndpointModel, frozen=True):
    """A model that computes embeddings."""

    dimensions: Count | None = None


class MemoryRecallConfig(ConfigSection, frozen=True):
    """Automatic recall: the limits of a turn's memories, their least relevance, and the longest wait."""

    enabled: bool = False
    tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 800
    memories: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    relevance: Share = Share(0.75)
    wait_seconds: Annotated[float, msgspec.Meta(gt=0, le=30)] = 0.5
    all_projects: bool = False


class MemoryConfig(ConfigSection, frozen=True):
    """The `memory` section.

    `project` is the project of calls that name none (empty: none). With `after_compaction`, compactions write memories.
    """

    enabled: bool = True
    project: Annotated[str, msgspec.Meta(max_length=200)] = ""
    after_compaction: bool = False
    writer: Name = RULES
    recall: MemoryRecallConfig = MemoryRecallConfig()
    embeddings: EmbeddingModel | None = None
    rerank: EndpointModel | None = None

    @property
    def model(self) -> str:
        """The model that writes memories; empty if the rules do."""
        return "" if self.writer == RULES else self.writer

    def endpoint_models(self) -> tuple[tuple[str, EndpointModel], ...]:
        """Returns the configured endpoint models with their keys."""
        models: tuple[tuple[str, EndpointModel | None], ...] = (
            ("embeddings", self.embeddings),
            ("rerank", self.rerank),
        )
        return tuple((name, model) for name, model in models if model is not None)


class LimitsConfig(ConfigSection, frozen=True):
    """The largest caches of a worker."""

    body_cache_bytes: Size = Size(16 << 20)
    messages_per_request: Count = 20_000
    sessions_in_memory: Count = 2_000
    compaction_cache_bytes: Size = Size(32 << 20)
    response_cache_bytes: Size = Size(32 << 20)
    cache_bytes: Size = Size(90 << 20)


class LoggingConfig(ConfigSection, frozen=True):
    """The level and the format of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(ConfigSection, frozen=True):
    """All settings."""

    server: ServerConfig = ServerConfig()
    upstreams: UpstreamsConfig = UpstreamsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    retries: RetriesConfig = RetriesConfig()
    model_list: tuple[ModelConfig, ...] = ()
    litellm_settings: SecretMapping = SecretMapping()
    router_settings: SecretMapping = SecretMapping()
    general_settings: SecretMapping = SecretMapping()
    environment_variables: SecretMapping = SecretMapping()
    proxy_keys: tuple[ProxyKeyConfig, ...] = ()
    admin_key: Secret = Secret()
    windows: WindowsConfig = WindowsConfig()
    prices: PricesConfig = PricesConfig()
    thresholds: AllThresholds = AllThresholds()
    compaction: CompactionConfig = CompactionConfig()
    summaries: SummariesConfig = SummariesConfig()
    read_back: ReadBackConfig = ReadBackConfig()
    delegation: DelegationConfig = DelegationConfig()
    memory: MemoryConfig = MemoryConfig()
    budgets: AllBudgets = AllBudgets()
    store: StoreConfig = StoreConfig()
    archive: ArchiveConfig = ArchiveConfig()
    limits: LimitsConfig = LimitsConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def needs_proxy_key(self) -> bool:
        """Whether callers must send a proxy key."""
        return bool(self.proxy_keys or self.admin_key)

    @property
    def uses_configured_keys(self) -> bool:
        """Whether the keys of models and upstreams are used: for callers with a proxy key, or of this machine alone."""
        return self.needs_proxy_key or is_loopback(self.server.host)

    def model_prices(self) -> dict[str, ModelPrice]:
        """Returns the configured prices by the clients' names: those of `prices`, then those in `model_list`."""
        listed = {model.model_name: price for model in self.model_list if (price := model.price()) is not None}
        return listed | {name: entry.price() for name, entry in self.prices.models.items()}

    def configured_models(self) -> tuple[str, ...]:
        """Returns the models with their own thresholds, compaction, summaries or budgets; all others share the general
        ones."""
        sections = (self.thresholds.models, self.compaction.models, self.summaries.models, self.budgets.models)
        return tuple(dict.fromkeys(model for models in sections for model in models))
