"""MCP over streamable HTTP, at `/mcp`.

Requests are stateless, so that any worker can answer each; the caller is identified by the headers, as in the REST API.
The SDK is imported with the first request, in a thread, because its import takes half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from accordion.features.memory.memory_operations import MemoryServices
from accordion.http.api_requests import check_disconnect, identify_caller
from accordion.model.errors import MissingExtra
from accordion.sessions.tenants import Caller, Tenants

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

_MAX_BODY = 4 * 2**20


class McpApp:
    """The ASGI application at `/mcp`. `spawn` runs a coroutine until the application closes."""

    def __init__(
        self,
        services: Callable[[], MemoryServices],
        tenants: Callable[[], Tenants],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        version: str,
    ) -> None:
        self._services, self._tenants, self._spawn, self._version = services, tenants, spawn, version
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    def routes(self) -> list[Route]:
        """Returns the route. Only POST: the server sends nothing on its own, and has no sessions to end."""
        return [Route("/mcp", self, methods=["POST"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request.

        Raises Unauthorized and ForeignOrigin before the body is read, and ClientDisconnect if the client leaves within
        the body, which the SDK would log as an error.
        """
        identify_caller(scope["headers"], self._tenants())
        manager = await self._get_manager()
        await manager.handle_request(scope, check_disconnect(receive), send)

    async def _get_manager(self) -> StreamableHTTPSessionManager:
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            self._spawn(self._run(self._manager), "serve MCP")
        return await asyncio.shield(self._manager)

    async def _run(self, manager_future: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = await asyncio.to_thread(self._create)
        except Exception as error:
            # The waiting requests get the error; the next request tries again.
            self._manager = None
            manager_future.set_exception(MissingExtra("MCP", "mcp") if isinstance(error, ImportError) else error)
            return
        async with manager.run():
            manager_future.set_result(manager)
            await asyncio.Event().wait()

    def _create(self) -> StreamableHTTPSessionManager:
        """Imports the SDK. Raises ImportError."""
        from mcp.server.streamable_http_manager import (  # noqa: PLC0415  # slow to import, and seldom used
            StreamableHTTPSessionManager,
        )

        from accordion.features.memory.mcp_server import create_server  # noqa: PLC0415

        def identify(context: Any) -> Caller:
            request: Request = context.request
            return identify_caller(request.headers.raw, self._tenants())

        return StreamableHTTPSessionManager(
            create_server(self._services, identify, self._version),
            json_response=True,
            stateless=True,
            max_request_body_size=_MAX_BODY,
        )
