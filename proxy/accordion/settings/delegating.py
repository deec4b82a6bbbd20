"""How delegations are known, and how many there may be."""

from __future__ import annotations

from typing import Annotated

import msgspec

from accordion.settings.base import Name, Section


class Delegation(Section, frozen=True):
    """The tools by which agents hand work to agents (names, or patterns with *), and what one tree may hold."""

    tools: tuple[Name, ...] = ("Task", "Agent", "task", "delegate_to_*")
    handoff_tools: tuple[Name, ...] = ("transfer_to_*", "transfer_back_to_*", "handoff_to_*")
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    max_agents: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 256
