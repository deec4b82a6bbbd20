"""MCP at `/mcp` (streamable HTTP). The SDK is imported with the first request, in a thread: it takes half a second.

Every request stands alone, so that any worker can answer it; who asks is told by its headers, as everywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from accordion.core.errors import AccordionError
from accordion.faces.asked import caller_of, checked
from accordion.faces.memory_rooms import Rooms
from accordion.identity.tenants import Caller, Tenants

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

_BODY_MOST = 4 * 2**20


class NotInstalled(AccordionError):
    """The SDK is not there."""

    status = 501
    code = "mcp_not_installed"

    def __init__(self) -> None:
        super().__init__("MCP needs a package that is not installed here: install accordion-proxy[mcp].")


class McpFace:
    """The ASGI application at `/mcp`. `spawn` runs something until the house is closed."""

    def __init__(
        self,
        rooms: Callable[[], Rooms],
        tenants: Callable[[], Tenants],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        version: str,
    ) -> None:
        self._rooms, self._tenants, self._spawn, self._version = rooms, tenants, spawn, version
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    def routes(self) -> list[Route]:
        """Where it answers. Nothing is ever said unasked, and there are no sessions to be ended: only POST is."""
        return [Route("/mcp", self, methods=["POST"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. Raises Unauthorized and Foreign before it is read, and ClientDisconnect where the client
        leaves before the end of its body, which the SDK would log as an error."""
        caller_of(scope["headers"], self._tenants())
        manager = await self._started()
        await manager.handle_request(scope, checked(receive), send)

    async def _started(self) -> StreamableHTTPSessionManager:
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            self._spawn(self._run(self._manager), "serve MCP")
        return await asyncio.shield(self._manager)

    async def _run(self, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = await asyncio.to_thread(self._made)
        except Exception as error:
            # Told to those who wait for it; the next request tries again.
            self._manager = None
            started.set_exception(NotInstalled() if isinstance(error, ImportError) else error)
            return
        async with manager.run():
            started.set_result(manager)
            await asyncio.Event().wait()

    def _made(self) -> StreamableHTTPSessionManager:
        """Imports the SDK. Raises ImportError."""
        from mcp.server.streamable_http_manager import (  # noqa: PLC0415  # slow to import, and seldom wanted
            StreamableHTTPSessionManager,
        )

        from accordion.faces.mcp_server import server  # noqa: PLC0415

        def who(context: Any) -> Caller:
            request: Request = context.request
            return caller_of(request.headers.raw, self._tenants())

        return StreamableHTTPSessionManager(
            server(self._rooms, who, self._version),
            json_response=True,
            stateless=True,
            max_request_body_size=_BODY_MOST,
        )
