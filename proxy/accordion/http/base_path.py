"""Serves the proxy under a path prefix that a reverse proxy passes on (`server.base_path`)."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class BasePath:
    """Removes the prefix (such as `/ai`) from the paths of requests. Paths without it are served as well."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection's request (ASGI 3)."""
        prefix, start = self._prefix, f"{self._prefix}/"
        if scope["type"] in ("http", "websocket") and scope["path"].startswith(start):
            raw_path = scope.get("raw_path") or scope["path"].encode()
            # A prefix that is percent-encoded is another path: where it ends in the raw path is not known.
            if raw_path.startswith(start.encode()):
                # `app_root_path` is for the base URLs that are shown. `root_path` would be removed from the path again.
                scope = {**scope, "path": scope["path"][len(prefix) :], "app_root_path": prefix}
                scope["raw_path"] = raw_path[len(prefix) :]
        await self._app(scope, receive, send)
