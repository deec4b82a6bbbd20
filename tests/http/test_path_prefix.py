"""Prefixes of paths: what a reverse proxy passes on, and Codex's own."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.http.path_prefix import CODEX_PATH, PathPrefix


async def test_the_prefix_is_removed_from_paths_and_others_stay() -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)

    async def nothing(*_: object) -> None:
        raise AssertionError

    for path in ("/ai/v1/a%20b", "/v1/models", "/aim/v1", "/ai"):
        raw = path.encode()
        await PathPrefix(app, "/ai")(
            {"type": "http", "path": path.replace("%20", " "), "raw_path": raw}, nothing, nothing
        )
    assert [(each["path"], each["raw_path"]) for each in scopes] == [
        ("/v1/a b", b"/v1/a%20b"), ("/v1/models", b"/v1/models"), ("/aim/v1", b"/aim/v1"), ("/ai", b"/ai"),
    ]  # fmt: skip


def test_the_api_and_the_page_are_served_under_the_prefix() -> None:
    settings = build(b"{server: {base_path: /accordion}, store: {url: 'memory://'}}", {}, {})
    http = TestClient(Application(settings, {}).app(), base_url="http://127.0.0.1:8787", follow_redirects=False)
    assert http.get("/accordion/").json()["openai_base_url"] == "http://127.0.0.1:8787/accordion/v1"
    assert http.get("/").json()["openai_base_url"] == "http://127.0.0.1:8787/v1"
    page = http.get("/accordion/accordion/")
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (200, "text/html")
    assert http.get("/accordion/accordion/pages/static/page.css").status_code == 200
    answer = http.get("/accordion/accordion")
    assert str(answer.request.url.join(answer.headers["location"])) == "http://127.0.0.1:8787/accordion/accordion/"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/backend-api/codex/responses", "/v1/responses"),
        ("/backend-api/codex/alpha/notes?limit=2", "/v1/alpha/notes"),
        ("/backend-api/codex", "/backend-api/codex"),
        ("/backend-api/codexes/responses", "/backend-api/codexes/responses"),
    ],
)
async def test_codex_s_own_path_stands_for_v1(target: str, expected: str) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)

    transport = httpx.ASGITransport(PathPrefix(app, CODEX_PATH, "/v1"), raise_app_exceptions=False)
    with suppress(AssertionError):
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
            await http.get(target)
    assert [each["path"] for each in scopes] == [expected]
    assert "app_root_path" not in scopes[0]
