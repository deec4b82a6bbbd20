"""One request as the compactor gets it, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from accordion.core.budget import Decision, Limits, Utilization, Window
from accordion.core.conversation import Message
from accordion.core.delegation import Delegation
from accordion.core.edits import Cause, Folded
from accordion.core.records import CompactionSeen
from accordion.core.summarizing import Asker
from accordion.core.values import dataclass
from accordion.dialects.base import Dialect

Thinking = Literal["none", "free", "bound", "droppable"]
"""How thinking blocks may be handled: there are none; they may stay or go one by one; each is bound to its exact
prefix; or bound, but the request lets the provider drop what does not match."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """The two limits beside tokens; 0 where there is none. `body` in bytes of the whole request, `images` in number."""

    body: int = 0
    images: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """All that a fold needs to know of a request.

    `folded` is the list as earlier folds left it. `space` is the tenant's key, `scope` what divides folds within the
    tenant: a fold of one scope is never applied in another. `model` is the one that is really asked, where tokens are
    counted. `began` is when the request came, in seconds by the monotonic clock: of a session that was erased since,
    nothing is kept. `size` is the request's body in bytes.
    """

    tenant: str
    space: bytes = field(repr=False)
    scope: bytes = field(repr=False)
    session: str
    dialect: Dialect
    folded: Folded
    utilization: Utilization
    window: Window
    limits: Limits
    decision: Decision
    model: str
    began: float
    request_id: str = ""
    cause: Cause = "automatic"
    size: int = 0
    budgets: Budgets = Budgets()
    thinking: Thinking = "none"
    pins: frozenset[str] = frozenset()
    """Call ids that the request or the API pinned."""
    asker: Asker | None = None
    """None where no model may be asked for a summary."""
    brought: int = 0
    """Tokens that a fold itself brings along: our tool, which is offered from the first one on."""
    counting: bool = False
    """Whether the request only asks how many tokens it would be: then nothing is kept, and no model is asked."""
    delegated: bool = False
    """Whether a sub-agent asks: then all that it was given at the beginning stays verbatim."""
    begun: Mapping[str, Delegation] = field(default_factory=dict)
    """The delegations that calls of this conversation began, by the calls' ids."""
    heard: Mapping[bytes, Message] = field(default_factory=dict, repr=False)
    """What replies said that the client only names, by the keys of the messages that name it."""
    shown: Folded | None = None
    """The list as it would be forwarded, with what was read back and recalled; None where that is `folded`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request: the list to forward, and what is told of it. `flagged` says that what left the window
    could only be kept locally for now."""

    folded: Folded
    seen: CompactionSeen | None = None
    flagged: bool = False
