"""Delegations: the tree of agents, and the rule by which an agent sees a tool result.

An agent delegates work to a sub-agent. Each such piece of work is a *delegation*, a node of a tree whose top is the
main agent. A tool result belongs to the delegation whose request made the call (its *owner*); it is visible to this
delegation, its ancestors and its descendants.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TOP = ""
"""The id of the main agent's node, the top of the tree: an ancestor of all delegations."""

Path = tuple[str, ...]
"""A node's ancestors, the oldest first, and the node itself. The top is not included, so its own path is empty."""

Evidence = Literal["header", "mark", "handoff", "tool", "argument", "none"]
"""The evidence for an edge of the tree: an Accordion header or field (`header`), a known client's metadata (`mark`), a
hand-off call, a string argument of a delegating tool (`tool`) or of any other tool (`argument`). `none` means that no
edge is known."""


NodeKind = Literal["declared", "metadata", "session", "handoff", "top"]
"""The name that a node's id has behind the letter of its kind: one that the client declares (`x:`), a label from a
known client's metadata (`m:`), the id of one of our sessions (`s:`), or a hash of the hand-off that began the work
(`h:`). `top`: it is the main agent's node, which has an empty id."""

_KINDS: dict[str, NodeKind] = {"x:": "declared", "m:": "metadata", "s:": "session", "h:": "handoff"}


def node_kind(node_id: str) -> NodeKind:
    """Returns the kind of a node, by the beginning of its id."""
    return _KINDS.get(node_id[:2], "top")


class DelegationNode(msgspec.Struct, frozen=True):
    """A stored node of the tree. Its id is unique within a tenant, and begins with its kind (`node_kind`).

    `parent` is the node that delegated the work, `agent` the agent's name, `session` the session of its last request,
    `call_id` the call that began it, if known; `at` is in seconds since the epoch. `candidates` is the number of calls
    that could have begun it; if there are two, neither is taken.
    """

    id: str
    parent: str = TOP
    agent: str = ""
    evidence: Evidence = "none"
    session: str = ""
    call_id: str = ""
    at: float = 0.0
    candidates: int = 0

    @property
    def is_placeholder(self) -> bool:
        """Whether the node is known only as another node's parent."""
        return self.evidence == "none" and not self.session


class AgentPosition(msgspec.Struct, frozen=True):
    """The position of a request in the tree. A request without any evidence is at the top.

    `partition` separates sessions and compactions of requests that share a label; it is empty if nothing needs to be
    separated. `is_subagent`: a sub-agent sends the request. `candidates` is as in `DelegationNode`.
    """

    node: str = TOP
    path: Path = ()
    agent: str = ""
    evidence: Evidence = "none"
    partition: str = ""
    is_subagent: bool = False
    parent: str = TOP
    call_id: str = ""
    candidates: int = 0
    client_session: str = ""
    """The client's own name for the session, if it has one."""
    node_named_by_others: str = ""
    """The id of the node that other requests' metadata name as this request's own; empty if they name none."""
    first_new_index: int = 0
    """The index of the first message of the client's list that no earlier request contained."""


def display_name(node: str) -> str:
    """Returns a node's name as its client writes it: the id without the letter for the kind of evidence.

    A node that began with a hand-off has no name of a client; the result is then a hash.
    """
    return node[2:]


def is_visible(owner: Path, viewer: Path) -> bool:
    """Whether the delegation with the path `viewer` sees a result of the delegation with the path `owner`.

    It sees its own results, its ancestors' and its descendants'. The top sees all, and all see the top's.
    """
    shared = min(len(owner), len(viewer))
    return owner[:shared] == viewer[:shared]
