"""The features of the program: their list, and the interface by which they reach the core.

Theory of operation. A feature is a package of `accordion.features`, and a line of `FEATURES` below. The package has the
constant `FEATURE`, which declares all that the feature adds to the program. The core never imports a feature. It looks
at the declarations where it has a place for features: `Application` opens each feature of a process, once, with the
services of the core, and gets a `RunningFeature` back, or None if the settings do not switch it on.

Importing the package of a feature must be cheap, since each start of the program does it. What a feature needs to run
is imported by `open`, when it is switched on, or later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from accordion.model.errors import MissingFeature

if TYPE_CHECKING:
    import typer
    from starlette.requests import Request
    from starlette.routing import Route as HttpRoute

    from accordion.accounting.calibration import LearnedLimits
    from accordion.archive.archive_reader import ArchiveReader
    from accordion.archive.feature_records import FeatureRecords
    from accordion.archive.transcripts import TranscriptStore
    from accordion.compaction.rendering import RequestRenderer
    from accordion.compaction.session_overrides import SessionOverrideStore
    from accordion.config import Settings
    from accordion.http.admin_api import Administration
    from accordion.http.metrics import Metrics
    from accordion.insertions.recall_source import RecallSource
    from accordion.insertions.store import InsertionStore
    from accordion.model.conversation import Conversation, Message
    from accordion.model.ports import Clock, Observer, Route, Tasks, TokenCounter, Translator, UpstreamResponse
    from accordion.pipeline.mentions import Mentions
    from accordion.pipeline.queries import Queries
    from accordion.pipeline.request_hooks import RequestHook
    from accordion.pipeline.response_hooks import ResponseHook
    from accordion.pipeline.sent_history import SentHistory
    from accordion.sessions.tenants import Caller, Tenants
    from accordion.stores.guarded import GuardedStore
    from accordion.stores.spool import SpooledStore
    from accordion.stores.write_queue import WriteQueue

CountMessage = Callable[["Message", "Conversation", str], int]

FEATURES = (
    "telemetry",
    "offline",
    "page",
    "translation",
    "client_compaction",
    "memory",
)  # fmt: skip
"""The features of this program, by the names of their packages. Without its line, a feature is not there."""


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """The services of the core that features may use. They live as long as the process.

    The settings in force, and what is built from them, are returned by functions, since they change.
    """

    settings: Callable[[], Settings]
    tenants: Callable[[], Tenants]
    queries: Callable[[], Queries]
    environ: Mapping[str, str]
    """The variables of the environment."""
    clock: Clock
    tasks: Tasks
    store: GuardedStore
    spooled: SpooledStore
    """The store behind the spool, in which writes wait while it is unavailable."""
    outbox: WriteQueue
    """The queue of writes that no request waits for."""
    archive_reader: ArchiveReader
    sent_history: SentHistory
    session_overrides: SessionOverrideStore
    learned_limits: LearnedLimits
    renderer: RequestRenderer
    count_message: CountMessage
    """Counts a message of a conversation for a model."""
    administration: Administration
    insertion_store: InsertionStore
    transcripts: TranscriptStore
    counter: TokenCounter
    metrics: Metrics
    page_views: Callable[[], Sequence[PageView]]
    """Returns the views that features add to the page."""


class PageView(msgspec.Struct, frozen=True):
    """A view that a feature adds to the page."""

    path: str
    """Its name in the address, below the page's other views."""
    title: str
    template: str
    """A template in the folder `templates` of `package`, which extends `base.html` of the page."""
    package: str
    read_values: Callable[[Request, Caller], Awaitable[Mapping[str, Any]]]
    """Returns the values of the template for a request of a caller that may see its tenant's data."""


class RunningFeature:
    """A feature that is switched on, in one process. What it does not override does nothing and costs nothing."""

    observers: Sequence[Observer] = ()
    """They get each exchange, after its response."""
    request_hooks: Sequence[RequestHook] = ()
    """They see each request that a protocol reads, and may take part in it (pipeline/request_hooks.py)."""
    page_views: Sequence[PageView] = ()
    """Views of the web page, if the program has one."""

    def mentions(self, settings: Settings) -> Mentions | None:
        """Returns what says which requests may hold or ask for content of the feature; called when settings change."""
        return None

    def requested_sources(self, settings: Settings) -> Sequence[RecallSource]:
        """Returns what inserts content that a request asks for by name, before all else is recalled."""
        return ()

    def recall_sources(self, settings: Settings) -> Sequence[RecallSource]:
        """Returns what recalls content unasked, after the archive's excerpts."""
        return ()

    def response_hooks(self, settings: Settings) -> Sequence[ResponseHook]:
        """Returns what acts on exchanges after their responses, with the request (pipeline/response_hooks.py)."""
        return ()

    def routes(self) -> Sequence[HttpRoute]:
        """Returns the routes that the feature adds to those of the API. Called once."""
        return ()

    async def start(self) -> None:
        """Begins the feature, when the process begins to serve."""

    def forget(self) -> None:
        """Drops what is in memory of the store, because another store took the place of the last one."""

    async def close(self) -> None:
        """Ends the feature, when the process ends."""


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a feature: all that it adds to the program."""

    open: Callable[[Core], RunningFeature | None] = lambda _: None
    """Opens the feature in a process of the proxy. Returns None if the settings or the environment do not switch it on,
    or if it has no part in a process."""
    add_commands: Callable[[typer.Typer], None] = lambda _: None
    """Adds the feature's commands to those of the program. The work of a command is imported when it runs."""
    greet: Callable[[Settings, str, str], str] = lambda *_: ""
    """Returns lines for the greeting of a proxy that starts, by its settings, base URL and owner's token."""
    records: FeatureRecords | None = None
    """The records that it keeps in the store for each tenant, by which the erasure and the list of tenants reach them.
    """
    create_translator: Callable[[], Translator] | None = None
    """Creates what gets the requests, in place of the upstream, for models whose provider has another protocol."""


def load_features() -> tuple[Feature, ...]:
    """Returns the declarations of all features, in their order."""
    return tuple(_load(name) for name in FEATURES)


def _load(name: str) -> Feature:
    feature: Feature = import_module(f"accordion.features.{name}").FEATURE
    return feature


def open_features(core: Core) -> tuple[RunningFeature, ...]:
    """Opens the features that are switched on, in their order."""
    opened = (feature.open(core) for feature in load_features())
    return tuple(feature for feature in opened if feature is not None)


def feature_records() -> tuple[FeatureRecords, ...]:
    """Returns the records that features keep in the store for each tenant."""
    return tuple(feature.records for feature in load_features() if feature.records is not None)


def create_translator() -> Translator:
    """Creates the translator of the feature that has one; without such a feature, one that refuses all requests."""
    creators = (feature.create_translator for feature in load_features())
    return next((create() for create in creators if create is not None), NoTranslator())


class NoTranslator:
    """The Translator port of a program without translation."""

    async def send(
        self, protocol_name: str, body: bytes, route: Route, credential: str, request_id: str = ""
    ) -> UpstreamResponse:
        """Raises MissingFeature."""
        raise MissingFeature("Translation between providers' protocols")

    async def close(self) -> None:
        """Has nothing to end."""
