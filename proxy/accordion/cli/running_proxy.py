"""Asks a proxy that runs: whether an Accordion listens at an address, and what it has recorded."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, Request, UnknownHandler

import msgspec

from accordion.config.value_types import Host

_HEALTH_SECONDS = 2.0
_QUERY_SECONDS = 30.0
_PAGE = 1_000
_MAX_PAGES = 20
"""Pages of sessions that are read at most; the latest sessions come first."""


class QueryError(Exception):
    """A proxy did not answer a question; the message says why."""


class RunningProxy(msgspec.Struct, frozen=True):
    """An Accordion that answers at `url`, such as http://127.0.0.1:8787.

    `relays_websockets` says whether it relays the WebSockets of models, unread; `reaches_anthropic`, whether each
    request for one of Anthropic's models goes to Anthropic's own API.
    """

    url: str
    version: str
    relays_websockets: bool = False
    reaches_anthropic: bool = False

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

    def find_configured_window(self, model: str, credentials: Mapping[str, str]) -> int:
        """Returns the window that the proxy's settings give a model, in tokens; 0 if there is none, or no answer."""
        with suppress(QueryError):
            for each in self._get("/accordion/models", credentials)["models"]:
                if each["model"] == model and each["window_source"] == "config":
                    return int(each["limits"]["window"])
        return 0

    def _get(self, path: str, credentials: Mapping[str, str]) -> dict[str, Any]:
        try:
            answer: dict[str, Any]
            status, answer = _get_json(f"{self.url}{path}", credentials, _QUERY_SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            raise QueryError(f"{self.url}{path}: {error}") from None
        if status != 200:
            raise QueryError(str(answer.get("error", {}).get("message", status)))
        return answer


def find_proxy(url: str) -> RunningProxy | None:
    """Returns the Accordion that listens at `url`; None if nothing or another program does."""
    try:
        _, health = _get_json(f"{url}/healthz", {}, _HEALTH_SECONDS)
    except (OSError, HTTPException, ValueError):
        return None
    if not isinstance(health, dict) or health.get("name") != "accordion":
        return None
    return RunningProxy(
        url,
        str(health.get("version", "")),
        relays_websockets=health.get("responses_websocket", True) in (True, "relay"),
        reaches_anthropic=health.get("reaches_anthropic") is True,
    )


def _get_json(url: str, headers: Mapping[str, str], seconds: float) -> tuple[int, Any]:
    """Returns the status and the decoded body of a response. Raises OSError, HTTPException or ValueError."""
    # Neither a redirect is followed, nor an HTTP proxy of the environment used: it cannot reach a loopback address.
    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), UnknownHandler()):
        opener.add_handler(handler)
    with opener.open(Request(url, headers=dict(headers)), timeout=seconds) as response:  # noqa: S310
        return response.status, msgspec.json.decode(response.read())


def is_listening(host: str, port: int) -> bool:
    """Whether any program accepts connections at a TCP address."""
    try:
        socket.create_connection((host, port), timeout=_HEALTH_SECONDS).close()
    except OSError:
        return False
    return True


def loopback_url(host: str, port: int) -> str:
    """Returns the URL by which this machine reaches a server that listens on `host`."""
    own_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{Host(own_host).with_port(port)}"
