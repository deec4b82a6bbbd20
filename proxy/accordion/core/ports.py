"""The ports: what the inner rooms need from the outer ring, and nothing more.

Every port has a fake in tests/fakes.py and a contract suite in tests/contract/.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Any, Literal, Protocol, TypeVar

from accordion.core.budget import Window
from accordion.core.records import Exchange
from accordion.core.values import dataclass

T = TypeVar("T")

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """Where a value is kept. Keys of one collection can be listed together and live on one shard.

    A key with an empty collection stands alone and cannot be listed.
    """

    collection: str
    name: str

    @property
    def path(self) -> str:
        """Both in one text, that no other key has: what a sealed value is bound to."""
        return f"{self.collection}\n{self.name}"


@dataclass(frozen=True, slots=True)
class Put:
    """One write of a batch: `value` replaces what `key` held, or, `if_absent`, gives way to it. `ttl` in seconds, None
    for ever. `for_erasing`: an erasure needs it, so it may use the space that a store reserves for that."""

    key: Key
    value: bytes
    ttl: float | None = None
    if_absent: bool = False
    for_erasing: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """One write of a batch: `value` goes to the end of the log `key`; only the newest `keep` stay."""

    key: Key
    value: bytes
    keep: int | None = None
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class ErasedWrites:
    """Waiting writes that were erased: values by key, and entries of logs. `stored`: what the store must not have
    either, where a part of them reached it already."""

    keys: frozenset[Key] = frozenset()
    appends: frozenset[Append] = frozenset()
    stored: frozenset[Key] = frozenset()

    def __contains__(self, write: Put | Append) -> bool:
        return write in self.appends if isinstance(write, Append) else write.key in self.keys


class ErasureLog(Protocol):
    """Knows what was erased, so that writes from before the erasure do not bring it back."""

    async def find_erased(self, writes: Sequence[Put | Append]) -> ErasedWrites:
        """What was erased of these waiting writes, and of what they list. Raises StoreUnavailable."""

    def lists(self, key: Key) -> bool:
        """Whether the value under a key lists others, so that they can be erased."""


class Store(Protocol):
    """Bytes under keys, and logs of bytes under keys. Every method may raise StoreUnavailable."""

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """Keep `value` under `key`, in place of what was there."""

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """Keep `value` unless the key holds one; returns what the key holds afterwards (the first writer's)."""

    async def get(self, key: Key) -> bytes | None:
        """The value, or None."""

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The values in the order of the keys."""

    async def delete(self, keys: Sequence[Key]) -> int:
        """Remove values and logs; returns how many keys held something."""

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """Add to the end of a log; returns the last one's position. Positions start at 0 and never repeat."""

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """Entries of a log in order, with positions, from `start` on; a negative one counts from the end."""

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Names and values of a collection, ordered by name, from behind the name `after` on."""

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Many writes in one go; returns what those keys held to which a put gave way. Not a transaction across shards;
        each write is whole."""

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """Try to hold a lock for at most `lease` seconds; gives True if held, False if someone else holds it."""

    @property
    def available(self) -> bool:
        """Whether the store answered when it was last asked."""

    async def ping(self) -> None:
        """Return when the store answers."""

    async def close(self) -> None:
        """Let go of everything."""


class Sealer(Protocol):
    """What makes values unreadable for all but this program, before they reach a store. Quick; safe in threads."""

    def seal(self, space: bytes, name: str, value: bytes) -> bytes:
        """`value` as it is to be stored under `name` (a Key's `path`), for the tenant whose key is `space`."""

    def open(self, space: bytes, name: str, value: bytes) -> bytes | None:
        """What was sealed for this tenant under this name; a value that never was is given as it is. None where it
        cannot be opened, which to callers is as if it were missing. Never raises."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What goes to a provider. `url` is complete, percent-encoded as it came; `body` is whole or comes in pieces."""

    method: str
    url: str
    headers: Headers = field(repr=False)
    body: bytes | AsyncIterator[bytes] = field(default=b"", repr=False)


class UpstreamReply(Protocol):
    """A provider's answer whose head has arrived. The body comes as it is on the wire, content encoding and all."""

    status: int
    headers: Headers
    delimited: bool
    """Whether the body's end is marked (by a length, or in chunks); else it ends where the connection does."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body in pieces, each as soon as it arrives. Raises UpstreamCut or UpstreamTimeout."""

    async def close(self) -> None:
        """Let go; an unfinished reply's connection is closed, so that the provider notices."""


class Upstream(Protocol):
    """The way to the providers."""

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Send and wait for the head. Raises Unreachable, UpstreamTimeout or UpstreamCut."""

    async def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes. `name` labels it in metrics and learnt limits.

    `family` tells how: `openai` and `anthropic` natively, `litellm` by translation. `model` is written in place of
    the request's model where it is not None. `api_key` is used only for callers that presented a proxy key.
    """

    name: str
    family: Literal["openai", "anthropic", "litellm"]
    base_url: str = ""
    model: str | None = None
    api_key: str = field(default="", repr=False)
    extra_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    options: tuple[tuple[str, object], ...] = field(default=(), repr=False)
    """For `litellm`: the other `litellm_params`, handed on as they are."""
    ambient: bool = False
    """Whether the provider may be asked in the name of the machine that the proxy runs on (a cloud's identity)."""
    others: tuple[Route, ...] = ()
    """The other deployments of the same name, to be tried in order where this one does not take the request."""


class Router(Protocol):
    """Which provider a request goes to."""

    @property
    def models(self) -> Mapping[str, Route]:
        """The configured models by the name that clients ask for. Where there are any, bodies that no dialect reads
        are looked into for the model that they name (dialects/naming.py)."""

    def route(self, path: str, anthropic: bool, model: str | None) -> Route:
        """The route of a path, and of a model where one is named."""

    def for_dialect(self, route: Route, dialect: str) -> Route:
        """The same route, by translation where its provider does not speak the dialect."""

    def url(self, route: Route, path_and_query: str) -> str:
        """The complete address."""


class Translator(Protocol):
    """The way to providers that speak another protocol than the client."""

    async def send(
        self, dialect: str, body: bytes, route: Route, credential: str, request_id: str = ""
    ) -> UpstreamReply:
        """Ask `route.model` what `body` (in `dialect`) asks; the reply is in `dialect` too, streamed if asked so. An
        error that has no id of the provider's goes by `request_id`."""

    async def close(self) -> None:
        """End what runs."""


class TokenCounter(Protocol):
    """Counts tokens of text with a model's own encoding, or a flagged stand-in."""

    def encoding(self, model: str) -> str:
        """The name of the encoding used for a model; counts of one encoding may be kept and added."""

    def loaded(self, encoding: str) -> bool:
        """Whether counting with it starts at once; else the first count loads it, which takes tenths of a second."""

    def count(self, text: str, encoding: str) -> int:
        """Tokens of `text`. Never fails; special tokens are counted as the plain text that they are."""


class Windows(Protocol):
    """How large a model's window is."""

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        """The window of `model` at `upstream`; `beta` holds the request's window-changing beta flags."""

    def learn(self, model: str, upstream: str, beta: str, tenant: str, limit: int) -> None:
        """Remember a limit that an overflow error named, for this tenant alone; it expires."""


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class Tasks(Protocol):
    """Work that is not waited for, or that must not hold up others."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run in the background; failures are logged, never lost."""

    def offload(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Run a slow pure function in a thread."""

    def offload_alone(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """The same for one that needs much memory: one after the other, in the order of the calls."""


class Outbox(Protocol):
    """Writes that nobody waits for. They reach the store soon, together; the last value of a key wins.

    A value is given as what makes it, called when it is written: what is replaced before that costs nothing. No method
    blocks or fails; when the store is away for long, the oldest writes are dropped and counted.
    """

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """Keep a value under a key."""

    def merge(
        self, key: Key, value: Callable[[bytes | None], bytes], kept: Callable[[], object], ttl: float | None = None
    ) -> None:
        """Keep a value that is made of what the key holds by then: of None before that is known, and again if there is
        something; else `kept` is called. Another worker's write between the two is lost, as with a put."""

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """Add to the end of a log."""

    async def flush(self) -> None:
        """Return when everything taken so far was written, or raise StoreUnavailable."""

    async def drop(self, is_erased: Callable[[Key], bool]) -> list[Key]:
        """Forget what waits under these keys; gives them. Also while the store takes no write."""


class Others(Protocol):
    """The other workers that use the same store, as far as they can be heard. `place` is a place's id (`points.py`).

    `heard` tells whether they can be; where not, nothing is known of any place.
    """

    heard: bool

    def wrote(self, place: str) -> None:
        """This worker puts a place on record."""

    def mine(self, place: str) -> bool | None:
        """Whether it was this worker, and no other, that did so; None where nobody is known to have done it lately."""

    def coming(self, place: str) -> bool:
        """Whether another that is near did so: what the store lacks of it is on its way there."""

    async def pause(self) -> None:
        """Gives them a moment, some of which are enough for what they put on record to be in the store."""


class Observer(Protocol):
    """Someone who wants to know of every exchange: metrics, traces. Must be quick and must not raise."""

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """An exchange has ended; `traceparent` is the client's own header, or empty."""
