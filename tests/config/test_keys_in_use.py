"""A key of config.yaml that nothing reads would promise what is not there."""

from itertools import product
from types import FunctionType, MethodType
from typing import Any, get_args

import msgspec
import pytest

from accordion.accounting.calibration import LearnedLimits
from accordion.composition.application import Application
from accordion.composition.tables import build_windows, rules_by_model
from accordion.config import Settings
from accordion.config.load import build
from accordion.config.pipelines import PipelineEntry
from tests.fakes import FakeClock
from tests.features.memory.running import running_memory
from tests.test_config_documentation import with_examples

SERVING = {
    "server.port",
    "server.idle_seconds",
    "server.shutdown_seconds",
    "server.workers",
    "logging.level",
    "logging.format",
}
"""What the process needs before there is an application; tests/e2e starts it."""
UNUSED = {
    "litellm_settings",
    "router_settings",
    "general_settings",
    "environment_variables",
}
"""Accepted for LiteLLM's sake. What the sections say is entered at other keys: see test_litellm_file.py."""


class Watched:
    """A section of the settings, which notes the keys that are read."""

    def __init__(self, section: msgspec.Struct, path: str, read: set[str]) -> None:
        self._section, self._path, self._read = section, path, read

    def __getattr__(self, name: str) -> Any:
        kind = type(self._section)
        if name not in kind.__struct_fields__:
            own = getattr(kind, name)
            if isinstance(own, property):
                assert own.fget is not None
                return own.fget(self)
            return MethodType(own, self) if isinstance(own, FunctionType) else own
        path = f"{self._path}{name}"
        self._read.add(path)
        return self._watched(getattr(self._section, name), path)

    def _watched(self, value: Any, path: str) -> Any:
        if isinstance(value, msgspec.Struct):
            return Watched(value, f"{path}.", self._read)
        if isinstance(value, tuple):
            return tuple(self._watched(each, path) for each in value)
        if isinstance(value, dict):
            return {name: self._watched(each, path) for name, each in value.items()}
        return value


def leaves(kind: Any) -> set[str]:
    """The dotted keys that have values of their own; a pipeline is one of them."""
    found = set()
    for field in msgspec.structs.fields(kind):
        below = section_in(field.type)
        found |= {f"{field.name}.{key}" for key in leaves(below)} if below else {field.name}
    return found


def section_in(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    parts = () if PipelineEntry in get_args(kind) else get_args(kind)
    return next((found for part in parts if (found := section_in(part))), None)


async def test_every_key_is_read_when_the_application_is_built() -> None:
    text = with_examples().replace("url: sqlite:///~/.local/state/accordion/accordion.db", "url: memory://")
    text = text.replace("    enabled: false", "    enabled: true")
    read: set[str] = set()
    watched: Any = Watched(build(text.encode(), {"RESEARCH_PROXY_KEY": "acc-research"}, {}), "", read)
    application = Application(watched, {})
    try:
        for model, delegated in product(("smart", "another"), (False, True)):
            rules_by_model(watched)(model, "openai", delegated, 100_000)
        application.app()
        running_memory(application).load().services()
    finally:
        await application.stop()
    assert leaves(Settings) - read == SERVING | UNUSED


def test_the_window_of_a_model_that_nobody_knows_is_the_configured_one() -> None:
    known = build_windows(build(b"windows: {default: 5000}", {}, {}), LearnedLimits(FakeClock().now))
    assert (known.window("nobodys").size, known.window("nobodys").is_known) == (5_000, False)


@pytest.mark.parametrize(("hours", "size"), [(23.9, 7_000), (24.1, 120_000)])
def test_a_limit_that_was_learnt_is_forgotten_after_a_day(hours: float, size: int) -> None:
    clock: Any = FakeClock()
    known = build_windows(Settings(), LearnedLimits(clock.now))
    known.learn("nobodys", "openai", "", "tenant", 7_000)
    clock.advance(hours * 3600)
    assert known.window("nobodys", "openai", "", "tenant").size == size


async def test_a_configured_tenant_key_is_what_contents_are_hashed_with() -> None:
    spaces = []
    for key in ("one", "one", "two"):
        application = Application(
            build(f"server: {{tenant_key: {key}}}\nstore: {{url: 'memory://'}}".encode(), {}, {}), {}
        )
        spaces.append(application.tenants.identify({}).tenant)
        await application.stop()
    assert spaces[0] == spaces[1] != spaces[2]
