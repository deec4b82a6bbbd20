"""Delegations: who works for whom, and who may see what.

Agents hand work to agents. Each piece of work that was handed on is a *delegation*, a node of a tree; the main agent is
the tree's top and stands above all of them. What a tool answered belongs to the delegation whose request made the call
(its *scope*), and is seen by that one, by those it works for and by those that work for it.
"""

from __future__ import annotations

from typing import Literal

from accordion.core.values import dataclass

TOP = ""
"""The top of every conversation: an ancestor of all delegations."""

Path = tuple[str, ...]
"""A node's ancestors, oldest first, and the node itself; the top is left out, so its own path is empty."""

Evidence = Literal["header", "mark", "handoff", "tool", "argument", "none"]
"""What an edge is known by: a header or field of ours, a known client's marks, a hand-off call, a string argument of a
delegating tool or of any other tool. `none` where no edge is known."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """A node of the tree as it is kept. Its id is unique within a tenant.

    `parent` is the node it works for, `agent` what it is called, `session` the session it was last seen with, `call_id`
    the call that began it, where that is known; `at` seconds since the epoch. `candidates` is how many calls could have
    begun it: of two, neither did.
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
    def placeholder(self) -> bool:
        """Whether it was only named as a parent so far."""
        return self.evidence == "none" and not self.session


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a request sits in the tree. One without any evidence sits at the top.

    `scope` divides places and folds of requests that share a label, empty where nothing else is to be divided;
    `delegated` says whether a sub-agent speaks; `candidates` as for Delegation.
    """

    node: str = TOP
    path: Path = ()
    agent: str = ""
    evidence: Evidence = "none"
    scope: str = ""
    delegated: bool = False
    parent: str = TOP
    call_id: str = ""
    candidates: int = 0
    mark: str = ""
    """The client's own name for the session, if it has one."""
    home: str = ""
    """By which name the marks of others speak of a request at the top; empty where they cannot."""
    since: int = 0
    """The index of the first message of the client's list that was not looked at before."""


def name_of(node: str) -> str:
    """A node as its client would name it: without the letter that tells how it is known. Of one that was handed to,
    which no client names, what is left is a hash."""
    return node[2:]


def visible(scope: Path, viewer: Path) -> bool:
    """Whether a result of the delegation with the path `scope` is seen by the one with the path `viewer`: its own, an
    ancestor's or a descendant's. The top sees all, and what is the top's is seen by all."""
    shared = min(len(scope), len(viewer))
    return scope[:shared] == viewer[:shared]
