"""compaction-conformance-kit: which of a user's rules, constraints, facts, goals and preferences survive five rounds.

Each round compacts on request. The kit hands a compactor its own output of the round before; a client of a proxy sends
its whole list again, so that Accordion is given that (`whole list`), the same with turns of filler added in each round
(`growing list`), and what was sent the round before (`own output`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from compaction_kit import corpus, generated  # type: ignore[import-not-found]
from compaction_kit.benchmark import run_budget_benchmark  # type: ignore[import-not-found]
from compaction_kit.cli import COMPACTORS  # type: ignore[import-not-found]
from compaction_kit.compacted import CompactedContext  # type: ignore[import-not-found]
from compaction_kit.runner import run_conformance  # type: ignore[import-not-found]

from bench.suites.product import Messages, Product, text_of

WINDOW = 4_000
ROUNDS = 5
SEEDS = range(1, 13)
BUDGETS = (0.2, 0.3)
BUDGET_SEEDS = range(1, 5)
GROWS_BY = 40
"""Turns of filler in each round, where the list grows."""
MODES = ("whole list", "growing list", "own output")
CORPORA = {"corpus": corpus.build_random_session, "generated": generated.build_generated_session}
_FILLER = corpus._FILLER


class Accordion:
    """Accordion as a compactor of the kit. Within a budget of characters: with the window that fills it best."""

    name = "accordion"
    _numbers = count()

    def __init__(self, product: Product, mode: str) -> None:
        self._product = product
        self._mode = mode
        self._session = next(self._numbers)
        self._list: Messages = []
        self._compacted: Messages = []

    def compact(self, turns: Any, round_num: int = 1, budget_chars: int | None = None) -> Any:
        """One round; see the module."""
        if round_num == 1:
            self._list = [{"role": turn.role, "content": turn.text} for turn in turns]
            self._list.append({"role": "user", "content": "Please go on."})
        elif self._mode == "own output":
            self._list = self._compacted
        elif self._mode == "growing list":
            self._list = [*self._list, *_filler(round_num)]
        if budget_chars is None:
            self._compacted = self._at(WINDOW)
        elif round_num == 1 or self._mode != "whole list":
            self._compacted = self._within(budget_chars)
        return CompactedContext(text=text_of(self._compacted), compactor_name=self.name, round_num=round_num)

    def _at(self, window: int) -> Messages:
        return self._product.compact(self._list, window, f"kit-{self._session}-{window}", on_request=True)

    def _within(self, budget: int) -> Messages:
        best = self._best(range(500, 2 * budget + 500, 100), budget)
        return self._at(self._best(range(best, best + 100, 10), budget))

    def _best(self, windows: range, budget: int) -> int:
        """The window that fills the budget best; the first one if none fits."""
        sizes = {window: len(text_of(self._at(window))) for window in windows}
        fitting = [window for window in windows if sizes[window] <= budget]
        return max(fitting, key=sizes.__getitem__, default=windows[0])


def _filler(number: int) -> Messages:
    """Turns that go on from an answer that is still missing."""
    texts = [_FILLER[(number * GROWS_BY + turn) % len(_FILLER)] for turn in range(GROWS_BY)]
    answered = {"role": "assistant", "content": "Acknowledged. Continuing with the plan."}
    return [message for text in texts for message in (answered, {"role": "user", "content": text})]


def survival(build: Callable[[int], Any], make: Callable[[], Any], seeds: Sequence[int]) -> list[float]:
    """The share of all that is left after each round, over all sessions."""
    by_round: list[list[bool]] = [[] for _ in range(ROUNDS)]
    for seed in seeds:
        session, canaries = build(seed)
        run = run_conformance(session, make(), rounds=ROUNDS, canaries=canaries)
        for found, result in zip(by_round, run.rounds, strict=True):
            found += [result.survived[each.id] for each in canaries]
    return [100 * sum(found) / len(found) for found in by_round]


def main() -> None:
    """Prints the shares by corpus and compactor, and the leaderboard."""
    with Product() as product:
        made: dict[str, Callable[[], Any]] = {f"accordion, {mode}": partial(Accordion, product, mode) for mode in MODES}
        made |= COMPACTORS
        shares = {
            name: {title: survival(build, make, SEEDS) for title, build in CORPORA.items()}
            for name, make in made.items()
        }
        ranked = {"accordion": made["accordion, whole list"], **COMPACTORS}
        board = run_budget_benchmark(ranked, budgets=BUDGETS, seeds=BUDGET_SEEDS, rounds=ROUNDS)
    print(json.dumps({"shares": shares, "board": board["entries"]}))


if __name__ == "__main__":
    main()
