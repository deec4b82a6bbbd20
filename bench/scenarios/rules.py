"""Users' rules over five compactions: the share of statements that are left, by kind, language and window.

In recorded chats, also what people say in passing, beside BM25, and how much of the standing instructions is one.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from accordion.config.settings import RecallConfig
from accordion.summaries.instructions import OPENING, TITLE
from bench.quality_adapter import compact
from bench.questions import HELD_OUT, ChatReplay, WordSearch, normalize, read_chats, visible_text
from bench.report import Table
from bench.rules import CHAT_KINDS, KINDS, LANGUAGES, Conversation, chatted, made, planted, recordings
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
CHAT_WINDOW = 16_000
BEST = 10
"""Messages that BM25 brings."""
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
    tables += _chats(data / "locomo.jsonl.gz", setting.fewer(3, 1))
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


def _chats(file: Path, seeds: int) -> list[Table]:
    """What people say in passing in long chats, and how much of the standing instructions there is one."""
    if not file.exists():
        return []
    columns = ("said in passing", "statements", "in view, %", "only the old value", "asked for, %", "BM25's 10 best, %")
    table = Table(f"What people say in chats, window {CHAT_WINDOW:,}: in view at the end", columns)
    section_columns = ("chats", "characters of records", "of standing instructions", "that are one, %")
    sections = Table(f"Standing instructions in chats, window {CHAT_WINDOW:,}", section_columns)
    chats = read_chats(file)
    for half, is_held_out in (("development", False), ("held out", True)):
        messages = [each["messages"] for each in chats if (each["id"] in HELD_OUT) == is_held_out]
        plain = Conversation("English", [[message for chat in messages for message in chat]], [])
        talks = [chatted(seed, messages) for seed in range(seeds)]
        found = Counter[tuple[str, str]]()
        for number, talk in enumerate((plain, *talks)):
            found += _measure_chat(talk, f"chat-{half[:4]}-{number}")
        for kind in CHAT_KINDS:
            count = found[kind, "all"]
            view, asked, searched = (100 * found[kind, what] / count for what in ("view", "asked", "BM25"))
            table.rows.append([f"{half}: {kind}", count, view, found[kind, "old"], asked, searched])
            table.goal(f"{kind}, {half}", view, 90.0, "%", at_least=True)
        for kind in ("plain", "with statements"):
            listed, right = found[kind, "listed"], found[kind, "right"]
            share = 100 * right / max(1, listed) if kind != "plain" else None
            sections.rows.append([f"{half}: {kind}", found[kind, "record"], listed, share])
        sections.goal(f"standing instructions, {half}", share or 0.0, 90.0, "%", at_least=True)
    stale = sum(int(row[3] or 0) for row in table.rows)
    table.goals.append(f"only the old value is left: {stale} times, {'NOT met' if stale else 'met'}")
    sections.notes.append("plain chats have none; the others have what is added to them, with the facts that it states")
    return [table, sections]


def _measure_chat(talk: Conversation, name: str) -> Counter[tuple[str, str]]:
    """Sends the turns of a chat, then a request that needs nothing, and each question; counts what is in view."""
    messages, found = talk.rounds[0], Counter[tuple[str, str]]()
    replay, search = ChatReplay(CHAT_WINDOW, RecallConfig()), WordSearch(messages)
    chat = {"id": name, "messages": messages}
    try:
        deque(replay.turns(chat), maxlen=0)
        text = visible_text(replay.ask(chat, "Please go on."))
        found += _count_characters(talk, text)
        for each in talk.statements:
            best = " ".join(messages[at]["content"] for at in search.find(each.question)[:BEST])
            found[each.kind, "all"] += 1
            found[each.kind, "view"] += each.survives(text)
            found[each.kind, "old"] += each.is_stale(text)
            found[each.kind, "asked"] += each.survives(visible_text(replay.ask(chat, each.question)))
            found[each.kind, "BM25"] += each.survives(normalize(best))
    finally:
        replay.close()
    return found


def _count_characters(talk: Conversation, text: str) -> Counter[tuple[str, str]]:
    """The characters of a record, of its standing instructions, and of those that were added to the chat."""
    kind = "with statements" if talk.statements else "plain"
    record = text[text.find(normalize(OPENING)) :]
    section = record.partition(f"## {normalize(TITLE)} ")[2].partition(" ## ")[0]
    lines = re.split(r" (?=\[\d+\] )", section) if section else []
    stated = [normalize(each) for statement in talk.statements for each in (statement.text, statement.earlier) if each]
    right = sum(len(line) for line in lines if any(each in line for each in stated))
    return Counter({(kind, "record"): len(record), (kind, "listed"): sum(map(len, lines)), (kind, "right"): right})


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
