from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from accordion.config import Settings
from accordion.config.load import build
from accordion.config.settings import DelegationConfig
from accordion.model.errors import ConfigError


def read(text: str) -> DelegationConfig:
    return build(text.encode(), {}, {}).delegation


@pytest.mark.parametrize("name", ["Task", "Agent", "task", "delegate_to_research"])
def test_without_a_word_the_tools_of_known_agents_delegate(name: str) -> None:
    delegation = Settings().delegation
    assert any(fnmatchcase(name, pattern) for pattern in delegation.tools)
    assert not any(fnmatchcase(name, pattern) for pattern in delegation.handoff_tools)


@pytest.mark.parametrize("name", ["transfer_to_refunds", "transfer_back_to_supervisor", "handoff_to_refunds"])
def test_without_a_word_the_tools_of_known_frameworks_hand_over(name: str) -> None:
    delegation = Settings().delegation
    assert any(fnmatchcase(name, pattern) for pattern in delegation.handoff_tools)
    assert not any(fnmatchcase(name, pattern) for pattern in delegation.tools)


def test_a_file_that_states_tools_states_all_of_them() -> None:
    delegation = read("delegation: {tools: [hire], handoff_tools: []}")
    assert (delegation.tools, delegation.handoff_tools) == (("hire",), ())
    assert (delegation.max_depth, delegation.max_agents) == (8, 256)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{max_depth: 0}", "max_depth"),
        ("{max_depth: 65}", "max_depth"),
        ("{max_agents: 0}", "max_agents"),
        ("{tools: ['']}", "tools[0]"),
        ("{tools: Task}", "tools"),
        ("{handoff_tools: [5]}", "handoff_tools[0]"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_position(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"delegation: {text}")
    assert caught.value.path == f"$.delegation.{path}"
