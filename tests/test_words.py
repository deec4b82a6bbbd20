"""Names are words of the field: in the package, its tests and its benchmarks. No two public classes share a name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = Path("proxy/accordion")
FOLDERS = (PACKAGE, Path("tests"), Path("bench"))
THIRD_PARTY_NAMES = Path("bench/suites/runners")
"""Their classes and functions implement interfaces of other projects."""

# fmt: off
METAPHORS = frozenset(
    {
        "gauge", "gauging", "fold", "folds", "folded", "folding", "unfold", "unfolding", "dialect", "dialects",
        "splice", "weave", "weaver", "woven", "desk", "seating", "seat", "seats", "dresser", "dressing", "wardrobe",
        "laying", "overlay", "overlays", "trail", "trails", "wish", "wishes", "custody", "holdings", "vault", "lane",
        "letter", "veil", "house", "kitchen", "library", "rooms", "tap", "recollecting", "recollection",
    }
)
"""Words that no name may contain."""
WHOLE_NAMES = METAPHORS | frozenset(
    {
        "round", "completing", "links", "named", "retrieving", "opening", "sharing", "shown", "recalling",
        "importing", "remembering", "points", "places", "nodes", "marks", "mark", "controls",
        "reading", "room", "taught", "learning", "others", "stretch", "touched", "standing", "substance",
        "face", "faces", "telling", "seen", "told", "held", "found", "said", "kept", "given",
    }
)
"""Words that are no name by themselves. In another name, a noun can make them clear."""
# fmt: on


class Definition(NamedTuple):
    """A class or a function."""

    module: Path
    name: str
    is_class: bool

    def __str__(self) -> str:
        return f"{self.module}: {self.name}"


def python_files() -> Iterator[Path]:
    """The files below the root, by their paths from there. Hidden folders are caches, and node_modules is not ours."""
    for folder in FOLDERS:
        for path in (each.relative_to(ROOT) for each in sorted((ROOT / folder).rglob("*.py"))):
            is_hidden = any(part.startswith(".") for part in path.parts)
            if not is_hidden and "node_modules" not in path.parts and THIRD_PARTY_NAMES not in path.parents:
                yield path


@cache
def definitions() -> tuple[Definition, ...]:
    return tuple(
        Definition(path, node.name, isinstance(node, ast.ClassDef))
        for path in python_files()
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def is_out_of_use(name: str) -> bool:
    return name.strip("_").lower() in WHOLE_NAMES or not METAPHORS.isdisjoint(words_of(name))


def test_no_two_public_classes_of_the_package_have_the_same_name() -> None:
    modules = defaultdict(list)
    for each in definitions():
        if PACKAGE in each.module.parents and each.is_class and not each.name.startswith("_"):
            modules[each.name].append(str(each.module))
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}


def test_no_module_has_a_name_that_is_out_of_use() -> None:
    assert [str(path) for path in python_files() if any(map(is_out_of_use, path.with_suffix("").parts))] == []


def test_no_class_or_function_has_a_name_that_is_out_of_use() -> None:
    assert [str(each) for each in definitions() if is_out_of_use(each.name)] == []


def test_the_names_of_tests_are_shorter_than_80_characters() -> None:
    assert [str(each) for each in definitions() if each.name.startswith("test_") and len(each.name) >= 80] == []


def test_the_words_out_of_use_are_recognized_in_any_spelling() -> None:
    assert all(map(is_out_of_use, ("Gauge", "_gauge", "gauge_request", "RequestGauge", "Round", "telling")))
    assert not any(map(is_out_of_use, ("ToolRound", "RequestControls", "offline_pipeline", "measure", "StoreIdentity")))
