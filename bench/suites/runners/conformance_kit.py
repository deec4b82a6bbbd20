"""compaction-conformance-kit: which of a user's rules, constraints, facts, goals and preferences survive five rounds.

Each round compacts on request. The kit hands a compactor its own output of the round before; a client of a proxy sends
its whole list again. So Accordion is given that with one more exchange in each round (`one more turn`), with many
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
from compaction_kit.canaries import seeded_canaries  # type: ignore[import-not-found]
from compaction_kit.cli import COMPACTORS  # type: ignore[import-not-found]
from compaction_kit.compacted import CompactedContext  # type: ignore[import-not-found]
from compaction_kit.runner import run_conformance  # type: ignore[import-not-found]
from compaction_kit.session import build_seeded_session  # type: ignore[import-not-found]

from bench.suites.product import Messages, Product, text_of

WINDOW = 4_000
ROUNDS = 5
SEEDS = range(1, 13)
BUDGETS = (0.2, 0.3)
BUDGET_SEEDS = range(1, 5)
MODES = {"one more turn": 1, "growing list": 40, "own output": 0}
"""Turns of filler in each round after the first. With none, a list is what was sent the round before."""
CORPORA = {
    "seeded": lambda _: (build_seeded_session(), seeded_canaries()),
    "corpus": corpus.build_random_session,
    "generated": generated.build_generated_session,
}
_FILLER = corpus._FILLER


class Accordion:
    """Accordion as a compactor of the kit. Within a budget of characters: with the window that fills it best."""

    name = "accordion"
    _numbers = count()

    def __init__(self, product: Product, growth: int) -> None:
        self._product = product
        self._growth = growth
        self._session = next(self._numbers)
        self._list: Messages = []
        self._compacted: Messages = []

    def compact(self, turns: Any, round_num: int = 1, budget_chars: int | None = None) -> Any:
        """One round; see the module."""
        if round_num == 1:
            self._list = [{"role": turn.role, "content": turn.text} for turn in turns]
            self._list.append({"role": "user", "content": "Please go on."})
        elif self._growth:
            self._list = [*self._list, *_filler(round_num, self._growth)]
        elif budget_chars is None:
            self._list = self._compacted
        if budget_chars is None:
            self._compacted = self._at(WINDOW)
        elif round_num == 1:
            # Later rounds send the same list, which gives the same.
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


def _filler(number: int, turns: int) -> Messages:
    """Turns that go on from an answer that is still missing."""
    texts = [_FILLER[(number * turns + turn) % len(_FILLER)] for turn in range(turns)]
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
        made: dict[str, Callable[[], Any]] = {
            f"accordion, {mode}": partial(Accordion, product, growth) for mode, growth in MODES.items()
        }
        made |= COMPACTORS
        shares = {
            name: {
                title: survival(build, make, SEEDS[:1] if title == "seeded" else SEEDS)
                for title, build in CORPORA.items()
            }
            for name, make in made.items()
        }
        ranked = {"accordion": made["accordion, own output"], **COMPACTORS}
        board = run_budget_benchmark(ranked, budgets=BUDGETS, seeds=BUDGET_SEEDS, rounds=ROUNDS)
    print(json.dumps({"shares": shares, "board": board["entries"]}))


if __name__ == "__main__":
    main()
