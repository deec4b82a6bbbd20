"""Fixtures for all tests: a started proxy, a real Valkey server, and guards that hold for every test."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from tests.proxy_process import Proxy, held_port, start_proxy
from tests.valkey import valkey_server  # noqa: F401

Start = Callable[..., Proxy]

# How fast a busy machine makes examples and goes through them says nothing of what is tested.
settings.register_profile("accordion", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("accordion")

# A shell starts a job in the background with SIGINT ignored, and every program that is started by it inherits that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTTP proxy that this machine's environment names is not asked for what is on this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy as it comes, but for its two upstreams, its store (in memory) and its log (debug). One for all tests."""
    with held_port() as port, start_proxy(tmp_path_factory.mktemp("proxy"), upstream_port=port) as running:
        yield running
    assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts proxies with settings of their own: `start(config, ACCORDION_HOST=...)`. They end with the module."""
    running: list[Proxy] = []
    with ExitStack() as stack:

        def run(config: str = "", *options: str, **environ: str) -> Proxy:
            port = stack.enter_context(held_port())
            folder = tmp_path_factory.mktemp("proxy")
            running.append(stack.enter_context(start_proxy(folder, config, *options, upstream_port=port, **environ)))
            return running[-1]

        yield run
    assert [proxy.log for proxy in running if "Traceback" in proxy.log] == []
