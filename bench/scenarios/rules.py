"""What users ruled, over five compactions: the share of statements that are left, by kind, language and window."""

from __future__ import annotations

import json
import random
from collections import defaultdict

from bench.quality_adapter import compact
from bench.report import Table
from bench.rules import KINDS, LANGUAGES, Conversation, conversation
from bench.setting import Setting

ROUNDS = 5
WINDOWS = (4_000, 8_000)
TURNS = 60
"""Turns of remarks between two rounds: enough for another compaction."""

Counts = dict[tuple[str, int], list[bool]]


def run(setting: Setting) -> list[Table]:
    return [_table(window, setting.fewer(6, 2)) for window in WINDOWS]


def _table(window: int, seeds: int) -> Table:
    by: Counts = defaultdict(list)
    stale = 0
    for language in LANGUAGES:
        for seed in range(seeds):
            stale += _measure(conversation(language, seed), f"{language}-{seed}-{window}", window, by)
    columns = ("stated", *(f"round {number}, %" for number in range(1, ROUNDS + 1)))
    table = Table(f"What users stated, window {window:,}: left after each compaction", columns)
    for name in (*KINDS, *LANGUAGES, "all"):
        table.rows.append([name, *(_share(by[name, number]) for number in range(ROUNDS))])
    table.notes.append(f"{seeds} conversations a language; the extractive writer, no model")
    table.goals.append(f"only the old value of a correction is left: {stale} times, {'NOT met' if stale else 'met'}")
    table.goal("all, round 5", _share(by["all", ROUNDS - 1]), 95.0, "%", at_least=True)
    return table


def _measure(talk: Conversation, name: str, window: int, by: Counts) -> int:
    """Sends a conversation, lets it grow, and so on; gives how often only the old value of a correction was left."""
    chance, stale = random.Random(name), 0
    for number in range(ROUNDS):
        messages = [*talk.messages, {"role": "user", "content": "Please go on."}]
        sent, _ = compact(messages, [], window, {"conversation_id": f"rules-{name}"})
        text = json.dumps(sent, ensure_ascii=False)
        for statement in talk.statements:
            for key in (statement.kind, talk.language, "all"):
                by[key, number].append(statement.survives(text))
            stale += statement.is_stale(text)
        talk = talk.grown(TURNS, chance)
    return stale


def _share(found: list[bool]) -> float:
    return 100 * sum(found) / max(1, len(found))
