"""Fixtures: the loopback provider, the proxy, and the link of a test, which runs once direct and once through it."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from client_link import CI, ClientLink, Proxy, compare_runs, in_clients_environment, proxy_missing
from upstream import Upstream

collect_ignore_glob = [] if in_clients_environment() else ["test_*.py"]
DIRECT: dict[str, dict[str, Any]] = {}


def pytest_report_header() -> str | None:
    """Say so when this is the wrong environment: the clients have one of their own."""
    return "tests/clients: not collected here, run by .venv-clients (make test)" if collect_ignore_glob else None


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """The loopback provider, one for all tests."""
    provider = Upstream()
    provider.start()
    yield provider
    provider.stop()


@pytest.fixture(scope="session")
def proxy(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The proxy in front of the provider, one for all tests. Where it cannot be started: a skip, a failure in CI."""
    missing = proxy_missing()
    if missing:
        (pytest.fail if CI else pytest.skip)(missing)
    process = Proxy(upstream.port, tmp_path_factory.mktemp("proxy"))
    yield process
    process.stop()


@pytest.fixture(params=["direct", "through"])
def link(request: pytest.FixtureRequest, upstream: Upstream) -> Iterator[ClientLink]:
    """The way to the provider; each test takes it direct first, then through the proxy."""
    mode: str = request.param
    port = upstream.port if mode == "direct" else request.getfixturevalue("proxy").port
    upstream.reset()
    recorder = upstream.record_connections(port)
    yield ClientLink(mode, upstream, recorder)
    upstream.call(recorder.stop())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """After the test's own claims: both ends of the wire agree, and so do both runs."""
    outcome = yield
    link = pyfuncitem.funcargs.get("link")
    if isinstance(link, ClientLink):
        link.settled()
        found = link.wire_differences()
        assert not found, "the two ends of the wire differ:\n" + "\n".join(found[:10])
        name = pyfuncitem.nodeid.replace(f"{link.mode}-", "").replace(f"[{link.mode}]", "")
        if link.mode == "direct":
            DIRECT[name] = link.result()
        else:
            assert name in DIRECT, "the direct run is missing or failed: run both"
            found = compare_runs(DIRECT[name], link.result())
            assert not found, "the client's run differs through the proxy:\n" + "\n".join(found[:10])
    return outcome


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scratch folder for the session."""
    return tmp_path_factory.mktemp("clients")
