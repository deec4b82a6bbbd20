"""Stand-ins for the ports: small, honest, without a library that pretends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from accordion.model.budget import RefusedForm, Window, most_careful
from accordion.model.errors import AccordionError, StoreUnavailable
from accordion.model.ports import (
    Append,
    Family,
    Headers,
    Key,
    KeyValueStore,
    Put,
    Route,
    UpstreamRequest,
    UpstreamResponse,
)
from accordion.stores.memory_store import InMemoryStore

T = TypeVar("T")


@dataclass
class FakeClock:
    """A clock that tests move."""

    time: float = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


class FakeTasks:
    """Runs what is offloaded at once, and notes that it was."""

    def __init__(self) -> None:
        self.offloaded: list[str] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        work.close()

    async def _now(self, call: Callable[..., T], *args: Any) -> T:
        return call(*args)

    def offload(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        self.offloaded.append(getattr(call, "__name__", "?"))
        return self._now(call, *args)

    def offload_alone(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        self.offloaded.append(f"{getattr(call, '__name__', '?')} alone")
        return self._now(call, *args)


class WaitingTasks(FakeTasks):
    """Keeps spawned tasks until `run` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Coroutine[Any, Any, Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.waiting.append(work)

    def __del__(self) -> None:
        for work in self.waiting:
            work.close()

    async def run(self) -> int:
        """Runs the tasks, and those that they spawn. Returns how many there were."""
        count = 0
        while self.waiting:
            await self.waiting.pop(0)
            count += 1
        return count


class FickleStore(InMemoryStore):
    """A store in memory that answers nothing while it is `away`."""

    away = False

    @property
    def is_available(self) -> bool:
        return not self.away

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("away")
        super()._check()


@dataclass
class Merge:
    """A write of a DirectOutbox that is made of what the store holds."""

    key: Key
    value: Callable[[bytes | None], bytes]
    kept: Callable[[], object]
    ttl: float | None


@dataclass
class DirectOutbox:
    """An outbox that keeps what it takes until it is flushed into the store."""

    store: KeyValueStore
    taken: list[Put | Append | Merge] = field(default_factory=list)

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        self.taken.append(Put(key, value(), ttl))

    def merge(
        self, key: Key, value: Callable[[bytes | None], bytes], kept: Callable[[], object], ttl: float | None = None
    ) -> None:
        self.taken.append(Merge(key, value, kept, ttl))

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        self.taken.append(Append(key, value(), keep, ttl))

    async def flush(self) -> None:
        taken, self.taken = self.taken, []
        last = {write.key: write for write in taken}
        batch: list[Put | Append] = []
        for write in taken:
            if not isinstance(write, Merge):
                batch.append(write)
            elif last[write.key] is write:
                before = [put.value for put in batch if put.key == write.key]
                held = before[-1] if before else await self.store.get(write.key)
                batch.append(Put(write.key, write.value(held), write.ttl))
                if held is None:
                    write.kept()
        await self.store.write(batch)


class FakeWindows:
    """Windows of one size; notes what it was taught."""

    def __init__(self, size: int = 100_000) -> None:
        self.size = size
        self.learnt: list[tuple[str, str, str, str, int]] = []
        self.counts_output = False
        self.refused_form: RefusedForm = ""
        self.refused_fields: tuple[str, ...] = ()

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        return Window(self.size, self.size, "table", 0, self.counts_output, self.refused_form, self.refused_fields)

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
        self.refused_fields = refused_fields or self.refused_fields
        self.refused_form = most_careful(self.refused_form, refused_form)
        self.counts_output = self.counts_output or counts_output
        self.learnt.append((model, upstream, beta, tenant, limit))

    def learn_listed(self, model: str, upstream: str, tenant: str, size: int) -> None:
        self.learnt.append((model, upstream, "", tenant, size))


class WordCounter:
    """Counts words, so that a test can say what a count must be."""

    def __init__(self) -> None:
        self.ready = True

    def encoding(self, model: str) -> str:
        return "words"

    def is_loaded(self, encoding: str) -> bool:
        return self.ready

    def load(self, encoding: str) -> None:
        self.ready = True

    def count(self, text: str, encoding: str) -> int:
        return len(text.split())


@dataclass
class FakeRouter:
    """One route for everything."""

    models: dict[str, Route] = field(default_factory=dict)
    only: Route = field(default_factory=lambda: Route("openai", "openai", "http://upstream.test/v1"))

    def route(self, family: Family, model: str | None) -> Route:
        return self.only

    def for_protocol(self, route: Route, protocol_name: str) -> Route:
        return route

    def url(self, route: Route, path_and_query: str) -> str:
        return route.base_url + path_and_query.removeprefix("/v1")


@dataclass
class FakeReply:
    """An answer made of given pieces; after the last one `error` is raised, if any."""

    status: int = 200
    headers: Headers = ((b"content-type", b"application/json"),)
    pieces: tuple[bytes, ...] = (b"{}",)
    error: AccordionError | None = None
    is_delimited: bool = True
    closed: bool = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces:
            yield piece
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeUpstream:
    """Gives its answers in order and keeps the requests; an error among them is raised."""

    answers: list[FakeReply | AccordionError] = field(default_factory=list)
    requests: list[UpstreamRequest] = field(default_factory=list)

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else FakeReply()
        if isinstance(answer, AccordionError):
            raise answer
        return answer

    async def close(self) -> None:
        return
