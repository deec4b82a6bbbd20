"""What archive/path_walk.py needs of the JSONPath library, and the reason: its own evaluation has no bounds."""

from __future__ import annotations

import jsonpath_rfc9535

from accordion.archive.path_walk import select
from tests.code_fingerprints import find_changes

CODE = {
    "jsonpath_rfc9535.node": {
        "JSONPathNode": "fa2c10185641",
    },
    "jsonpath_rfc9535.environment": {
        "JSONPathEnvironment.__init__": "5eb808f6ab91",
        "JSONPathEnvironment.compile": "8ec040ebc03b",
        "JSONPathEnvironment.setup_function_extensions": "3440324670d2",
    },
    "jsonpath_rfc9535.filter_expressions": {
        "Expression": "657ced61e275",
        "FilterExpression": "f0dc5a17d10b",
        "ComparisonExpression": "6749e187068d",
        "LogicalExpression": "70c921f841e0",
        "PrefixExpression": "057ccc4184ad",
        "FilterQuery": "7cbfd84dfbe0",
        "FunctionExtension": "c67903ab8105",
    },
    "jsonpath_rfc9535.selectors": {
        "FilterSelector": "e919c22d2c70",
        "NameSelector": "ac1c2bdf023c",
        "IndexSelector": "de626005e4f4",
        "SliceSelector": "ffe05f1929bc",
        "WildcardSelector": "643e4725896e",
    },
    "jsonpath_rfc9535.segments": {
        "JSONPathChildSegment": "20775a889888",
        "JSONPathRecursiveDescentSegment": "f1c425ccbbf6",
    },
}


def test_overridden_code_is_as_it_was() -> None:
    assert find_changes(CODE) == {}


def test_the_jsonpath_package_itself_visits_every_node() -> None:
    """A model may write such a path, and a document of 300,000 values may come from any tool."""
    document, path = [[0] * 1_000] * 300, "$..*"
    assert len(jsonpath_rfc9535.find(path, document)) == 300_300
    assert not select(document, path, 1_000_000).complete


def test_paths_select_the_same_nodes_as_the_jsonpath_package() -> None:
    document = {"a": [{"n": 1, "s": "one"}, {"n": 2, "s": "two"}], "b": {"c": [1, 2, 3]}}
    for path in ("$.a[*].n", "$..n", "$.a[?@.n>1].s", "$.b.c[1:]", "$.a[?match(@.s, 't.o')].n", "$.a[?!(@.n==1)].s"):
        found = select(document, path, 100)
        assert [value for _, value in found.values] == jsonpath_rfc9535.find(path, document).values()
        assert found.complete
