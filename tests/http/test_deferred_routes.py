from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from accordion.http.deferred_routes import DeferredRoutes, list_built


class Builder:
    """Builds two routes, and counts how often. The first `failures` builds fail."""

    def __init__(self, failures: int = 0) -> None:
        self.count, self.failures = 0, failures

    def __call__(self) -> Sequence[Route]:
        self.count += 1
        if self.count <= self.failures:
            raise RuntimeError("not yet")
        return [Route("/a/{id}", _name, methods=["GET"]), Route("/b", _name, methods=["POST"])]


async def _name(request: Request) -> Response:
    return PlainTextResponse(request.path_params.get("id", request.method))


async def offload(build: Callable[[], Sequence[Route]]) -> Sequence[Route]:
    return await asyncio.to_thread(build)


def client_of(build: Builder) -> TestClient:
    return TestClient(Starlette(routes=DeferredRoutes(build, offload).at("/a/{path:path}", "/b")))


def test_routes_are_built_once_at_their_first_request() -> None:
    build = Builder()
    client = client_of(build)
    assert client.get("/elsewhere").status_code == 404
    assert build.count == 0
    assert (client.get("/a/1").text, client.post("/b").text, client.get("/a/2").text) == ("1", "POST", "2")
    assert build.count == 1


async def test_requests_that_come_while_the_routes_are_built_wait_for_them() -> None:
    async def build_when_asked(build: Callable[[], Sequence[Route]]) -> Sequence[Route]:
        is_building.set()
        await may_end.wait()
        return build()

    async def ask() -> None:
        scope = {"type": "http", "path": "/b", "method": "POST", "headers": []}
        await routes(scope, None, sent)  # type: ignore[arg-type]

    async def sent(message: object) -> None:
        messages.append(message)

    is_building, may_end, build, messages = asyncio.Event(), asyncio.Event(), Builder(), list[object]()
    routes = DeferredRoutes(build, build_when_asked)
    requests = [asyncio.create_task(ask()) for _ in range(2)]
    await is_building.wait()
    assert messages == []
    may_end.set()
    await asyncio.gather(*requests)
    assert (build.count, len(messages)) == (1, 4)


def test_a_build_that_fails_is_tried_again_at_the_next_request() -> None:
    client = client_of(Builder(failures=1))
    with pytest.raises(RuntimeError):
        client.post("/b")
    assert client.post("/b").status_code == 200


def test_a_path_and_a_method_that_no_built_route_has_are_refused_as_elsewhere() -> None:
    client = client_of(Builder())
    assert (client.get("/a/1/2").status_code, client.post("/a/1").status_code) == (404, 405)


def test_the_built_routes_are_listed_in_place_of_the_deferred_ones() -> None:
    client = client_of(Builder())
    routes = client.app.routes  # type: ignore[attr-defined]
    assert list(list_built(routes)) == []
    client.post("/b")
    assert {route.path for route in list_built(routes)} == {"/a/{id}", "/b"}
