"""Recorded chats through the product, with questions about them at the end: what is in view when each is asked.

The chats are LoCoMo's (two people over months; `locomo.jsonl.gz`), sent turn by turn as a client does it. Each question
comes with the messages that answer it. Of each of them one sentence counts: the one with the most words of the answer,
and of the question among equals. It is in view if the list that would be sent has it word for word. Beside the product
stand the best messages by BM25 over all messages, with the speakers' names.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from accordion.config import Settings
from accordion.config.settings import RecallConfig
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.conversation import Text
from accordion.model.http import Inbound
from accordion.pipeline.request import PreparedRequest
from bench.memory_recall import evidence

Chat = Mapping[str, Any]
HELD_OUT: Final = ("locomo-43", "locomo-49")
"""The chats by which nothing was chosen. The others are for development."""
_MODEL: Final = "measured"
_WORD: Final = re.compile(r"[a-z0-9']+")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_STOP_TEXT: Final = (
    "a an the of to in on at for and or is are was were be been do does did what when where who why how which with by "
    "from it its this that as has have had he she they his her their you your i my me we our about into after before"
)
_STOP: Final = frozenset(_STOP_TEXT.split())


class Question(msgspec.Struct, frozen=True):
    """A question, and a sentence of each message that answers it."""

    text: str
    sentences: tuple[str, ...]


def read_chats(file: Path) -> list[Chat]:
    """Reads the recorded chats."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def questions_of(chat: Chat) -> Iterator[Question]:
    """Yields the questions that the chat answers."""
    places = {name: at for at, name in enumerate(chat["dia_ids"])}
    for each in chat["qa"]:
        indexes = evidence(each, places)
        if indexes and each["category"] != 5:
            texts = [chat["messages"][at]["content"] for at in indexes]
            about = str(each.get("answer")), each["question"]
            yield Question(each["question"], tuple(_answering_sentence(text, *about) for text in texts))


def _answering_sentence(text: str, answer: str, question: str) -> str:
    wanted, asked = set(words_of(answer)), set(words_of(question))

    def score(sentence: str) -> tuple[int, int, int]:
        found = set(words_of(sentence))
        return len(found & wanted), len(found & asked), len(sentence)

    pieces = [each for each in _SENTENCE.split(text) if each.strip() and not each.startswith("[Session")]
    return normalize(max(pieces or [text], key=score))


def normalize(text: str) -> str:
    """Returns a text in small letters, with single spaces."""
    return " ".join(text.lower().split())


def words_of(text: str) -> list[str]:
    """Returns the words of a text without stop words and common endings, as the tool for memory search has them."""
    words = []
    for raw in _WORD.findall(text.lower()):
        word = raw.replace("'s", "").strip("'")
        if word and word not in _STOP:
            ending = next((each for each in ("ing", "ed", "es", "s") if word.endswith(each)), "")
            words.append(word[: -len(ending)] if ending and len(word) - len(ending) >= 4 else word)
    return words


class WordSearch:
    """BM25 over the messages of a chat."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._counts = [Counter(words_of(f"{each.get('name') or ''} {each['content']}")) for each in messages]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._average = sum(self._lengths) / max(1, len(messages))
        self._frequency = Counter(word for counts in self._counts for word in counts)

    def find(self, query: str) -> list[int]:
        """Returns the indexes of all messages, the best first."""
        scores = [0.0] * len(self._counts)
        for word in set(words_of(query)) & self._frequency.keys():
            frequency = self._frequency[word]
            weight = math.log(1 + (len(scores) - frequency + 0.5) / (frequency + 0.5))
            for at, counts in enumerate(self._counts):
                if times := counts[word]:
                    length = 0.25 + 0.75 * self._lengths[at] / self._average
                    scores[at] += weight * times * 2.2 / (times + 1.2 * length)
        return sorted(range(len(scores)), key=lambda at: (-scores[at], at))


class ChatReplay:
    """The product at one window, and what it sends for the turns of one chat and for questions after it."""

    def __init__(self, window: int, recall: RecallConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._pipeline = self._loop.run_until_complete(self._open(window, recall))

    async def _open(self, window: int, recall: RecallConfig) -> OfflinePipeline:
        settings = Settings()
        read_back = msgspec.structs.replace(settings.read_back, recall=recall)
        return OfflinePipeline(msgspec.structs.replace(settings, read_back=read_back), window)

    def close(self) -> None:
        """Closes the pipeline."""
        self._loop.run_until_complete(self._pipeline.close())
        self._loop.close()

    def turns(self, chat: Chat) -> Iterator[PreparedRequest]:
        """Sends the turns of a chat one after the other; yields those behind a compaction."""
        messages = chat["messages"]
        for at, message in enumerate(messages):
            if message["role"] == "user" and (at + 1 == len(messages) or messages[at + 1]["role"] == "assistant"):
                prepared = self.send(chat["id"], messages[: at + 1])
                if prepared.compaction_id:
                    yield prepared

    def ask(self, chat: Chat, question: str) -> PreparedRequest:
        """Asks a question after the whole chat."""
        messages = [*chat["messages"]]
        if messages[-1]["role"] == "user":
            messages.append({"role": "assistant", "content": "I see."})
        return self.send(chat["id"], [*messages, {"role": "user", "content": question}])

    def send(self, label: str, messages: Sequence[Mapping[str, Any]]) -> PreparedRequest:
        """Returns a request as it would be forwarded."""
        fields = (b"content-type", b"application/json"), (b"x-accordion-session", label.encode())
        body = json.dumps({"model": _MODEL, "messages": messages}).encode()
        inbound = Inbound("POST", "/v1/chat/completions", "", fields, body, label)
        prepared = self._loop.run_until_complete(self._pipeline.process(inbound, self._pipeline.caller))
        assert isinstance(prepared, PreparedRequest)
        return prepared


def visible_text(prepared: PreparedRequest) -> str:
    """Returns the text of the messages that would be forwarded, normalized."""
    messages = prepared.forwarded_history.conversation.messages
    return normalize("\n".join(part.text for each in messages for part in each.parts if isinstance(part, Text)))
