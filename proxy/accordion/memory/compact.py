"""`compact_conversation`: a range of a recorded conversation becomes memories, entities and relations.

Once for each range: asked again, it gives the first answer. A range that overlaps with another adds what is new.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, Final

from accordion.archive.erasures import Erasures
from accordion.core.conversation import Text
from accordion.core.errors import BadRequest, StoreUnavailable, SummaryFailed
from accordion.core.memories import Change, Conflict, Entity, Memories, Memory, Relation
from accordion.core.ports import Clock, Tasks
from accordion.core.values import dataclass, replace
from accordion.memory import log
from accordion.memory.answers import Compacted, Done, answer
from accordion.memory.choosing import chosen, context_of, fresh, same
from accordion.memory.entries import Overtaken, finished
from accordion.memory.extraction import Candidate, candidates, safe, unique
from accordion.memory.log import Entry, Writing
from accordion.memory.naming import memory_id
from accordion.memory.narrated import Narrator
from accordion.memory.recollected import noted
from accordion.memory.relations import Found, found_in, related
from accordion.memory.restoring import wish_of
from accordion.memory.sentences import Background, Sentence, background_of, folded, sentences
from accordion.memory.steps import record_of
from accordion.memory.stretches import Conversations, Stretch
from accordion.memory.topics import common_words, topics_of
from accordion.summaries.author import SummaryRejected
from accordion.summaries.facts_words import Judge

_log = logging.getLogger("accordion")

SEARCH_REQUIRED: Final = "search_required"
"""The code of the error that says that nobody searched since the last compaction."""
_TRIES: Final = 8
_NEAR: Final = 40
"""Messages among which the two turns before a memory are looked for."""
_NOT_ASKED: Final = "{} is asked only for callers with a proxy key, or on this machine."
_TOPICS: Final = 20
_TOPIC: Final = 100


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: `project` of the memories to be; `asks`: the configured model may be asked for them."""

    project: str = ""
    asks: bool = True


@dataclass(frozen=True, slots=True)
class _Heard:
    """What there is to be remembered of a stretch, who says so, and what was said there and in the turns before."""

    candidates: list[Candidate]
    by: Writing
    said: list[Sentence]


@dataclass(frozen=True, slots=True)
class Compactions:
    """Compacts. `erasures` know what was erased. Without a narrator, or where its model fails, rules say what is worth
    remembering."""

    memories: Memories
    conversations: Conversations
    tasks: Tasks
    clock: Clock
    erasures: Erasures
    narrator: Narrator | None = None
    judge: Judge = field(default_factory=Judge)

    async def search(self, space: bytes, conversation: str) -> list[Done]:
        """What of a conversation is compacted already. It must be asked before a range is compacted, which it lets
        through. Raises NotFound where nothing is recorded, and StoreUnavailable."""
        await self.conversations.known(space, conversation)
        found = await log.entries(self.memories, space, conversation)
        await log.note_search(self.memories, space, conversation, len(found))
        return [Done(each.first, each.last, each.focus, each.memories) for each in found]

    async def compact(
        self,
        space: bytes,
        conversation: str,
        first: int,
        last: int,
        focus: Sequence[str] = (),
        caller: Caller | None = None,
    ) -> Compacted:
        """Compacts messages `first` to `last` (inclusive, counted from 0 with the system prompt).

        Raises NotFound where they are not recorded, BadRequest for a bad range or bad topics and where no search came
        first, Overtaken, StoreUnavailable. Nothing is written then, nor where the conversation or the memories were
        erased meanwhile.
        """
        caller, focus = caller or Caller(), checked_topics(focus)
        await self.erasures.look()
        began = self.clock.monotonic()
        stretch = await self._imported(space, await self.conversations.stretch(space, conversation, first, last))
        done = await log.entries(self.memories, space, conversation)
        looked = len(done)
        if same(done, stretch, focus) < 0 and not await log.was_searched(self.memories, space, conversation, looked):
            raise _unsearched(conversation)
        heard: _Heard | None = None
        for _ in range(_TRIES):
            if (number := same(done, stretch, focus)) >= 0:
                return await self._again(space, conversation, number, done[number])
            if heard is None:
                heard = await self._heard(stretch, focus, caller)
            found = fresh(heard.candidates, done, stretch, focus)
            made = await self._made(space, stretch, focus, caller, found, heard.said)
            await self._stands(space, conversation, looked, began)
            try:
                return await self._written(space, len(done), stretch, focus, made, heard.by)
            except Conflict:
                done = await log.entries(self.memories, space, conversation)
        raise Overtaken(f"Conversation {conversation!r} is being compacted by others right now. Ask again in a moment.")

    # -- what is found --------------------------------------------------------------

    async def _imported(self, space: bytes, stretch: Stretch) -> Stretch:
        """The stretch with the memories as background that were put into the conversation, because its user asked for
        them or unasked: they are nobody's new word."""
        asked = (each for each in stretch.conversation.messages if each.role == "user")
        heard = (part.text for each in asked for part in each.parts if isinstance(part, Text))
        recalled = [name for names in await noted(self.memories, space, stretch.session) for name in names]
        ids = tuple(dict.fromkeys([*(name for text in heard for name in wish_of(text)), *recalled]))
        held = await self.memories.get(space, ids) if ids else []
        told = tuple(Text(memory.content) for memory in held if memory is not None)
        if not told:
            return stretch
        conversation = stretch.conversation
        return replace(stretch, conversation=replace(conversation, preamble=(*conversation.preamble, *told)))

    async def _heard(self, stretch: Stretch, focus: Sequence[str], caller: Caller) -> _Heard:
        """All candidates of a stretch: the model's or, where there is none or it fails, the rules'."""
        said, by_rule, background = await self.tasks.offload(_by_rule, stretch)
        if self.narrator is None:
            return _Heard(by_rule, Writing(), said)
        if not caller.asks:
            return _Heard(by_rule, Writing(notice=_NOT_ASKED.format(self.narrator.asker.model)), said)
        try:
            told = await self.narrator.told(stretch, background, focus)
        except SummaryFailed as error:
            name = self.narrator.asker.model
            _log.warning("the model %s could not write memories, so the rules write them: %s", name, error.message)
            spent = (error.input, error.output) if isinstance(error, SummaryRejected) else (0, 0)
            return _Heard(by_rule, Writing("rules", *spent, f"{name} could not write them: {error.message}."), said)
        return _Heard(unique(told.candidates), Writing(told.writer, told.input, told.output), said)

    async def _made(
        self,
        space: bytes,
        stretch: Stretch,
        focus: Sequence[str],
        caller: Caller,
        found: Sequence[Candidate],
        said: Sequence[Sentence],
    ) -> list[tuple[Memory, Found]]:
        """The memories to be written: the best of what nobody has stored, in the order in which it was said."""
        named = {memory_id("compaction", caller.project, folded(each.text)): each for each in found}
        held = await self.memories.get(space, list(named))
        new = [(name, each) for (name, each), memory in zip(named.items(), held, strict=True) if memory is None]
        picked = chosen(new, focus, stretch.last - stretch.first + 1)
        return await self.tasks.offload(self._memories_of, picked, stretch, focus, caller, said)

    def _memories_of(
        self,
        picked: Sequence[tuple[str, Candidate]],
        stretch: Stretch,
        focus: Sequence[str],
        caller: Caller,
        said: Sequence[Sentence],
    ) -> list[tuple[Memory, Found]]:
        """Slow: half a millisecond each."""
        common = common_words(each.text for each in said if each.at + stretch.shift >= stretch.first)
        return [self._memory(name, each, stretch, focus, caller, common, said) for name, each in picked]

    def _memory(
        self,
        name: str,
        each: Candidate,
        stretch: Stretch,
        focus: Sequence[str],
        caller: Caller,
        common: Sequence[str],
        said: Sequence[Sentence],
    ) -> tuple[Memory, Found]:
        found = found_in(each.text, self.judge)
        memory = Memory(
            id=name,
            type=each.kind,
            content=each.content,
            topics=topics_of(each.text, found.entities, focus, common),
            macro_topics=(caller.project.lower(),) if caller.project else (),
            project=caller.project,
            source="compaction",
            conversation=stretch.session,
            first=each.first,
            last=each.last,
            context=context_of(each.first - stretch.shift, said),
            entities=tuple(entity.name for entity in found.entities),
        )
        return finished(memory, now=self.clock.now()), found

    # -- what is written ------------------------------------------------------------

    async def _stands(self, space: bytes, conversation: str, looked: int, began: float) -> None:
        """Raises Overtaken where the conversation was erased after `began` (seconds, by the monotonic clock), or the
        memories: with them goes the note that somebody looked when there were `looked` compactions."""
        await self.erasures.look()
        erased = self.erasures.since(space, conversation, began)
        if erased or not await log.was_searched(self.memories, space, conversation, looked):
            raise Overtaken(f"Conversation {conversation!r} or the memories were erased meanwhile.", code="erased")

    async def _written(
        self,
        space: bytes,
        number: int,
        stretch: Stretch,
        focus: Sequence[str],
        made: Sequence[tuple[Memory, Found]],
        by: Writing,
    ) -> Compacted:
        """Writes all of it, or nothing. Raises Conflict."""
        entities, relations = related([(memory.id, found) for memory, found in made])
        entry = Entry(
            stretch.first,
            stretch.last,
            list(stretch.keys),
            list(focus),
            [memory.id for memory, _ in made],
            [(entity.name, entity.type) for entity in entities],
            [(each.start, each.end, each.type) for each in relations],
            by,
        )
        change = Change(
            put=tuple(memory for memory, _ in made),
            entities=entities,
            relations=relations,
            markers=(log.marker(stretch.session, number, entry),),
            require=tuple((memory.id, "") for memory, _ in made),
        )
        new = {(entity.name, entity.type) for entity in await self.memories.write(space, change)}
        with suppress(StoreUnavailable, Conflict):
            # What the first answer says is new is to be said again; it is known only now.
            if new:
                await log.note_new(self.memories, space, stretch.session, number, sorted(new))
        return answer([memory for memory, _ in made], entities, new, relations, entry)

    async def _again(self, space: bytes, conversation: str, number: int, entry: Entry) -> Compacted:
        """The answer that a compaction gave, without memories that somebody deleted since."""
        new = await log.noted_new(self.memories, space, conversation, number)
        held = [memory for memory in await self.memories.get(space, entry.memories) if memory is not None]
        entities = [Entity(name, kind) for name, kind in entry.entities]
        return answer(held, entities, new, [Relation(*each) for each in entry.relations], entry)


def checked_topics(topics: Sequence[Any]) -> tuple[str, ...]:
    """Focus topics in small letters, each once, sorted. Raises BadRequest."""
    fit = (isinstance(topic, str) and 0 < len(topic.strip()) <= _TOPIC for topic in topics)
    if isinstance(topics, str) or not all(fit):
        raise BadRequest(
            f"focus_topics must be a list of strings of 1 to {_TOPIC} characters each.",
            code="invalid_topics",
            param="focus_topics",
        )
    if len(topics) > _TOPICS:
        raise BadRequest(f"Give at most {_TOPICS} focus_topics.", code="invalid_topics", param="focus_topics")
    return tuple(sorted({" ".join(topic.lower().split()) for topic in topics}))


def _by_rule(stretch: Stretch) -> tuple[list[Sentence], list[Candidate], Background]:
    """What was said in a stretch and in the turns before, and the candidates of the stretch. Slow."""
    record, background = record_of(stretch.conversation), background_of(stretch.conversation)
    first = stretch.first - stretch.shift
    near = [each for each in sentences(record) if each.at >= first - _NEAR]
    found = candidates([each for each in near if each.at >= first], record, background, since=first, ends=stretch.ends)
    said = [each for each in near if not background.holds(each.text) and safe(each.text)]
    return said, [_placed(each, stretch.shift) for each in found if not wish_of(each.text)], background


def _placed(each: Candidate, shift: int) -> Candidate:
    """A candidate under the transcript's indexes."""
    return Candidate(each.kind, each.text, each.label, each.first + shift, each.last + shift, each.worth, each.weak)


def _unsearched(conversation: str) -> BadRequest:
    return BadRequest(
        f"First search the memories of conversation {conversation!r} (with conversation_id), read the results, then "
        "compact this range. Each compaction needs its own search.",
        code=SEARCH_REQUIRED,
    )
