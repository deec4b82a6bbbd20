"""Fixtures for all tests: a started proxy, a real Valkey server, the tiers, and guards that hold for every test.

`--tier quick` runs what needs Python only and starts no proxy but the shared one, with few examples of each property;
`--tier rest` runs all other tests, and the properties again with all examples. Without it, everything runs.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.proxy_process import Proxy, held_port, start_proxy
from tests.tiers import FAST, FULL
from tests.valkey import valkey_server  # noqa: F401

Start = Callable[..., Proxy]

# How fast a busy machine makes examples and goes through them says nothing of what is tested.
settings.register_profile(
    "full", settings.default, max_examples=FULL, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# The quick tests have the same examples each time, so that nothing fails by chance there, and a failure is not reduced,
# which may take minutes.
settings.register_profile(
    "fast",
    settings.get_profile("full"),
    max_examples=FAST,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("full")

REST_FOLDERS = tuple(Path(__file__).parent / name for name in ("campaign", "deploy", "page"))
"""Folders with tests of the rest only, which may need packages that the quick tier does not install."""
REST_FIXTURES = frozenset({"start", "proxies"})
"""A test with one of these starts a proxy of its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("quick", "rest", "all"), default="all", help="which tests to run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier") == "quick":
        settings.load_profile("fast")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_rest = collection_path.is_dir() and collection_path in REST_FOLDERS
    return True if is_rest and config.getoption("--tier") == "quick" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier == "all":
        return
    chosen = [item for item in items if _is_of_tier(item, tier)]
    chosen_ids = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen_ids])
    items[:] = chosen


def _is_of_tier(item: pytest.Item, tier: str) -> bool:
    is_rest = (
        item.get_closest_marker("rest") is not None
        or item.path.parent in REST_FOLDERS
        or not REST_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    )
    is_property = bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
    return not is_rest if tier == "quick" else is_rest or is_property


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
