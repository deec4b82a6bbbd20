"""Users' rules over five compactions: the share of statements that are left, by kind, language and window."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from bench.quality_adapter import compact
from bench.report import Table
from bench.rules import KINDS, LANGUAGES, Conversation, made, planted, recordings
from bench.run_settings import RunSettings
from bench.servers import Unavailable

ROUNDS = 5
TURNS = 60
"""Turns of remarks between two rounds: enough for another compaction."""
MADE = (4_000, 8_000)
PLANTED = {
    4_000: ("service_tau", "service_tau2"),
    8_000: ("service_tau2", "delegation_magentic_one", "coding_mini_swe_agent"),
    32_000: ("coding_mini_swe_agent", "coding_claude_code"),
}
"""For each window the recordings that statements are planted in."""
_LENGTH = 16
"""Characters of a run for each token of the window: about four windows."""

Counts = dict[tuple[str, int], list[bool]]


def run(setting: RunSettings) -> list[Table]:
    windows = setting.windows or tuple(PLANTED)
    tables = [_table(window, setting.fewer(6, 2)) for window in MADE if window in windows]
    data = setting.data or (setting.tools.parent / "data" / "trajectories" if setting.tools else None)
    if data is None or not data.exists():
        setting.skipped["rules planted in recorded runs"] = (
            "say where recorded runs are, by --data FOLDER or BENCH_DATA"
        )
        return tables
    for window in windows:
        runs = list(islice(recordings(data, PLANTED[window], _LENGTH * window), setting.fewer(6, 1)))
        if not runs:
            raise Unavailable(f"rules: the recordings are too short for a window of {window}")
        talks = (
            planted(language, seed, ROUNDS, recorded) for language in LANGUAGES for seed, recorded in enumerate(runs)
        )
        note = f"{len(runs)} recorded runs, statements planted in each language"
        tables.append(_measured(f"What users stated in recorded runs, window {window:,}", window, talks, note))
    return tables


def _table(window: int, seeds: int) -> Table:
    talks = (made(language, seed, ROUNDS, TURNS) for language in LANGUAGES for seed in range(seeds))
    note = f"{seeds} conversations a language"
    return _measured(f"What users stated, window {window:,}", window, talks, note)


def _measured(title: str, window: int, talks: Iterable[Conversation], note: str) -> Table:
    by: Counts = defaultdict(list)
    figures = Counter[str]()
    for number, talk in enumerate(talks):
        figures.update(_measure(talk, f"{title}-{number}", window, by))
    columns = ("stated", *(f"round {number}, %" for number in range(1, ROUNDS + 1)))
    table = Table(f"{title}: left after each compaction", columns)
    for name in (*KINDS, *LANGUAGES, "all"):
        table.rows.append([name, *(_share(by[name, number]) for number in range(ROUNDS))])
    table.notes.append(f"{note}; the extractive writer, no model; {figures['compacted']} of {figures['requests']} "
                       f"requests were compacted")  # fmt: skip
    if figures["missing"]:
        table.notes.append(f"of {figures['missing']:,} that are not in the window, {figures['archived']:,} stand in an "
                           "artifact that it names")  # fmt: skip
    stale = figures["stale"]
    table.goals.append(f"only the old value of a correction is left: {stale} times, {'NOT met' if stale else 'met'}")
    table.goal("all, round 5", _share(by["all", ROUNDS - 1]), 95.0, "%", at_least=True)
    return table


def _measure(talk: Conversation, name: str, window: int, by: Counts) -> Iterator[str]:
    """Sends a conversation, lets it grow, and so on; names what is to be counted."""
    messages: list[dict[str, object]] = []
    for number, more in enumerate(talk.rounds):
        messages += more
        asked: list[dict[str, Any]] = [*messages, {"role": "user", "content": "Please go on."}]
        sent, archived = compact(asked, [], window, {"conversation_id": f"rules-{name}"})
        text, kept = json.dumps(sent, ensure_ascii=False), "\n".join(archived.values())
        yield "requests"
        yield from ["compacted"] * (sent != asked)
        for statement in talk.statements:
            survives = statement.survives(text)
            for key in (statement.kind, talk.language, "all"):
                by[key, number].append(survives)
            if not survives:
                yield "missing"
                yield from ["archived"] * (statement.value in kept)
            yield from ["stale"] * statement.is_stale(text)


def _share(found: list[bool]) -> float:
    return 100 * sum(found) / max(1, len(found))
