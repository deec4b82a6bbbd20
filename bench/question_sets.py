"""Conversations with questions whose answers are known, for `reader` and `writer`. All choices follow from the seed.

- chats: parts of LoCoMo's chats for development, with the data set's own questions about them;
- runs: beginnings of recorded runs of agents, with questions about values in results of tools (`run_questions`); also
  runs of your own, which are trajectories (ATIF) or transcripts in `*.json` and `*.jsonl` files;
- rules: conversations of `rules.py`, with questions of two statements of which the users made one. Each is asked in
  both orders, since weak models prefer a letter.

The answers of controls never stood there: LoCoMo's own, and questions about a call of another run.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Final, Literal

from accordion.features.offline.recordings import MalformedTranscript
from accordion.features.offline.transcripts import RecordedTranscript, TranscriptSource
from bench.memory_recall import evidence
from bench.questions import HELD_OUT, normalize, questions_of, read_chats, words_of
from bench.rules import Statement, made, pronounceable
from bench.run_settings import RunSettings
from bench.servers import Unavailable

Message = Mapping[str, Any]
ConversationKind = Literal["chats", "runs", "rules"]
AnswerForm = Literal["words", "value", "letter", "unknown"]
KINDS: Final[tuple[ConversationKind, ...]] = ("chats", "runs", "rules")
CHATS: Final = "locomo.jsonl.gz"
RUNS: Final = ("service_tau2", "coding_mini_swe_agent", "repo_setup_super")
"""The recordings of agents, taken in turn."""
CHARACTERS: Final = 4
"""Characters of a token, where only the size of a conversation is chosen."""
CONTROLS: Final = 5
"""One question of so many is a control."""
_WINDOW: Final = 8_000
"""Accordion's window, if none is chosen; a conversation has twice as many tokens."""
_MAX_WORDS: Final = 4
"""A longer answer can be said in too many ways."""
_MAX_ARGUMENTS: Final = 120
_LEAST_QUESTIONS: Final = 4
"""A run with fewer is not worth reading for a slow model."""
ANNOUNCEMENT: Final = (
    {
        "role": "user",
        "content": "Now I ask about our conversation. Answer each question with a few words of it, a value or a "
        "letter, nothing else. If it does not say, answer: unknown",
    },
    {"role": "assistant", "content": "Ready."},
)
"""The end of each conversation: so a question is short, and a slow model reads this once."""
_PAIR = re.compile(
    r"""(?<![\w.])["']?([A-Za-z_][\w.-]{1,30}\w)["']?\s*[:=]\s*"""
    r"""(?:"([^"\n]{3,40})"|'([^'\n]{3,40})'|([A-Za-z0-9][\w@./:-]{2,40})(?=[\s,;}\])]|$))"""
)


@dataclass(frozen=True)
class ReaderQuestion:
    """A question with its expected answer; `form` says how the answer is judged.

    `evidence` is the text that answers it, normalized; none for a control.
    """

    text: str
    expected: str
    form: AnswerForm
    evidence: Sequence[str] = ()


@dataclass(frozen=True)
class QuestionSet:
    """A conversation that ends with a message of the assistant, and questions about it.

    `statements` are what the users of `rules` stated.
    """

    id: str
    kind: ConversationKind
    messages: Sequence[Message]
    questions: Sequence[ReaderQuestion]
    statements: Sequence[Statement] = ()


def sets_for(setting: RunSettings, conversations: int, questions: int) -> tuple[list[QuestionSet], int, str]:
    """Returns the conversations of a run with Accordion's window, and a note about both. Raises Unavailable.

    `conversations` of each kind, and `questions` about each, are as many as usual.
    """
    if setting.data is None or not ((setting.data / CHATS).is_file() or _list_recordings(setting.data)):
        raise Unavailable("reader, writer: say where recorded runs are, by --data FOLDER or BENCH_DATA")
    window = (setting.windows or (_WINDOW,))[0]
    tokens = setting.tokens or 2 * window
    number = setting.conversations or setting.fewer(conversations, 1)
    sets = question_sets(setting.data, setting.seed, tokens, number, setting.questions or questions)
    return sets, window, f"conversations of about {tokens:,} tokens, seed {setting.seed}; a window of {window:,} tokens"


def question_sets(folder: Path, seed: int, tokens: int, conversations: int, questions: int) -> list[QuestionSet]:
    """Returns so many conversations of each kind, of about so many tokens, with at most so many questions each."""
    recorded_chats = read_chats(folder / CHATS) if (folder / CHATS).is_file() else []
    chats = islice(_chats(recorded_chats, tokens), conversations)
    rules = [rule_set(seed + number, tokens) for number in range(conversations)]
    # All kinds in turn, so that an interrupted run has some of each.
    in_turn = [
        each for group in zip_longest(chats, _runs(folder, tokens, conversations), rules) for each in group if each
    ]
    chosen = [_choose(each, random.Random(f"{seed}/{each.id}"), questions) for each in in_turn]
    return [replace(each, messages=[*each.messages, *ANNOUNCEMENT]) for each in chosen]


def _choose(whole: QuestionSet, chance: random.Random, number: int) -> QuestionSet:
    """Draws questions; both orders of a pair of statements stay together."""
    if whole.kind == "rules":
        pairs = range(0, len(whole.questions), 2)
        drawn = chance.sample(pairs, min(len(pairs), number // 2))
        return replace(whole, questions=[whole.questions[at + order] for at in drawn for order in (0, 1)])
    controls = [each for each in whole.questions if each.form == "unknown"]
    others = [each for each in whole.questions if each.form != "unknown"]
    few = chance.sample(controls, min(len(controls), number // CONTROLS))
    return replace(whole, questions=chance.sample(others, min(len(others), number - len(few))) + few)


def _beginning(messages: Sequence[Message], characters: int) -> list[Message]:
    """Returns the beginning of so many characters, with no call open, and a reply at its end."""
    taken, total = list[Message](), 0
    for message in messages:
        total += len(json.dumps(message, ensure_ascii=False))
        if total > characters:
            break
        taken.append(message)
    results = {each.get("tool_call_id") for each in taken}
    for at, message in enumerate(taken):
        if any(call["id"] not in results for call in message.get("tool_calls") or ()):
            taken = taken[:at]
            break
    is_reply = bool(taken) and taken[-1]["role"] == "assistant"
    return taken if is_reply or not taken else [*taken, {"role": "assistant", "content": "I see."}]


# -- chats -------------------------------------------------------------------------------------------------------------


def _chats(chats: Sequence[Mapping[str, Any]], tokens: int) -> Iterator[QuestionSet]:
    """Yields the first part of each chat, then the second of each, and so on."""
    rest = {chat["id"]: (chat, 0) for chat in chats if chat["id"] not in HELD_OUT}
    for number in range(1, 100):
        for name, (chat, start) in list(rest.items()):
            part = _beginning(chat["messages"][start:], tokens * CHARACTERS)
            if not part or start + len(part) >= len(chat["messages"]):
                del rest[name]
                continue
            rest[name] = chat, start + len(part)
            yield _chat_part(chat, start, part, f"{name}-{number}")


def _chat_part(chat: Mapping[str, Any], start: int, part: Sequence[Message], name: str) -> QuestionSet:
    places = {label: at for at, label in enumerate(chat["dia_ids"])}
    asked = list[ReaderQuestion]()
    sentences = {each.text: each.sentences for each in questions_of(chat)}
    for each in chat["qa"]:
        indexes = evidence(each, places)
        if not indexes or not all(start <= at < start + len(part) for at in indexes):
            continue
        answer = str(each.get("answer"))
        if each["category"] == 5:
            asked.append(ReaderQuestion(each["question"], "", "unknown"))
        elif each["category"] in (1, 4) and 0 < len(words_of(answer)) <= _MAX_WORDS:
            asked.append(ReaderQuestion(each["question"], answer, "words", sentences[each["question"]]))
    speakers = {each["role"]: each["name"] for each in chat["messages"]}
    opening = f"A chat of {speakers['user']} (user) and {speakers['assistant']} (assistant)."
    messages = [{"role": each["role"], "content": each["content"]} for each in part]
    return QuestionSet(name, "chats", [{"role": "system", "content": opening}, *messages], asked)


# -- runs of agents ----------------------------------------------------------------------------------------------------


def _runs(folder: Path, tokens: int, number: int) -> list[QuestionSet]:
    """Returns runs from all recordings in turn. The controls of each are about calls of the next one."""
    files = [_read_runs(each, tokens) for each in _list_recordings(folder)]
    found = list[QuestionSet]()
    while len(found) < number:
        taken = [run for run in (next(file, None) for file in files) if run is not None]
        if not taken:
            break
        found += taken
    found = found[:number]
    return [
        replace(run, questions=[*run.questions, *_questions_of_another(run, found[(at + 1) % len(found)])])
        for at, run in enumerate(found)
    ]


def _list_recordings(folder: Path) -> list[list[Path]]:
    """Returns the files of runs that are there: each of RUNS by itself, and all of your own together."""
    own = [*sorted(folder.glob("*.json")), *sorted(folder.glob("*.jsonl"))]
    recordings = [[file] for name in RUNS if (file := folder / f"{name}.jsonl.gz").is_file()]
    return [*recordings, own] if own else recordings


def _read_runs(files: Sequence[Path], tokens: int) -> Iterator[QuestionSet]:
    for name, whole in chain.from_iterable(map(read_messages, files)):
        messages = _beginning(whole, tokens * CHARACTERS)
        is_long = sum(len(json.dumps(each)) for each in messages) > tokens * CHARACTERS * 0.7
        asked = list(run_questions(messages)) if is_long else []
        if len(asked) >= _LEAST_QUESTIONS:
            yield QuestionSet(name, "runs", messages, asked)


def read_messages(file: Path) -> Iterator[tuple[str, Sequence[Message]]]:
    """Yields the name and the messages of each conversation of Chat Completions in a file. Skips what is malformed."""
    for item in TranscriptSource(str(file)):
        if isinstance(item, MalformedTranscript) or item.path != "/v1/chat/completions":
            continue
        if isinstance(item, RecordedTranscript):
            yield item.name, item.transcript.entries
        elif last := deque(item.requests(), 1):
            yield item.name, json.loads(last[0].body)["messages"]


def _questions_of_another(run: QuestionSet, other: QuestionSet) -> list[ReaderQuestion]:
    whole = "\n".join(each.text for each in run.questions)
    return [
        replace(each, expected="", form="unknown", evidence=())
        for each in other.questions
        if other.id != run.id and each.text not in whole
    ]


def run_questions(messages: Sequence[Message]) -> Iterator[ReaderQuestion]:
    """Yields questions about `name: value` in results of tools in the first three quarters of a run.

    The name occurs once in the result, and the value in no other message: so the result alone answers.
    """
    texts = [json.dumps(each, ensure_ascii=False) for each in messages]
    calls = {call["id"]: call["function"] for each in messages for call in each.get("tool_calls") or ()}
    for at in range(len(messages) * 3 // 4):
        call = calls.get(messages[at].get("tool_call_id"))
        if messages[at]["role"] != "tool" or call is None or len(call["arguments"]) > _MAX_ARGUMENTS:
            continue
        others = "\n".join(texts[:at] + texts[at + 1 :])
        pairs = [(name, "".join(values)) for name, *values in _PAIR.findall(messages[at]["content"])]
        names = Counter(name for name, _ in pairs)
        for name, value in pairs:
            is_telling = len(value) > 4 or any(map(str.isdigit, value))
            if names[name] == 1 and is_telling and value not in others and messages[at]["content"].count(value) == 1:
                asked = f"You called {call['name']} with {call['arguments']}. Which value has `{name}` in the result?"
                yield ReaderQuestion(asked, value, "value", (normalize(value),))


# -- users' rules ------------------------------------------------------------------------------------------------------


def rule_set(seed: int, tokens: int) -> QuestionSet:
    """Returns a conversation of `rules.py` with each statement as two questions, in both orders."""
    # Statements and the turns around them have 13,000 characters as JSON, each further turn 200.
    talk = made("English", seed, 2, max(1, (tokens * CHARACTERS - 13_000) // 200))
    messages = [message for part in talk.rounds for message in part]
    chance, asked = random.Random(f"{seed}/pairs"), list[ReaderQuestion]()
    for each in talk.statements:
        other = each.text.replace(each.value, each.old or pronounceable(chance))
        for letter, pair in (("A", (each.text, other)), ("B", (other, each.text))):
            text = f"Which of these two holds by this conversation?\nA: {pair[0]}\nB: {pair[1]}"
            asked.append(ReaderQuestion(text, letter, "letter", (normalize(each.value),)))
    return QuestionSet(f"rules-{seed}", "rules", messages, asked, talk.statements)
