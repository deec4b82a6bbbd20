"""Each attribute that a template of the page names exists, also in the parts that few records show."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from jinja2 import nodes

from accordion.accounting.holdout import HoldoutComparison
from accordion.accounting.holdout_text import ComparedRow
from accordion.accounting.key_limits import KeyLimits
from accordion.accounting.ledger import AgentSavings, ModelSavings, SavingsReport
from accordion.archive.archive_reader import ArtifactPart
from accordion.archive.artifacts import Artifact
from accordion.archive.erasure import ErasureResult
from accordion.archive.feature_records import ErasedRecords
from accordion.compaction.session_overrides import SessionOverrides
from accordion.features.memory.memory_view import MemoryRow
from accordion.features.page import rendering
from accordion.features.page.compaction_view import Verdict
from accordion.features.page.recent_log import LogLine
from accordion.features.page.request_health import TenantHealth
from accordion.features.page.session_view import CompactionRow, RequestRow
from accordion.features.page.views import (
    AgentRow,
    BlockView,
    CitedLine,
    Health,
    LinkedText,
    MessageView,
    ModelRow,
    PartView,
    SessionRow,
)
from accordion.http.admin_api import KeyView, TenantPage
from accordion.model.compaction import Compaction
from accordion.model.costs import Costs
from accordion.model.records import Session, Totals
from accordion.pipeline.queries import SessionView
from accordion.pipeline.sent_history import SentRequest
from accordion.pipeline.session_exchanges import NumberedExchange
from accordion.sessions.proxy_keys import ProxyKeyRecord

Types = dict[str, Any]
PACKAGES = ("accordion.features.memory",)
"""The other packages with templates."""

TYPES: dict[str, Types] = {
    "artifact.html": {"artifact": Artifact, "part": ArtifactPart, "lines": list[list[LinkedText]]},
    "base.html": {},
    "compaction.html": {
        "session": Session,
        "compaction": Compaction,
        "made": NumberedExchange,
        "verdict": Verdict,
        "blocks": list[BlockView],
    },
    "confirm_complete_erasure.html": {"nouns": list[str]},
    "confirm_erasure.html": {"session": Session},
    "confirm_undo.html": {"session": Session, "compaction": Compaction},
    "erased.html": {"erased": ErasureResult, "records": list[ErasedRecords]},
    "created_key.html": {"record": ProxyKeyRecord},
    "error.html": {},
    "health.html": {"health": Health},
    "key.html": {"view": KeyView},
    "memories.html": {"rows": list[MemoryRow]},
    "overview.html": {"models": list[ModelRow], "totals": Totals, "costs": Costs, "health": TenantHealth},
    "owner.html": {"page": TenantPage},
    "parts.html": {
        "limits": KeyLimits,
        "session": Session,
        "warnings": list[LogLine],
        "rows": list[SessionRow],
        "part": PartView,
        "view": MessageView,
        "block": BlockView,
        "line": CitedLine,
        "blocks": list[BlockView],
        "comparison": HoldoutComparison,
        "compared": list[ComparedRow],
    },
    "savings.html": {"report": SavingsReport, "entries": list[ModelSavings | AgentSavings]},
    "sent.html": {"session": Session, "sent": SentRequest, "blocks": list[BlockView]},
    "session.html": {
        "view": SessionView,
        "session": Session,
        "compactions": list[CompactionRow],
        "requests": list[RequestRow],
        "overrides": SessionOverrides,
        "agents": list[AgentRow],
        "artifacts": list[Artifact],
    },
    "sessions.html": {"sessions": list[SessionRow]},
    "sign_in.html": {},
    "tenants.html": {"page": TenantPage, "limits": KeyLimits},
}
"""The types of the values that a template is rendered with, and of the parameters of its macros."""


class Template:
    """Follows the types of a template's names, and lists the attributes that do not exist in `missing`."""

    def __init__(self, name: str) -> None:
        environment = rendering._environment(PACKAGES)
        assert environment.loader is not None
        self.tree = environment.parse(environment.loader.get_source(environment, name)[0])
        self.missing: list[str] = []
        self._follow(self.tree, dict(TYPES[name]))

    def _follow(self, node: nodes.Node, known: Types) -> None:
        if isinstance(node, nodes.For):
            known = dict(known)
            self._bind(node.target, element_of(self._type_of(node.iter, known)), known)
        elif isinstance(node, nodes.Assign):
            self._bind(node.target, self._type_of(node.node, known), known)
        elif isinstance(node, nodes.Getattr):
            self._type_of(node, known)
        for child in node.iter_child_nodes():
            self._follow(child, known)

    def _bind(self, target: nodes.Node, kind: Any, known: Types) -> None:
        if isinstance(target, nodes.Name):
            known[target.name] = kind
        elif isinstance(target, nodes.Tuple):
            kinds = get_args(kind) or [None] * len(target.items)
            for item, each in zip(target.items, kinds, strict=True):
                self._bind(item, each, known)

    def _type_of(self, node: nodes.Node | None, known: Types) -> Any:
        if isinstance(node, nodes.Name):
            return known.get(node.name)
        if isinstance(node, nodes.Filter) and node.name in ("reverse", "sort"):
            return self._type_of(node.node, known)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self._type_of(node.node, known)
        if not isinstance(node, nodes.Getattr):
            return None
        if isinstance(node.node, nodes.Const) or (isinstance(node.node, nodes.Name) and node.node.name == "loop"):
            return None
        classes = list(classes_of(self._type_of(node.node, known)))
        self.missing += [f"{node.lineno}: {each.__name__}.{node.attr}" for each in classes if not has(each, node.attr)]
        if not classes:
            self.missing.append(f"{node.lineno}: the type of what has {node.attr} is not known")
            return None
        return type_of_attribute(classes[0], node.attr)


def classes_of(kind: Any) -> Iterator[type]:
    """Yields the classes of a type, without None."""
    if get_origin(kind) in (Union, types.UnionType):
        for each in get_args(kind):
            yield from classes_of(each)
    elif isinstance(origin := get_origin(kind) or kind, type) and origin is not types.NoneType:
        yield origin


def element_of(kind: Any) -> Any:
    """Returns the type of the elements of a list or a set; None where it is not known."""
    arguments = get_args(kind)
    return arguments[0] if len(arguments) == 1 or (len(arguments) == 2 and arguments[1] is ...) else None


def has(owner: type, name: str) -> bool:
    return hasattr(owner, name) or name in hints_of(owner)


def type_of_attribute(owner: type, name: str) -> Any:
    member = getattr(owner, name, None)
    return hints_of(member.fget).get("return") if isinstance(member, property) else hints_of(owner).get(name)


def hints_of(owner: Any) -> Types:
    if not owner.__module__.startswith("accordion."):
        return {}
    return get_type_hints(owner)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_each_attribute_exists(name: str) -> None:
    assert Template(name).missing == []


def test_each_template_is_checked() -> None:
    assert sorted(TYPES) == sorted(each for each in rendering._environment(PACKAGES).list_templates())


@pytest.mark.parametrize("name", sorted(TYPES))
def test_no_template_has_an_absolute_address_or_two_versions(name: str) -> None:
    environment = rendering._environment(PACKAGES)
    assert environment.loader is not None
    source = environment.loader.get_source(environment, name)[0]
    # A merge leaves such lines where nobody resolved a conflict.
    assert not re.search(r"^(?:<{7}|>{7}|={7}$)", source, re.MULTILINE)
    assert re.findall(r"""=["'](?:/|https?:|\{\{ *["']/)[^"']*|["']/accordion""", source) == []
