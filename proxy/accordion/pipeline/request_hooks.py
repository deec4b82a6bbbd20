"""Hooks by which features take part in requests.

Theory of operation. A hook sees the bytes of each request that a protocol reads, and says at once whether they may
concern it. If they do, it reads them, and may give the request a `RequestHandler` (request.py), which then acts at its
places: it prepares the request, may answer it, and may add to the response. A request without a handler costs no more
than the question. A provider that lacks what the client asks for gives a hook another chance: it learns from the
refusal, or from a response that shows that the provider ignored it, and the request is read once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from accordion.model.http import Inbound
from accordion.model.ports import Route
from accordion.pipeline.request import PassthroughRequest, PreparedRequest, RequestHandler
from accordion.protocols.base import WireProtocol
from accordion.sessions.tenants import Caller

FindRoute = Callable[[], Awaitable[Route]]
"""Finds the route of a request whose body is not read yet."""


class RequestHook(Protocol):
    """A feature's part in all requests."""

    def concerns(self, protocol: WireProtocol, path: str, body: bytes, *, may_be_translated: bool) -> bool:
        """Whether a decoded body may concern the feature. Must be quick."""

    async def read(
        self, protocol: WireProtocol, inbound: Inbound, body: bytes, caller: Caller, find_route: FindRoute
    ) -> tuple[bytes, RequestHandler | None]:
        """Returns the body as it is treated from here on, the same bytes if it stays, and the request's handler."""

    def learn(self, request: PreparedRequest, status: int, refusal: bytes) -> bool:
        """Learns from a refusal; returns whether the request is to be read again, as its hook reads it now."""

    def find_response_type(self, request: PreparedRequest) -> bytes:
        """Returns what the response to a request has if the provider does what the client asks for; empty for most."""

    def learn_from_body(self, request: PreparedRequest, body: bytes) -> bool:
        """Learns from a whole body without that word; returns whether the request is to be read again."""

    def may_learn(self, request: PassthroughRequest, status: int) -> bool:
        """Whether the response to a request that was passed through unread may be a refusal to learn from."""

    def learn_unread(self, request: PassthroughRequest, status: int, refusal: bytes) -> bool:
        """Learns from such a refusal; returns whether the request is to be read, as its hook reads it now."""
