"""The rooms of folding: what outlives a change of settings, and a compactor for each pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from accordion.accounting.meter import Meter
from accordion.archive.artifacts import artifact_text
from accordion.archive.custody import Custody
from accordion.archive.desk import Desk
from accordion.archive.links import Links
from accordion.archive.named_items import NamedItems
from accordion.archive.reading_room import ReadingRoom
from accordion.archive.recall import Recaller
from accordion.archive.recall_rules import Rule
from accordion.archive.tool import offer
from accordion.clockwork import LoopWaiting
from accordion.compaction.background import Bounds, Preparations, ready_summaries
from accordion.compaction.compactor import Compactor, Rooms
from accordion.compaction.crafting import HANDOFFS, Craft
from accordion.compaction.dresser import Dresser
from accordion.compaction.dressing import Wardrobe
from accordion.compaction.exporting import described
from accordion.compaction.futility import Futile
from accordion.compaction.overlays import Overlays
from accordion.compaction.planner import Planner
from accordion.compaction.reading import WrittenReader
from accordion.compaction.recalling import Recalling
from accordion.compaction.records import is_compaction
from accordion.compaction.rendering import Rendering
from accordion.compaction.renewal import Renewals
from accordion.compaction.replay import Folds
from accordion.compaction.strategies import Strategy, build
from accordion.compaction.strategies.compact_tool_results import CompactToolResults
from accordion.compaction.strategies.summarize import Summarizing
from accordion.compaction.weights import Weights
from accordion.compaction.wishes import Wishes
from accordion.compaction.writers import Writers
from accordion.core.conversation import Message
from accordion.core.ports import Clock, Outbox, Put, Store, Tasks, TokenCounter
from accordion.core.summarizing import Summarizer
from accordion.core.values import replace
from accordion.dialects.base import Dialect
from accordion.identity.points import joined_values
from accordion.identity.sessions import Sessions
from accordion.response_history import ResponseHistory
from accordion.settings import Settings
from accordion.sharing import Sharing
from accordion.storage.spool import SpooledStore
from accordion.summaries.author import Author
from accordion.summaries.digest import digest
from accordion.summaries.extractive import Extractor, Source
from accordion.summaries.facts_words import Judge
from accordion.summaries.prompts import load
from accordion.unfolding import Unfolding
from accordion.wiring.shares import shares
from accordion.wiring.tables import dialects_by_name, weavers
from accordion.wiring.vault import Vault

Summarizers = Callable[[str], Summarizer | None]
"""The model that writes, by its name (empty: as the settings for summaries say); None where none does."""


class Kitchen:
    """Where folds are made, whatever the settings are at the moment."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        spooled: SpooledStore,
        vault: Vault,
        outbox: Outbox,
        meter: Meter,
        counter: TokenCounter,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        retention = vault.retention
        self._store, self._tasks, self._clock, self._counter = spooled, tasks, clock, counter
        self._outbox, self._waiting = outbox, LoopWaiting()
        eighth, small = settings.limits.fold_cache_bytes // 8, shares(settings.limits.cache_bytes)
        self._futile, self._writers = small.futile, Writers(clock, small.writers)
        self._reader = WrittenReader(eighth)
        self._weights = Weights(meter, settings.limits.count_cache_entries)
        self._archive = vault.archive
        self._extractor = Extractor(small.facts, words=small.words)
        self._prompts = load()
        self.renewals = Renewals(spooled, self._archive, tasks, clock, small.renewed)
        self.folds = Folds(
            spooled,
            # Half as much again is for lists that it made with them.
            capacity=2 * eighth,
            retention=retention,
            sealer=vault.sealer,
            reader=self._reader,
            used=self.renewals.used,
            places=small.found,
        )
        self.rendering = Rendering(eighth)
        self.wishes = Wishes(store, settings.store.retention_days * 86_400, small.pins)
        self.archive = self._archive
        self.reader = self._reader
        self.overlays = Overlays(self._archive, outbox, clock, vault.erasures, capacity=eighth, retention=retention)
        self._wardrobe = Wardrobe(eighth // 2)
        self._ready = ready_summaries(eighth // 2)
        self._recaller = Recaller(Judge(small.words).claims, eighth, self._rules)
        self._weavers = weavers()
        self.spoken = spoken = dialects_by_name()
        self._desk = Desk(self._archive, spoken, tasks)
        self._transcripts = vault.transcripts
        self.custody = Custody(self._archive, tasks, described, self._reads, vault.erasures, spooled.drop_erased)
        # Of words that are named, and of replies that are gone on from; each also of what was looked up.
        replies = settings.limits.reply_cache_bytes
        self.named = NamedItems(self._archive, tasks, vault.erasures, self._reads, replies // 8)
        self.links = Links(self._archive, tasks, vault.erasures, 3 * replies // 4)
        self.room = ReadingRoom(self._archive, vault.transcripts, self.custody, spoken, tasks, clock)
        self._bounds = Bounds(
            at_once=settings.summaries.max_concurrent, per_tenant=max(1, settings.summaries.max_concurrent // 2)
        )
        self._spooled = spooled
        spooled.settle, spooled.erasures = self._settle, vault.erasures
        vault.erasures.listen(self._erased)

    def _rules(self, messages: Sequence[Message], covered: int) -> Iterator[Rule]:
        """The users' instructions in force among the first messages of a list."""
        said = [Source(index, message) for index, message in enumerate(messages) if message.has_user_text]
        within = [source for source in said if source.index < covered]
        for each in self._extractor.standing(within, (), said[len(within) :]).cited:
            yield Rule(each.index, each.instruction.text, str(each))

    def history(self, sessions: Sessions) -> ResponseHistory:
        """What stores responses, before they end."""
        return ResponseHistory(
            sessions, self.links, self.overlays, self._archive, self._outbox, self.custody.erasures, self._transcripts
        )

    def _reads(self, dialect: str, space: bytes) -> Callable[[bytes], Message]:
        return self._reader.of(self.spoken[dialect], space)

    def _erased(self, tenant: str, session: str | None) -> None:
        """What was erased, here or by another worker, is no longer taken for kept."""
        self.forget()
        self._transcripts.forget(tenant, session)

    def forget(self) -> None:
        """What is in the store is not known any more."""
        self._archive.forget()
        self.overlays.forget()
        self.folds.forget()

    def _settle(self, claim: Put, winner: bytes) -> bytes | None:
        """A claim from the spool that another machine's came before: compactions give way, places are joined."""
        if is_compaction(claim.key):
            self.folds.adopt(claim.key, winner)
        return joined_values(claim.key, claim.value, winner)

    def compactors(self, settings: Settings, summarizer: Summarizers) -> Callable[[str, bool], Compactor]:
        """The compactor of each model, by the name that clients ask for, and of each kind of agent: whether it is a
        sub-agent."""
        usual = settings.summaries.model
        rooms = {"": self._rooms(summarizer(usual), usual)}
        made: dict[tuple[str, bool], Compactor] = {}
        for model, delegated in product(("", *settings.compaction.models), (False, True)):
            stated = settings.compaction.pipeline_of(model, delegated=delegated)
            pipeline = [build(name, options) for name, options in stated]
            writer = next((each.model for each in pipeline if isinstance(each, Summarizing)), "")
            if writer not in rooms:
                rooms[writer] = self._rooms(summarizer(writer), writer)
            share = self._futile // (2 + 2 * len(settings.compaction.models))
            made[model, delegated] = self._compactor(settings, pipeline, rooms[writer], Futile(share))
        return lambda model, delegated: made.get((model, delegated)) or made["", delegated]

    def dresser(self, settings: Settings) -> Dresser:
        """Who puts what was read back in place, and offers our tool where that is wanted."""
        tool = offer if settings.unfold.tool else None
        return Dresser(self.overlays, self._weavers, self._reader, tool, self._wardrobe)

    def recalling(self, settings: Settings) -> Recalling | None:
        """Who recalls what is named; None where nothing is to be recalled."""
        counter, wanted = self._counter, settings.unfold.recall
        made = Recalling(
            self._recaller,
            self.overlays,
            self._weavers,
            self._reader,
            self._wardrobe,
            self._tasks,
            self._clock,
            lambda text, model: counter.count(text, counter.encoding(model)),
            tokens=wanted.tokens,
            sources=wanted.sources,
        )
        return made if wanted.tokens else None

    def unfolding(self, settings: Settings, sharing: Sharing | None = None) -> Unfolding:
        """Who answers calls of our tool."""
        counter = self._counter
        return Unfolding(
            self._weavers,
            self._desk,
            self.overlays,
            self.rendering,
            lambda text, model: counter.count(text, counter.encoding(model)),
            self._clock,
            settings.unfold.max_rounds,
            sharing,
        )

    def _rooms(self, summarizer: Summarizer | None, model: str) -> Rooms:
        author = Author(summarizer, self._extractor, self._tasks, self._prompts)
        return Rooms(
            folds=self.folds,
            archive=self._archive,
            author=author,
            extractor=self._extractor,
            preparations=Preparations(
                author,
                self._store,
                self._tasks,
                self._waiting,
                self._bounds,
                self._archive,
                self.custody.erasures,
                self._writers,
                model,
                self._ready,
            ),
            tasks=self._tasks,
            clock=self._clock,
            waiting=self._waiting,
            erasures=self.custody.erasures,
        )

    def _compactor(self, settings: Settings, pipeline: list[Strategy], rooms: Rooms, futile: Futile) -> Compactor:
        plain = [strategy for strategy in pipeline if strategy.name != Summarizing.name]
        if all(strategy.name != "fixed_limits" for strategy in plain):
            plain.append(build("fixed_limits"))
        craft = Craft(
            Planner(pipeline),
            Planner(plain),
            self._archive,
            self._weights,
            self._reader,
            pinned_tools=frozenset(settings.compaction.pinned_tools),
            digest=digest,
            instructions=self._extractor.instructed,
            skipped=next((each.skip for each in pipeline if isinstance(each, CompactToolResults)), HANDOFFS),
        )
        rooms = replace(rooms, futile=futile)
        return Compactor(craft, rooms, wait_seconds=settings.summaries.wait_seconds)

    async def text_of(self, artifact_id: str, space: bytes, dialects: Mapping[str, Dialect]) -> str | None:
        """The whole text of an artifact of the tenant whose key is `space`; None where there is none of that id, or
        not all of it. Raises StoreUnavailable."""
        [artifact] = await self._archive.artifacts(space, [artifact_id])
        if artifact is None:
            return None
        rows = await self._archive.rows(space, artifact.keys)
        if any(key not in rows for key in artifact.keys):
            return None
        read = self._reader.of(dialects[artifact.dialect], space)
        return artifact_text(artifact, [read(rows[key]) for key in artifact.keys])

    async def close(self) -> None:
        """Lets go of the spool."""
        await self._spooled.close()
