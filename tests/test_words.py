"""The package's names are words of the field, and no two public classes have the same one."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "proxy" / "accordion"

# fmt: off
METAPHORS = frozenset(
    {
        "gauge", "gauging", "folding", "unfolding", "unfold", "splice", "weave", "weaver", "woven", "desk",
        "seating", "seat", "seats", "dresser", "dressing", "wardrobe", "laying", "overlay", "overlays", "trail",
        "trails", "wish", "wishes", "custody", "holdings", "vault", "lane", "letter", "veil", "house",
        "kitchen", "library", "rooms", "tap", "recollecting", "recollection",
    }
)
"""Words that no name may contain."""
WHOLE_NAMES = METAPHORS | frozenset(
    {
        "round", "completing", "links", "named", "retrieving", "opening", "sharing", "shown", "recalling",
        "importing", "remembering", "dialect", "points", "places", "nodes", "marks", "mark", "controls",
        "reading", "room", "taught", "learning", "others", "stretch", "touched", "standing", "substance",
        "face", "faces", "offline", "telling", "seen", "told", "held", "found", "said", "kept", "given",
    }
)
"""Words that are no name by themselves. In another name, a noun can make them clear."""
# fmt: on

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions() -> Iterator[tuple[str, Definition]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, Definition):
                yield module, node


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def is_out_of_use(name: str) -> bool:
    return name.strip("_").lower() in WHOLE_NAMES or not METAPHORS.isdisjoint(words_of(name))


def test_no_two_public_classes_have_the_same_name() -> None:
    modules = defaultdict(list)
    for module, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            modules[node.name].append(module)
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}


def test_no_module_has_a_name_that_is_out_of_use() -> None:
    paths = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    assert [str(path) for path in paths if any(map(is_out_of_use, path.with_suffix("").parts))] == []


def test_no_class_or_function_has_a_name_that_is_out_of_use() -> None:
    assert [f"{module}: {node.name}" for module, node in definitions() if is_out_of_use(node.name)] == []


def test_the_words_out_of_use_are_recognized_in_any_spelling() -> None:
    assert all(map(is_out_of_use, ("Gauge", "_gauge", "gauge_request", "RequestGauge", "Round", "offline")))
    assert not any(map(is_out_of_use, ("ToolRound", "RequestControls", "offline_pipeline", "measure", "StoreIdentity")))
