"""Serves the proxy under other paths: a prefix that a reverse proxy passes on (`server.base_path`), and Codex's own."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

CODEX_PATH = "/backend-api/codex"
"""What Codex has in place of `/v1` with a ChatGPT login. Some of its features exist behind this path alone."""


class PathPrefix:
    """Replaces the prefix (such as `/ai`) of the paths of requests. Paths without it are served as well."""

    def __init__(self, app: ASGIApp, prefix: str, replacement: str = "") -> None:
        self._app, self._prefix, self._replacement = app, prefix, replacement

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection's request (ASGI 3)."""
        prefix, start = self._prefix, f"{self._prefix}/"
        if scope["type"] in ("http", "websocket") and scope["path"].startswith(start):
            raw_path = scope.get("raw_path") or scope["path"].encode()
            # A prefix that is percent-encoded is another path: where it ends in the raw path is not known.
            if raw_path.startswith(start.encode()):
                path, raw_path = scope["path"][len(prefix) :], raw_path[len(prefix) :]
                scope = {**scope, "path": self._replacement + path, "raw_path": self._replacement.encode() + raw_path}
                if not self._replacement:
                    # For the base URLs that are shown. `root_path` would be removed from the path again.
                    scope["app_root_path"] = prefix
        await self._app(scope, receive, send)
