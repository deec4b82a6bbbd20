"""What tests of all rooms may ask for: a started proxy, a real Valkey."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.proxying import Proxy, held_port, started
from tests.valkey import valkey_server  # noqa: F401

Start = Callable[..., Proxy]


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy as it comes, but for its two upstreams, its store (in memory) and its log (debug). One for all tests."""
    with held_port() as port, started(tmp_path_factory.mktemp("proxy"), upstream_port=port) as running:
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
            running.append(stack.enter_context(started(folder, config, *options, upstream_port=port, **environ)))
            return running[-1]

        yield run
    assert [proxy.log for proxy in running if "Traceback" in proxy.log] == []
