"""Recorded runs replayed through the product, with what would be recalled at each request, and what that was worth.

Each list goes through the same pipeline as in `quality_adapter.py`; excerpts are put behind the message that asked for
them (the product puts them in front of it), and stay until a fold covers their place. What counts as a fact, and how
recordings are chosen, is `quality.py`'s.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from accordion.archive.recall import ArtifactSearch, Excerpt
from accordion.archive.recall_index import readable_text
from accordion.cli.offline_pipeline import OfflinePipeline
from accordion.composition.compaction_builder import find_rules
from accordion.config import Settings
from accordion.config.settings import RecallConfig
from accordion.insertions.composer import compose_once
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.http import Inbound
from accordion.model.insertions import RecallInsertion
from accordion.pipeline.request import PreparedRequest
from accordion.protocols.openai_chat.protocol import ChatArtifactTool
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.facts import WordClassifier

Run = Mapping[str, Any]
MODEL: Final = "measured"
"""A model of no known window or family, as in `quality_adapter.py`."""
HORIZON: Final = 5
"""Replies within which something recalled may be used."""
_CACHED: Final = 0.1
"""What a token costs that the provider has in its cache."""


class Quality:
    """`quality.py`: its recordings and its notion of a fact."""

    def __init__(self, tool: Path) -> None:
        spec = importlib.util.spec_from_file_location("quality_tool", tool)
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{tool} cannot be loaded")
        self._tool: Any = importlib.util.module_from_spec(spec)
        sys.modules["quality_tool"] = self._tool
        spec.loader.exec_module(self._tool)

    def runs(self, data: Path, window: int, sample: int, only: Sequence[str]) -> list[Run]:
        """The recorded runs that are pressed at this window."""
        chosen = Namespace(trigger=0.5, window=window, only=list(only), sample=sample, seed="q1", max_tokens=0)
        found: list[Run] = self._tool.load([str(data)], chosen)
        return found

    def tokens(self, text: str) -> int:
        """The tokens of a text."""
        count: int = self._tool.ntok(text)
        return count

    def text(self, message: Run) -> str:
        """The text of a message that a model reads."""
        text: str = self._tool.mtext(message)
        return text

    def weight(self, message: Run) -> int:
        """The tokens of a message."""
        count: int = self._tool.mtok(message)
        return count

    def common(self, messages: Sequence[Run]) -> set[str]:
        """Values that work like enumeration members and are no facts."""
        found: set[str] = self._tool.enum_values(messages)
        return found

    def facts(self, message: Run, common: set[str]) -> dict[str, bool]:
        """The facts in a message's calls, or in what a user says; True for those of the headline figure, False for
        code."""
        calls = message.get("tool_calls") or []
        if message["role"] == "user":
            text = json.dumps({"text": self._tool.ctext(message["content"])})
            found = self._tool.atoms([{"function": {"arguments": text}}], common)
            return {fact: kind in self._tool.HEAD for fact, kind in found.items() if kind not in ("value", "line")}
        found = self._tool.atoms(calls, common) if message["role"] == "assistant" else {}
        return {fact: kind in self._tool.HEAD for fact, kind in found.items()}

    def cost(self, before: Sequence[bytes], wires: Sequence[bytes]) -> float:
        """What a request costs behind the one before: its tokens, those that begin both at a tenth."""
        both = zip(before, wires, strict=False)
        same = next((at for at, (a, b) in enumerate(both) if a != b), min(len(before), len(wires)))
        counts = [self.tokens(wire.decode(errors="replace")) for wire in wires]
        return _CACHED * sum(counts[:same]) + sum(counts[same:])

    def forget(self) -> None:
        """Lets go of what was counted of one run."""
        self._tool._TOK.clear()
        self._tool._MT.clear()


class Replaying:
    """The product at one window, and figures of all runs that pass through it."""

    def __init__(self, quality: Quality, window: int, far: int, *, tokens: int = 1_500, sources: int = 3) -> None:
        self._quality, self._far, self._tokens, self._sources = quality, far, tokens, sources
        self._loop = asyncio.new_event_loop()
        self._pipeline = self._loop.run_until_complete(self._opened(window))
        self._reader = WrittenMessageReader(16 * 2**20)
        self.ms: list[float] = []
        """CPU time of each look-up, in milliseconds, indexes and tokenizer included."""

    async def _opened(self, window: int) -> OfflinePipeline:
        settings = Settings()
        # What the product would recall is put in here, so that it can be compared with the fold alone.
        alone = msgspec.structs.replace(settings.unfold, recall=RecallConfig(tokens=0))
        return OfflinePipeline(msgspec.structs.replace(settings, unfold=alone), window)

    def close(self) -> None:
        """Closes the pipeline."""
        self._loop.run_until_complete(self._pipeline.close())
        self._loop.close()

    def replay(self, run: Run) -> Counter[str]:
        """The figures of one run."""
        figures = Counter[str]()
        told = _RunScore(self._quality, run, self._far, figures)
        rules = partial(find_rules, ExtractiveWriter())
        artifact_search = ArtifactSearch(WordClassifier().find_all_words, rules=rules)
        recalls, before = list[RecallInsertion](), 0
        sent: tuple[list[bytes], list[bytes]] = ([], [])
        for step in told.steps:
            measured = self._prepare(run, step)
            newest, before = before, step
            if measured.history is None or measured.history.compaction is None or measured.session_match is None:
                continue
            client, bare = measured.session_match.conversation, measured.history
            lead = step - len(client.messages)
            places = range(max(0, newest - lead), len(client.messages))
            shown = self._dressed(measured, bare, client, recalls)
            began = time.process_time()
            found = artifact_search.find_excerpt(
                measured.caller.tenant, shown, client, places, self._quality.tokens,
                tokens=self._tokens, sources=self._sources,
            )  # fmt: skip
            self.ms.append(1_000 * (time.process_time() - began))
            told.judge(step, newest, _visible(bare, client, places), _visible(shown, client, places), found)
            if found is not None:
                wire = json.dumps({"role": "user", "content": found.text}).encode()
                recalls.append(RecallInsertion(client.chain[-1], wire, float(step), found.artifacts))
                shown = self._dressed(measured, bare, client, recalls)
            for name, old, folded in zip(("cost", "cost with"), sent, (bare, shown), strict=True):
                wires = [message.wire for message in folded.conversation.messages]
                figures[name] += round(self._quality.cost(old, wires))
                old[:] = wires
        self._quality.forget()
        return figures

    def _prepare(self, run: Run, step: int) -> PreparedRequest:
        request = {"model": MODEL, "messages": run["messages"][:step]}
        request |= {"tools": run["tools"]} if run.get("tools") else {}
        # Conversations of a recording may share their openings; a label keeps them apart.
        label = "recorded-" + re.sub(r"[^A-Za-z0-9_.:-]", "-", run["id"])
        fields = ((b"content-type", b"application/json"), (b"x-accordion-session", label[-128:].encode()))
        inbound = Inbound("POST", "/v1/chat/completions", "", fields, json.dumps(request).encode(), run["id"])
        prepared = self._loop.run_until_complete(self._pipeline.process(inbound, self._pipeline.caller))
        assert isinstance(prepared, PreparedRequest)
        return prepared

    def _dressed(
        self,
        measured: PreparedRequest,
        bare: CompactedConversation,
        client: Conversation,
        recalls: Sequence[RecallInsertion],
    ) -> CompactedConversation:
        covered = bare.covered_count
        anchors = set(client.chain[covered - 1 :])
        live = [recall for recall in recalls if recall.anchor in anchors]
        read = self._reader.reader_for(measured.protocol, measured.caller.tenant)
        return compose_once(measured.protocol, ChatArtifactTool(), bare, live, None, read)


def _visible(folded: CompactedConversation, client: Conversation, newest: range) -> str:
    """The text in view, without the newest turn's own."""
    shown = (
        message.parts
        for message, (first, last, _) in zip(folded.conversation.messages, folded.spans, strict=True)
        if not (newest.start <= first <= last and message.role in ("user", "assistant"))
    )
    return "\n".join(filter(None, (readable_text(part) for parts in (client.preamble, *shown) for part in parts)))


class _RunScore:
    """The facts that one run needs later, and those that were in view."""

    def __init__(self, quality: Quality, run: Run, far: int, figures: Counter[str]) -> None:
        self._quality, self._far, self._figures = quality, far, figures
        self._messages: Sequence[Run] = run["messages"]
        self._texts = [quality.text(message) for message in self._messages]
        self._common = quality.common(self._messages)
        self._ends = [0]
        for message in self._messages:
            self._ends.append(self._ends[-1] + quality.weight(message))
        self.steps = list(self._replies())
        """Where the model replied; each is a request."""

    def _replies(self) -> Iterator[int]:
        asked = False
        for at, message in enumerate(self._messages):
            if asked and message["role"] == "assistant" and self._messages[at - 1]["role"] != "assistant":
                yield at
            asked = asked or message["role"] == "user"

    def judge(self, step: int, newest: int, bare: str, shown: str, found: Excerpt | None) -> None:
        """Counts a request: `bare` is what was in view without any recall, `shown` with earlier ones."""
        figures, recalled = self._figures, found.text if found is not None else ""
        named = self._facts(range(newest, step))
        figures["requests"] += 1
        for fact, plain in named.items():
            if self._is_far(fact, newest, step):
                kind = "named" if plain else "code"
                figures[kind] += 1
                figures[f"{kind} there"] += fact in bare
                figures[f"{kind} with"] += fact in shown or fact in recalled
        used = self._facts([step])
        for fact, plain in used.items():
            if plain and self._is_far(fact, step, step):
                figures["needed"] += 1
                figures["needed there"] += fact in bare
                figures["needed with"] += fact in shown or fact in recalled
        if found is not None:
            figures["recalls"] += 1
            figures["tokens"] += found.tokens
            self._precision(step, named, used, "\n".join([shown, *self._texts[newest:step]]), found)

    def _precision(self, step: int, named: Iterable[str], used: Iterable[str], seen: str, found: Excerpt) -> None:
        later = self._facts([at for at in self.steps if at >= step][:HORIZON])
        fresh = [fact for fact in later if fact not in seen]
        for quote in found.quotes:
            if not quote.names:
                # A standing instruction is chosen by its subject, not by a name.
                self._figures["rules"] += 1
                self._figures["rule tokens"] += self._quality.tokens(quote.text)
                continue
            self._figures["sources"] += 1
            self._figures["precise"] += any(fact in quote.text for fact in (*named, *used))
            self._figures["used"] += any(fact in quote.text for fact in used)
            self._figures["fresh"] += any(fact in quote.text for fact in fresh)

    def _facts(self, places: Iterable[int]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for at in places:
            found |= self._quality.facts(self._messages[at], self._common)
        return found

    def _is_far(self, fact: str, before: int, step: int) -> bool:
        """Whether a fact stood last, before this place, far back from a step, and was not the model's own invention."""
        last = next((at for at in range(before - 1, -1, -1) if fact in self._texts[at]), -1)
        if last < 0 or self._ends[step] - self._ends[last + 1] <= self._far:
            return False
        return any(fact in self._texts[at] for at in range(last + 1) if self._messages[at]["role"] != "assistant")
