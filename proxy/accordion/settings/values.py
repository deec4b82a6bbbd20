"""Every setting, with its default. What each means stands in config.yaml, where a person looks for it."""

from __future__ import annotations

import hashlib
import os.path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from accordion.settings.archiving import Archive
from accordion.settings.base import Count, Name, Seconds, Section
from accordion.settings.delegating import Delegation
from accordion.settings.folding import AllBudgets, Compaction, Summaries
from accordion.settings.kinds import BaseUrl, HeaderTable, Hidden, Secret, Size, StoreUrl
from accordion.settings.remembering import Remembering
from accordion.settings.thresholds import AllThresholds
from accordion.settings.unfolding import Unfold
from accordion.upstream.routes import ModelEntry

_SQLITE = "sqlite:///"
_STATE = "~/.local/state/accordion"


class Server(Section, frozen=True):
    """Where the proxy listens, and what it takes."""

    host: Name = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8787
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    max_body_bytes: Size = Size(64 << 20)
    idle_seconds: Seconds = 120.0
    head_seconds: Seconds = 60.0
    body_seconds: Seconds = 120.0
    shutdown_seconds: Annotated[int, msgspec.Meta(ge=0, le=3_600)] = 30
    tenant_key: Secret = Secret()
    responses_websocket: bool = True


class OpenAIUpstream(Section, frozen=True):
    """The default upstream of Chat Completions, Responses and all else that OpenAI's SDK asks for."""

    base_url: BaseUrl = BaseUrl("https://api.openai.com/v1")
    api_key: Secret = Secret()


class AnthropicUpstream(Section, frozen=True):
    """The default upstream of Anthropic's Messages."""

    base_url: BaseUrl = BaseUrl("https://api.anthropic.com")
    api_key: Secret = Secret()


class Upstreams(Section, frozen=True):
    """Where requests for models go that are not configured."""

    openai: OpenAIUpstream = OpenAIUpstream()
    anthropic: AnthropicUpstream = AnthropicUpstream()


class Timeouts(Section, frozen=True):
    """How long an upstream is waited for."""

    connect_seconds: Seconds = 10.0
    read_seconds: Seconds = 600.0


class Retries(Section, frozen=True):
    """How often is tried again what is safe to try again."""

    connect_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 2


class LitellmParams(Section, frozen=True):
    """Where a model is and how it is asked, in LiteLLM's words."""

    model: Name
    api_base: BaseUrl | None = None
    api_key: Secret = Secret()
    extra_headers: HeaderTable = HeaderTable()
    options: Hidden = Hidden()
    """All other keys of the entry."""


class ModelInfo(Section, frozen=True):
    """What is known of a model."""

    max_input_tokens: Count | None = None
    max_output_tokens: Count | None = None
    base_model: Name | None = None
    id: Name | None = None
    mode: Name | None = None
    options: Hidden = Hidden()
    """All other keys: prices, features and the like, of which LiteLLM makes use."""


class Model(Section, frozen=True):
    """One entry of `model_list`."""

    model_name: Name
    litellm_params: LitellmParams
    model_info: ModelInfo = ModelInfo()

    def entry(self) -> ModelEntry:
        """The same in plain values, secrets included, for routes to be made from."""
        params = self.litellm_params
        return ModelEntry(
            name=self.model_name,
            model=params.model,
            api_base=params.api_base or "",
            api_key=params.api_key.reveal(),
            extra_headers=tuple(params.extra_headers.items()),
            options=tuple(params.options.items()),
        )


class ProxyKey(Section, frozen=True):
    """A key of the proxy's own; `id` names its tenant."""

    id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,128}\Z")]
    key: Secret


class Windows(Section, frozen=True):
    """What is assumed of a window that nobody states."""

    default: Count = 120_000
    learnt_hours: Annotated[float, msgspec.Meta(gt=0, le=87_600)] = 24.0


class Store(Section, frozen=True):
    """Where sessions, folds and the archive are kept."""

    url: StoreUrl = StoreUrl("sqlite:///~/.local/state/accordion/accordion.db")
    timeout_seconds: Seconds = 0.5
    write_timeout_seconds: Seconds = 3.0
    retention_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 30.0
    spool: Name | None = None
    spool_bytes: Size = Size(64 << 20)
    session_bytes: Size = Size(512 << 20)

    def spool_path(self) -> str:
        """The spool's file, one for each store; empty where it may be in memory, since that store is never away."""
        if self.spool is not None:
            return os.path.expanduser(self.spool)
        if file := self.file():
            return f"{file}.spool"
        if self.url.reveal() == "memory://":
            return ""
        return os.path.expanduser(f"{_STATE}/spool-{self.address_hash()}.db")

    def former_spool_path(self) -> str:
        """The file that former versions used for all stores that are no files; empty where this is none of those."""
        return "" if self.file() or not self.spool_path() else os.path.expanduser(f"{_STATE}/spool.db")

    def address_hash(self) -> str:
        """Tells stores apart by their address, without the credentials, options and spellings in it."""
        return hashlib.sha256(_address(self.url.reveal()).encode()).hexdigest()[:16]

    def file(self) -> str:
        """The SQLite file; empty for the other kinds of store."""
        url = self.url.reveal()
        return unquote(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else ""


def _address(url: str) -> str:
    """Kind, host, port and number of a server; a file's path; in one spelling."""
    if url.startswith(_SQLITE):
        return f"{_SQLITE}{os.path.realpath(unquote(url.removeprefix(_SQLITE)))}"
    parts = urlsplit(url)
    kind = "cluster" if parts.scheme.endswith("+cluster") else "server"
    number = dict(parse_qsl(parts.query)).get("db", "") or parts.path.strip("/")
    return f"{kind}://{parts.hostname or 'localhost'}:{parts.port or 6379}/{number.lstrip('0') or '0'}"


class Limits(Section, frozen=True):
    """What a worker keeps in memory at most."""

    body_cache_bytes: Size = Size(16 << 20)
    messages_per_request: Count = 20_000
    count_cache_entries: Count = 20_000
    sessions_in_memory: Count = 2_000
    exchanges_per_session: Count = 50
    fold_cache_bytes: Size = Size(128 << 20)
    reply_cache_bytes: Size = Size(32 << 20)
    cache_bytes: Size = Size(96 << 20)


class Logging(Section, frozen=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(Section, frozen=True):
    """All settings."""

    server: Server = Server()
    upstreams: Upstreams = Upstreams()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    model_list: tuple[Model, ...] = ()
    litellm_settings: Hidden = Hidden()
    router_settings: Hidden = Hidden()
    general_settings: Hidden = Hidden()
    environment_variables: Hidden = Hidden()
    proxy_keys: tuple[ProxyKey, ...] = ()
    windows: Windows = Windows()
    thresholds: AllThresholds = AllThresholds()
    compaction: Compaction = Compaction()
    summaries: Summaries = Summaries()
    unfold: Unfold = Unfold()
    delegation: Delegation = Delegation()
    memory: Remembering = Remembering()
    budgets: AllBudgets = AllBudgets()
    store: Store = Store()
    archive: Archive = Archive()
    limits: Limits = Limits()
    logging: Logging = Logging()

    def named(self) -> tuple[str, ...]:
        """The models about whose folding something of their own is said; all others are alike."""
        return tuple({**self.thresholds.models, **self.compaction.models, **self.budgets.models})
