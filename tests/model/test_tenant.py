"""No key of the store is built without a tenant, and the names of tenants in the store never change."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion.model.compaction import scope_prefix
from accordion.model.tenant import ConversationRef, TenantScope

PACKAGE = Path(__file__).parents[2] / "proxy" / "accordion"
TENANT = TenantScope("one", b"key of one")

SCOPED = frozenset({"ArchiveNamespace", "Caller", "ConversationRef", "ResultViewer", "ScopePrefix", "TenantScope"})
"""A parameter of these types says whose data a key is of."""

OF_NO_TENANT = {
    # The name is a hash that begins with the tenant's key.
    "archive/artifacts.py row_key",
    "archive/archive_entries.py fields_key",
    "sessions/prefix_nodes.py node_key",
    # A session's id is a hash that begins with the tenant's key.
    "sessions/prefix_index.py add",
    "sessions/prefix_index.py build_writes",
    "delegation/erasure.py _forget_nodes",
    # What is learned of a model. The owner, with the tenant, is the name.
    "accounting/calibration.py _put",
    # The name is a proxy key's id, which is that of the tenant.
    "accounting/key_limits.py _take_number",
    "accounting/key_limits.py count",
    # Proxy keys belong to the administrator; each is what makes a tenant.
    "sessions/proxy_keys.py",
    "sessions/proxy_keys.py create",
    "sessions/proxy_keys.py read",
    "sessions/proxy_keys.py revoke",
    "sessions/proxy_keys.py set_limits",
    # Marks, locks and probes of work that is done for all tenants.
    "archive/archive.py",
    "archive/erasure_notices.py",
    "archive/retention.py run_round",
    "cli/doctor.py",
    "composition/configured_store.py",
    "pipeline/compaction_stops.py",
    "pipeline/session_limits.py run_round",
}


def functions_that_build_keys() -> Iterator[tuple[str, bool]]:
    """Yields each module and function outside the stores that builds a key, and whether it is given a tenant."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if not module.startswith("stores/"):
            yield from _in_node(module, "", frozenset(), ast.parse(path.read_text("utf-8")))


def _in_node(module: str, function: str, types: frozenset[str], node: ast.AST) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        function, types = node.name, frozenset(ast.unparse(each.annotation) for each in arguments if each.annotation)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Key":
        yield f"{module} {function}".rstrip(), not types.isdisjoint(SCOPED)
    for child in ast.iter_child_nodes(node):
        yield from _in_node(module, function, types, child)


def test_every_key_of_the_store_is_built_of_a_tenant() -> None:
    assert {name for name, is_scoped in functions_that_build_keys() if not is_scoped} == OF_NO_TENANT


def test_a_key_that_is_built_without_a_tenant_is_found() -> None:
    module = (
        "def build(session: str):\n    return Key('', session)\n\ndef scoped(tenant: TenantScope):\n    Key('', 'a')"
    )
    assert list(_in_node("m.py", "", frozenset(), ast.parse(module))) == [("m.py build", False), ("m.py scoped", True)]


def test_the_names_of_a_tenant_in_the_store_are_those_of_earlier_versions() -> None:
    assert TENANT.archive_namespace == "7978bb6e86aeb31950e0f220"
    assert TENANT.delegation_collection("node") == "node/e1e6a522b1e84bb52c618ae2"
    assert scope_prefix(ConversationRef(TENANT, b"scope", "s-1")).hex() == "c823656de004cdf954564283a2db1df7"


def test_the_prefix_of_a_scope_depends_on_the_tenant_and_not_on_the_session() -> None:
    prefix = scope_prefix(ConversationRef(TENANT, b"scope", "s-1"))
    assert prefix == scope_prefix(ConversationRef(TENANT, b"scope", "s-2"))
    assert prefix != scope_prefix(ConversationRef(TENANT, b"other", "s-1"))
    assert prefix != scope_prefix(ConversationRef(TenantScope("one", b"another key"), b"scope", "s-1"))


def test_a_tenant_does_not_become_text_by_accident() -> None:
    with pytest.raises(TypeError, match="explicitly"):
        f"pins/{TENANT}"


def test_the_key_of_a_tenant_does_not_show() -> None:
    assert repr(TENANT) == "TenantScope(name='one')"
    assert "key of one" not in repr(ConversationRef(TENANT, b"scope", "s-1"))
