"""compactbench: its templates, filled and scored without a model.

Its own runner asks a model about what a compactor wrote. Here the answer is looked for in what would be sent: an item
counts if the value that it expects stands there, and a changed decision is stale if only the old one does. The
conversations of the templates are short, so that the suite's own distractors make them longer than the window.

`python -m bench.suites.runners.compact_bench TEMPLATES`: the folder with the suite's templates.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compactbench.dsl import DifficultyLevel, parse_template_file  # type: ignore[import-not-found]
from compactbench.engine import (  # type: ignore[import-not-found]
    derive_case_seed,
    generate_case,
    generate_distractor_turns,
)

from bench.suites.product import Messages, Product, text_of

WINDOWS = (4_000, 1_500, 1_000, 700)
ROUNDS = 5
CASES = 5
"""Of each template."""
BEFORE, BETWEEN = 0.06, 0.04
"""Distractors for each token of the window in front of the last message, and between two rounds: enough for a
compaction."""


def main() -> None:
    cases = list(_cases(Path(sys.argv[1])))
    with Product() as product:
        print(json.dumps({window: _measure(product, cases, window) for window in WINDOWS}))


def _cases(templates: Path) -> Iterator[tuple[Any, int]]:
    """The cases of all templates, with their seeds."""
    for file in sorted(templates.rglob("*.yaml")):
        template = parse_template_file(file)
        levels = template.difficulty_policy.distractor_turns
        level = DifficultyLevel.ELITE if DifficultyLevel.ELITE in levels else DifficultyLevel.HARD
        for slot in range(CASES):
            seed = derive_case_seed(template.key, "bench", slot)
            yield generate_case(template, seed, level), seed


def _measure(product: Product, cases: Sequence[tuple[Any, int]], window: int) -> dict[str, Any]:
    held: dict[tuple[str, int], list[bool]] = defaultdict(list)
    stale, decisions = [0] * ROUNDS, 0
    for case, seed in cases:
        decisions += bool(_decision(case)[1])
        for number, text in enumerate(_sent(product, case, seed, window)):
            for kind, is_held in _find_values(case, text):
                held[kind, number].append(is_held)
                held["all", number].append(is_held)
            stale[number] += _is_stale(case, text)
    shares = {kind: [_share(held[kind, number]) for number in range(ROUNDS)] for kind, _ in held}
    return {"shares": shares, "items": len(held["all", 0]), "stale": stale, "decisions": decisions}


def _sent(product: Product, case: Any, seed: int, window: int) -> list[str]:
    """What would be sent in each round of a conversation that goes on."""
    turns = [{"role": turn.role.value, "content": turn.content} for turn in case.transcript.turns]
    if turns[0]["role"] != "system":
        turns = [{"role": "system", "content": "You help with a project."}, *turns]
    *told, last = turns
    told, out = [*told, *_distractors(BEFORE * window, seed)], []
    for number in range(ROUNDS):
        out.append(text_of(product.compact([*told, last], window, f"{case.case_id}-{window}")))
        told += _distractors(BETWEEN * window, seed + number + 1)
    return out


def _distractors(count: float, seed: int) -> Messages:
    turns = generate_distractor_turns(round(count), 0, seed)
    return [{"role": turn.role.value, "content": turn.content} for turn in turns]


def _find_values(case: Any, text: str) -> list[tuple[str, bool]]:
    """Whether the values that items expect stand in a text. Items that expect something to be absent ask a model."""
    out = []
    for item in case.evaluation_items:
        wanted = item.expected.get("values") or [item.expected.get("value")]
        if item.expected["check"] in ("contains_normalized", "set_match"):
            out.append((item.item_type.value, all(_stands(each, text) for each in wanted)))
    return out


def _decision(case: Any) -> tuple[set[str], set[str]]:
    """A decision that was changed: the values in force, and those before; none where no decision was changed."""
    if "decision_override" not in case.template_key:
        return set(), set()
    kinds = ("locked_decision_retention", "contains_normalized")
    new = {
        each.expected["value"]
        for each in case.evaluation_items
        if (each.item_type.value, each.expected["check"]) == kinds
    }
    return new, set(case.ground_truth.forbidden_behaviors) - new


def _is_stale(case: Any, text: str) -> bool:
    """Whether only what was replaced stands in a text."""
    new, old = _decision(case)
    return any(_stands(each, text) for each in old) and not any(_stands(each, text) for each in new)


def _stands(value: str, text: str) -> bool:
    return " ".join(value.lower().split()) in " ".join(text.lower().split())


def _share(found: list[bool]) -> float:
    return 100 * sum(found) / max(1, len(found))


if __name__ == "__main__":
    main()
