"""Recall: questions about recorded chats whose answer is in view, beside BM25; turns that need nothing; and the CPU.

The chats are not part of this repository; `bench/questions.py` says what counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Final

from msgspec.structs import replace

from accordion.archive.passage_index import PassageIndexes
from accordion.config.settings import RecallConfig
from accordion.insertions.excerpts import ArchiveSearch, Excerpt
from accordion.model.compaction import CompactedConversation, Compaction, CompactionEntry, apply_compaction
from accordion.model.conversation import Conversation, Message, Text
from accordion.providers.models.static_embedding import load_table
from accordion.providers.models.tokenizer import TiktokenCounter
from bench import compaction_steps
from bench.questions import (
    HELD_OUT,
    Chat,
    ChatReplay,
    Question,
    WordSearch,
    normalize,
    questions_of,
    read_chats,
    visible_text,
)
from bench.report import Cell, Table
from bench.run_settings import RunSettings
from bench.servers import Unavailable

WINDOWS: Final = (16_000, 8_000)
BEST: Final = 10
"""Messages that BM25 brings."""
COLUMNS: Final = ("in the prompt", "questions", "all of the evidence", "any of it", "tokens", "with an excerpt")
TURN_COLUMNS: Final = ("turns of the chats", "turns behind a compaction", "with an excerpt")
SIZE: Final = 475_000
"""Bytes of a conversation of 100,000 tokens."""
TAIL: Final = 30
"""Messages behind the compaction."""
ASKED: Final = {
    "question, nothing found": "Now go on with the rest of it, and what about src_of_nothing.py?",
    "excerpt of two sources": "Please compare src/part_9.py with src/part_13.py.",
}


def run(setting: RunSettings) -> list[Table]:
    folder = setting.data or (setting.tools.resolve().parent / "data" / "trajectories" if setting.tools else None)
    if folder is None or not (file := folder / "locomo.jsonl.gz").is_file():
        raise Unavailable("recall: say where locomo.jsonl.gz is, by --data FOLDER or BENCH_DATA")
    chats = read_chats(file)[: 1 if setting.quick else None]
    return [*(table for window in WINDOWS for table in _tables(window, chats)), _speed()]


# -- what it brings back -----------------------------------------------------------------------------------------------


def _tables(window: int, chats: Sequence[Chat]) -> list[Table]:
    """What is in view for the questions of chats at one window, and how many of their turns get an excerpt."""
    size, count = f"{window // 1000}k", partial(TiktokenCounter().count, encoding="o200k_base")
    halves = "development", "held out"
    figures = {half: Counter[str]() for half in halves}
    for chat in chats:
        found = figures[halves[chat["id"] in HELD_OUT]]
        found += _ask_product(window, chat, RecallConfig(tokens=0), "without an excerpt")
        found += _ask_product(window, chat, RecallConfig(), "with an excerpt")
        found += _ask_product(
            window, chat, RecallConfig(embedding=True), "with an excerpt, ranked by the embedding too"
        )
        found += _ask_word_search(chat, count, int(RecallConfig().share * window))
    answers = Table(f"Questions after recorded chats at a window of {size} tokens", COLUMNS, block=f"recall-{size}")
    turns = Table(f"Turns of these chats at {size}, which need nothing", TURN_COLUMNS, block=f"recall-{size}")
    for half, found in figures.items():
        answers.rows += _rows(half, found)
        if found["turns"]:
            turns.rows.append([half, found["turns"], _percent(found["turns with"], found["turns"])])
            share = 100 * found["turns with"] / found["turns"]
            turns.goal(f"turns that need nothing and get an excerpt, {half}", share, 5.0, "%")
    answers.notes.append(
        "shares in per cent; tokens: of the whole prompt, or of the messages that BM25 brings; held out are"
        f" {', '.join(HELD_OUT)}"
    )
    return [answers, turns]


def _rows(half: str, found: Counter[str]) -> Iterable[list[Cell]]:
    for name in dict.fromkeys(key.partition(": ")[0] for key in found if ": " in key):
        asked = found[f"{name}: asked"]
        yield [
            f"{half}: {name}",
            asked,
            _percent(found[f"{name}: all"], asked),
            _percent(found[f"{name}: any"], asked),
            f"{found[f'{name}: tokens'] / asked:,.0f}",
            _percent(found[f"{name}: excerpts"], asked) if "excerpt" in name else None,
        ]


def _ask_product(window: int, chat: Chat, recall: RecallConfig, name: str) -> Counter[str]:
    replay, found = ChatReplay(window, recall), Counter[str]()
    try:
        for turn in replay.turns(chat):
            if recall.tokens and not recall.embedding:
                found["turns"] += 1
                found["turns with"] += turn.recall_usage is not None
        for question in questions_of(chat):
            prepared = replay.ask(chat, question.text)
            found[f"{name}: excerpts"] += prepared.recall_usage is not None
            found += _score(name, question, visible_text(prepared), prepared.utilization.tokens)
    finally:
        replay.close()
    return found


def _ask_word_search(chat: Chat, count: Callable[[str], int], tokens: int) -> Counter[str]:
    search, found = WordSearch(chat["messages"]), Counter[str]()
    texts = [message["content"] for message in chat["messages"]]
    sizes = [*map(count, texts)]
    for question in questions_of(chat):
        order, chosen, size = search.find(question.text), list[int](), 0
        for at in order:
            if size + sizes[at] > tokens:
                break
            chosen.append(at)
            size += sizes[at]
        for name, best in ((f"BM25's {BEST} best messages", order[:BEST]), (f"BM25 at {tokens} tokens", chosen)):
            text = normalize("\n".join(texts[at] for at in best))
            found += _score(name, question, text, sum(sizes[at] for at in best))
    return found


def _score(name: str, question: Question, text: str, tokens: int) -> Counter[str]:
    present = [sentence in text for sentence in question.sentences]
    figures = {"asked": 1, "all": int(all(present)), "any": int(any(present)), "tokens": tokens}
    return Counter({f"{name}: {each}": value for each, value in figures.items()})


def _percent(part: int, whole: int) -> str | None:
    return f"{100 * part / whole:.1f}" if whole else None


# -- what it takes -----------------------------------------------------------------------------------------------------


def _speed() -> Table:
    """The CPU time of an index and of look-ups, behind a compaction of 200,000 tokens."""
    case, client = asyncio.run(compaction_steps.captured(compaction_steps.conversation(1, SIZE).body(), 200_000))
    counter, compacted = TiktokenCounter(), _compacted(client)
    covered = compacted.covered_count
    taken = {"index": _timed(lambda: PassageIndexes().index(client.messages, client.chain, covered), 9)}
    load_table()
    taken["index with the embedding"] = _timed(lambda: _search_by_embedding().prepare(client, covered), 9)
    newest = range(len(client.messages) - 1, len(client.messages))
    searches = [(label, text, ArchiveSearch()) for label, text in ASKED.items()]
    searches += [(f"{label}, with the embedding", text, _search_by_embedding()) for label, text in ASKED.items()]
    for label, text, archive_search in searches:
        asked = _asking(client, text)
        shown = _compacted(asked)

        def look(
            archive_search: ArchiveSearch = archive_search,
            shown: CompactedConversation = shown,
            asked: Conversation = asked,
        ) -> Excerpt | None:
            count = partial(counter.count, encoding="o200k_base")
            return archive_search.find_excerpt(case.ref.tenant, shown, asked, newest, count, tokens=2_000)

        if (look() is not None) != ("src/" in text):
            raise RuntimeError(f"{label}: not what was expected")
        taken[label] = _timed(look, 100)
    table = Table(
        f"CPU of recall behind a compaction of {case.utilization.tokens:,} tokens", ("step", "CPU ms", "lowest")
    )
    for label, ms in taken.items():
        table.rows.append([label, median(ms), min(ms)])
    indexes = PassageIndexes()
    passages, size = len(indexes.index(client.messages, client.chain, covered)), indexes.size
    ArchiveSearch(indexes, load_table).prepare(client, covered)
    sizes = f"{size / 1e6:.1f} MB, {indexes.size / 1e6:.1f} MB with the embedding"
    table.notes.append(f"the index has {passages:,} passages in about {sizes}")
    table.goal("index", median(taken["index"]), 100.0, "ms")
    for label in ASKED:
        table.goal(label, median(taken[label]), 10.0, "ms")
    return table


def _search_by_embedding() -> ArchiveSearch:
    return ArchiveSearch(load_embedding=load_table)


def _asking(client: Conversation, text: str) -> Conversation:
    """The same with another text as its last message."""
    last = replace(client.messages[-1], key=text.encode(), parts=(Text(text),))
    return replace(client, messages=(*client.messages[:-1], last))


def _compacted(client: Conversation) -> CompactedConversation:
    """The conversation with all but its ends behind a block."""
    covered = len(client.messages) - TAIL
    block = CompactionEntry(1, covered - 1, b"block")
    compaction = Compaction(
        "f-bench",
        client.chain[covered - 1],
        covered,
        (CompactionEntry(0, 0), block),
        "conversation",
        "automatic",
        0.5,
        (),
        200_000,
        50_000,
        1,
        0.0,
    )
    return apply_compaction(
        client, compaction, lambda wire: Message(wire, "user", (Text("What was done so far."),), wire)
    )


def _timed(work: Callable[[], object], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(1_000 * (time.process_time() - began))
    return taken
