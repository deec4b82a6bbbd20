"""The ports: the interfaces through which the inner packages use stores, providers, clocks and tasks.

The inner packages import only these; `stores/`, `providers/` and `server/` implement them, and `composition/` connects
both. Every port has a fake in tests/fakes.py and a contract suite in tests/contract/.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from accordion.model.budget import RefusedForm, Window
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.records import Exchange
from accordion.model.secret_names import without_secrets
from accordion.model.tenant import TenantScope

T = TypeVar("T")

Headers = tuple[tuple[bytes, bytes], ...]


class Key(msgspec.Struct, frozen=True):
    """The key of a stored value. Keys of one collection can be listed together and are on one shard.

    A key with an empty collection cannot be listed.
    """

    collection: str
    name: str

    @property
    def path(self) -> str:
        """Collection and name as one unique text. An encrypted value is bound to it."""
        return f"{self.collection}\n{self.name}"


class Put(msgspec.Struct, frozen=True, tag=True):
    """A write of a batch that sets the value of a key; with `if_absent`, only if the key has none.

    `ttl` is in seconds, None means no expiry. `for_erasing` marks a write that an erasure needs: it may use the disk
    space that a store reserves for erasures.
    """

    key: Key
    value: bytes
    ttl: float | None = None
    if_absent: bool = False
    for_erasing: bool = False


class Append(msgspec.Struct, frozen=True, tag=True):
    """A write of a batch that adds `value` to the end of the log `key`; only the newest `keep` entries stay."""

    key: Key
    value: bytes
    keep: int | None = None
    ttl: float | None = None
    if_absent: ClassVar[Literal[False]] = False


class ErasedWrites(msgspec.Struct, frozen=True):
    """Pending writes that were erased: the keys of values, and entries of logs.

    `stored_keys` must be deleted from the store too, if a part of the writes has reached it already.
    """

    keys: frozenset[Key] = frozenset()
    appends: frozenset[Append] = frozenset()
    stored_keys: frozenset[Key] = frozenset()

    def __contains__(self, write: Put | Append) -> bool:
        return write in self.appends if isinstance(write, Append) else write.key in self.keys


class KeyValueStore(Protocol):
    """A store of values and logs under keys. Every method may raise StoreUnavailable."""

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """Sets the value of a key."""

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """Sets the value of a key that has none; returns the key's value afterwards (the first writer's)."""

    async def get(self, key: Key) -> bytes | None:
        """Returns the value of a key, or None."""

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Returns the values in the order of the keys."""

    async def delete(self, keys: Sequence[Key]) -> int:
        """Removes values and logs; returns the number of keys that had any."""

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """Adds entries to the end of a log; returns the last one's position. Positions start at 0 and never repeat."""

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """Returns entries of a log in order, with positions, from `start` on; a negative one counts from the end."""

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Returns names and values of a collection, ordered by name, that come after the name `after`."""

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Makes several writes at once. It is no transaction across shards; each single write is atomic.

        Returns the present values of the keys whose `if_absent` put was not made.
        """

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """Tries to take a lock for at most `lease` seconds; the context's value says whether it was free."""

    @property
    def is_available(self) -> bool:
        """Whether the store answered the last request."""

    async def ping(self) -> None:
        """Returns when the store answers."""

    async def close(self) -> None:
        """Closes connections and files."""


class Sealer(Protocol):
    """Encrypts values before they reach a store. Quick; safe to use from several threads."""

    def seal(self, tenant: TenantScope, name: str, value: bytes) -> bytes:
        """Encrypts a tenant's value that is stored under `name` (a Key's `path`)."""

    def open(self, tenant: TenantScope, name: str, value: bytes) -> bytes | None:
        """Decrypts a value of this tenant and name; returns a value that is not encrypted as it is.

        Returns None if decryption fails; callers treat that as a missing value. Never raises.
        """


class UpstreamRequest(StructWithHiddenFields, frozen=True):
    """A request to a provider. `url` is complete, percent-encoded as it came; `body` may be an iterator of chunks."""

    hidden_fields = frozenset({"headers", "body"})

    method: str
    url: str
    headers: Headers
    body: bytes | AsyncIterator[bytes] = b""


class UpstreamResponse(Protocol):
    """A provider's response whose head has arrived. The body comes as it is on the wire, in its content encoding."""

    status: int
    headers: Headers
    is_delimited: bool
    """Whether the body has a length or is chunked; otherwise it ends when the connection ends."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body in chunks as they arrive. Raises UpstreamDisconnected or UpstreamTimeout."""

    async def close(self) -> None:
        """Releases the response; the connection of an unfinished one is closed, so that the provider notices."""


class Upstream(Protocol):
    """The connection to the providers."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Sends a request and waits for the head of the response.

        Raises Unreachable, UpstreamTimeout or UpstreamDisconnected.
        """

    async def close(self) -> None:
        """Closes all connections."""


Family = Literal["openai", "anthropic", "gemini", "azure", "vertex", "bedrock", "litellm"]
"""The APIs of providers: three makers, and three clouds with paths of their own; `litellm` by translation."""

_KEY_HEADERS: Mapping[Family, bytes] = {
    "anthropic": b"x-api-key", "gemini": b"x-goog-api-key", "azure": b"api-key",
}  # fmt: skip


class Route(StructWithHiddenFields, frozen=True):
    """The destination of a request. `name` is its label in metrics and learned limits.

    `family` is the provider's API. `model` replaces the request's model if it is not None. `api_key` is used for
    callers that can use configured keys (`Caller`), and sent to no other address than the route's.
    """

    hidden_fields = frozenset({"api_key", "extra_headers", "options"})

    name: str
    family: Family
    base_url: str = ""
    model: str | None = None
    api_key: str = ""
    extra_headers: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    """For `litellm`: the other `litellm_params`, passed on unchanged."""
    uses_machine_credentials: bool = False
    """Whether requests may use the credentials of the machine that the proxy runs on (a cloud identity)."""
    has_own_address: bool = False
    """Whether the model's entry names its address, so that it may need no key."""
    fallbacks: tuple[Route, ...] = ()
    """The other deployments of the same name, tried in order if this one does not take the request."""

    @property
    def is_translated(self) -> bool:
        """Whether LiteLLM translates the requests, since this proxy does not speak the provider's API."""
        return self.family == "litellm"

    def without_secrets(self) -> Route:
        """Returns the route for callers that cannot use configured keys: its headers and options, and those of its
        fallbacks, have no secret."""
        if not (self.extra_headers or self.options or self.fallbacks):
            return self
        return replace(
            self,
            extra_headers=without_secrets(self.extra_headers),
            options=without_secrets(self.options),
            fallbacks=tuple(each.without_secrets() for each in self.fallbacks),
        )

    @property
    def needs_callers_key(self) -> bool:
        """Whether a request needs the caller's own key: nothing else is configured to reach the provider with."""
        return not (self.api_key or self.extra_headers or self.has_own_address or self.uses_machine_credentials)

    def key_header(self, key: str) -> tuple[bytes, bytes]:
        """Returns the header with which the provider gets a key."""
        name = _KEY_HEADERS.get(self.family)
        return (name, key.encode()) if name is not None else (b"authorization", b"Bearer " + key.encode())


class Router(Protocol):
    """Chooses the provider of a request."""

    @property
    def models(self) -> Mapping[str, Route]:
        """The configured models by the name that clients use.

        If there are any, the model's name is also read from bodies of unknown protocols (protocols/model_name.py).
        """

    def route(self, family: Family, model: str | None) -> Route:
        """Returns the route of a model, or of the default upstream of a family if no configured model is named."""

    def for_protocol(self, route: Route, protocol_name: str) -> Route:
        """Returns the route, with translation if its provider does not support the protocol."""

    def url(self, route: Route, path_and_query: str) -> str:
        """Returns the complete URL."""


class Translator(Protocol):
    """Sends requests to providers whose protocol is not the client's."""

    async def send(
        self, protocol_name: str, body: bytes, route: Route, credential: str, request_id: str = ""
    ) -> UpstreamResponse:
        """Sends `body`, a request in the protocol of that name, to `route.model`.

        The response is in the same protocol, streamed if the body asks for that. `request_id` is the id of an error for
        which the provider gives none.
        """

    async def close(self) -> None:
        """Ends running requests."""


class TokenCounter(Protocol):
    """Counts tokens of text with a model's own encoding, or a substitute that is marked as one."""

    def encoding(self, model: str) -> str:
        """Returns the name of the encoding used for a model; counts of the same encoding may be cached and added."""

    def is_loaded(self, encoding: str) -> bool:
        """Whether an encoding is in memory; if not, the first count loads it, which takes tenths of a second."""

    def load(self, encoding: str) -> None:
        """Loads an encoding, and counts nothing."""

    def count(self, text: str, encoding: str) -> int:
        """Counts the tokens of `text`. Never fails; special tokens are counted as plain text."""


class WindowTable(Protocol):
    """Knows the context windows of models."""

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        """Returns the window of `model` at `upstream`; `beta` has the request's beta flags that change the window."""

    def learn(
        self,
        model: str,
        upstream: str,
        beta: str,
        tenant: str,
        limit: int,
        *,
        counts_output: bool = False,
        refused_form: RefusedForm = "",
        refused_fields: tuple[str, ...] = (),
    ) -> None:
        """Records the limit of an overflow error (0: it names none), for this tenant only and for a limited time.

        `counts_output`: the provider counts the requested output towards the window. `refused_form`: it refused a
        compacted list of this form.
        """

    def learn_listed(self, model: str, upstream: str, tenant: str, size: int) -> None:
        """Records the window that the upstream's own list of models names, for this tenant and a limited time."""


class Clock(Protocol):
    """A clock."""

    def now(self) -> float:
        """Returns the seconds since the epoch."""

    def monotonic(self) -> float:
        """Returns a time in seconds that never goes back."""


class Tasks(Protocol):
    """Runs work in the background or in threads."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Runs a coroutine in the background; its failure is logged."""

    def offload(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Runs a slow pure function in a thread."""

    def offload_alone(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Runs a function that needs much memory in a thread: one at a time, in the order of the calls."""


class Signal(Protocol):
    """An event that happens once; any number of tasks may wait for it."""

    def set(self) -> None:
        """Marks the event as happened."""

    async def wait(self) -> Any:
        """Returns when the event has happened."""


class Waiter(Protocol):
    """Waits, independently of the event loop's library."""

    def create_signal(self) -> Signal:
        """Returns a new signal."""

    async def wait_for(self, seconds: float, work: Awaitable[T]) -> T:
        """Returns the result of `work`; after `seconds` cancels it and raises TimeoutError."""


class Outbox(Protocol):
    """A write-behind queue: writes that no caller waits for. They reach the store soon, in batches.

    The last value of a key wins. A value is passed as a function that is called when the value is written, so that a
    value that is replaced before costs nothing. No method blocks or fails; writes that the store does not take are
    dropped and counted.
    """

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """Queues the value of a key."""

    def merge(
        self,
        key: Key,
        value: Callable[[bytes | None], bytes],
        on_absent: Callable[[], object],
        ttl: float | None = None,
    ) -> None:
        """Queues a value that depends on the key's stored value, in place of what is queued for the key.

        `value` is called with None for a put-if-absent, and again with the stored value if the key has one; otherwise
        `on_absent` is called. Another worker's write between the two is lost, as with a put.
        """

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """Queues an entry for the end of a log."""

    async def flush(self) -> None:
        """Returns when all writes queued so far were made or dropped."""


class WorkerSync(Protocol):
    """Shares between workers which of them recorded a prefix node. `node_id` is the id of a node (prefix_nodes.py).

    `is_connected` is False if the other workers cannot be reached; then nothing is known about any node.
    """

    is_connected: bool

    def announce(self, node_id: str) -> None:
        """Tells the other workers that this worker records a node."""

    def is_own(self, node_id: str) -> bool | None:
        """Whether only this worker recorded a node; None if no worker is known to have recorded it lately."""

    def is_pending(self, node_id: str) -> bool:
        """Whether another worker has recorded a node, so that its write reaches the store soon."""

    async def wait_briefly(self) -> None:
        """Waits a moment. A few of these moments are enough for other workers' writes to reach the store."""


class Observer(Protocol):
    """Receives every exchange, for metrics or traces. Must be quick and must not raise."""

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Handles the end of an exchange; `traceparent` is the client's own header, or empty."""


class SummaryCaller(StructWithHiddenFields, frozen=True):
    """The caller on whose behalf a summary is requested: route, headers and credential of the compacted request.

    `protocol_name` is that of the request, `model` its model; `can_use_configured_keys`: see `Caller`.
    """

    hidden_fields = frozenset({"headers", "credential"})

    tenant: str
    route: Route
    protocol_name: str
    model: str
    headers: Headers
    credential: str = ""
    can_use_configured_keys: bool = False
    cloud_target: str = ""
    """The request's own path and query without a credential, if its provider is a cloud with paths of its own."""


class SummaryRequest(msgspec.Struct, frozen=True):
    """A request for a summary: the system prompt, the user's text, and the longest response in tokens.

    `schema` is the JSON schema of the response for providers that have structured output. Others write free text.
    """

    instructions: str
    text: str
    max_tokens: int
    schema: dict[str, Any] | None = None


class SummaryLimits(msgspec.Struct, frozen=True):
    """The largest input and the longest answer of a request for a summary, in tokens."""

    input: int
    output: int


class SummaryResponse(msgspec.Struct, frozen=True):
    """The model's response, and the tokens that it used."""

    text: str
    model: str
    input: int = 0
    output: int = 0


class Summarizer(Protocol):
    """A model that writes summaries. Raises SummaryFailed."""

    def limits(self, caller: SummaryCaller) -> SummaryLimits:
        """Returns the limits of one request. Raises SummaryFailed if the model cannot be called."""

    async def write(self, request: SummaryRequest, caller: SummaryCaller) -> SummaryResponse:
        """Sends one request to the model."""
