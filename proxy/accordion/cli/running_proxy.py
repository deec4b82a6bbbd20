"""Asks a proxy that runs: whether an Accordion listens at an address, and what it has recorded."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec

_HEALTH_SECONDS = 2.0
_QUERY_SECONDS = 30.0
_PAGE = 1_000
_MAX_PAGES = 20
"""Pages of sessions that are read at most; the latest sessions come first."""


class QueryError(Exception):
    """A proxy did not answer a question; the message says why."""


class RunningProxy(msgspec.Struct, frozen=True):
    """An Accordion that answers at `url`, such as http://127.0.0.1:8787.

    `relays_websockets` says whether it relays the WebSockets of models, unread.
    """

    url: str
    version: str
    relays_websockets: bool

    def list_sessions(self, credentials: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yields the caller's sessions as the API describes them, the latest first. Raises QueryError."""
        cursor = ""
        for _ in range(_MAX_PAGES):
            page = self._get(f"/accordion/sessions?limit={_PAGE}&cursor={cursor}", credentials)
            yield from page["sessions"]
            cursor = page["next"] or ""
            if not cursor:
                return

    def find_session(self, session: str, credentials: Mapping[str, str]) -> dict[str, Any]:
        """Returns a session with its last exchanges. Raises QueryError."""
        return self._get(f"/accordion/sessions/{session}", credentials)

    def _get(self, path: str, credentials: Mapping[str, str]) -> dict[str, Any]:
        # An HTTP proxy that the environment names cannot reach a loopback address of this machine.
        try:
            response = httpx.get(f"{self.url}{path}", headers=credentials, timeout=_QUERY_SECONDS, trust_env=False)
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise QueryError(f"{self.url}{path}: {error}") from None
        if response.status_code != 200:
            raise QueryError(str(answer.get("error", {}).get("message", response.status_code)))
        return answer


def find_proxy(url: str) -> RunningProxy | None:
    """Returns the Accordion that listens at `url`; None if nothing or another program does."""
    try:
        health = httpx.get(f"{url}/healthz", timeout=_HEALTH_SECONDS, trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    if not isinstance(health, dict) or health.get("name") != "accordion":
        return None
    return RunningProxy(url, str(health.get("version", "")), health.get("responses_websocket", True) in (True, "relay"))


def is_listening(host: str, port: int) -> bool:
    """Whether any program accepts connections at a TCP address."""
    try:
        socket.create_connection((host, port), timeout=_HEALTH_SECONDS).close()
    except OSError:
        return False
    return True


def loopback_url(host: str, port: int) -> str:
    """Returns the URL by which this machine reaches a server that listens on `host`."""
    address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{address}:{port}"
