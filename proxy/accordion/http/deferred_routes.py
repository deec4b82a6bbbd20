"""Routes that are built at their first request, with all modules that they need, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

Build = Callable[[], Sequence[Route]]


class DeferredRoutes:
    """The ASGI application of the routes that `build` returns. `offload` runs it in a thread."""

    def __init__(self, build: Build, offload: Callable[[Build], Awaitable[Sequence[Route]]]) -> None:
        self._build, self._offload = build, offload
        self._lock = asyncio.Lock()
        self._router: Router | None = None
        self.built: Sequence[Route] = ()

    def at(self, *paths: str) -> list[Route]:
        """Returns a route for each of the paths, which may have parameters: the built routes lie at or below them."""
        return [Route(path, self) for path in paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. Raises what building raises; then the next request tries again."""
        async with self._lock:
            if self._router is None:
                self.built = await self._offload(self._build)
                self._router = Router(self.built)
        await self._router(scope, receive, send)


def list_built(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """Yields an application's routes, the built ones in place of the deferred ones."""
    for route in routes:
        if isinstance(route, Route):
            yield from route.endpoint.built if isinstance(route.endpoint, DeferredRoutes) else (route,)
