"""The transcript store: what a client said in a session, message by message, as it came.

A session's transcript is a list of message keys in a log; the messages themselves are rows of the archive, which forks
and folds share. A request holds all that was said before it, so whatever is not known to be stored is written with the
next request that holds it. What cannot be written because the store is away waits here, and is tried again until the
store is back: nobody may send it again. Everything happens behind the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from accordion.archive import holdings
from accordion.archive.artifacts import row_key, tenant_of
from accordion.archive.differences import common
from accordion.archive.holdings import BEHIND, Entry, Recorded
from accordion.archive.transcript_log import Original, State, Transcript, body_of, state_of, system_json, transcript_of
from accordion.archive.transcript_places import Place, Places, Write
from accordion.archive.transcript_rows import Item, Name, Plan, Rows, WaitingRequests, size_of
from accordion.archive.writing import Archive
from accordion.core.conversation import Conversation
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Append, Clock, Put, Tasks
from accordion.core.values import replace

Record = Literal["off", "folded", "all"]
"""Whose transcripts are kept: nobody's; those of sessions from their first fold on; all."""

_WAITING = 64 * 2**20
"""Bytes of requests that wait: some seventy of 100,000 tokens. A client that sends its whole list brings back, with the
next request, what was dropped. One that sends only what is new has small requests."""
_AT_ONCE = 32
_GATHER = 0.5
"""Seconds for which what is new waits for more: a transaction costs several times what a message in it does."""
_AGAIN_AFTER = 1.0
"""Seconds until what could not be written is tried again."""
_FULL = 3
"""Once a third of the room is taken there may soon be none, so requests wait no longer."""
_PACK_AT_ONCE = 32_768
"""Bytes that are compressed at once; more of them in a thread, so that requests need not wait."""
_AGAIN = 256
"""So many entries of a log are followed by one that stands for all of them."""
_KEPT = 8_192
_PAGE = 256


class Transcripts:
    """Records sessions in an archive, and reads what was recorded. `mode` says whose is; `wait` waits for so many
    seconds, without it nothing is gathered, nor tried again before another request comes. Requests that are not
    written yet take `capacity` bytes at most; then the oldest ones are dropped. How far a session is recorded is known
    of the last `sessions`; the store is asked for others."""

    def __init__(
        self,
        archive: Archive,
        tasks: Tasks,
        clock: Clock,
        mode: Record = "folded",
        wait: Callable[[float], Awaitable[object]] | None = None,
        capacity: int = _WAITING,
        sessions: int = 4_000,
    ) -> None:
        self._archive = archive
        self._tasks = tasks
        self._clock = clock
        self._mode = mode
        self._wait = wait
        self._places = Places(sessions)
        self._waiting = WaitingRequests(capacity)
        self._urgent = capacity // _FULL
        self._gathering = self._flushing = False

    # -- recording ----------------------------------------------------------------

    def record(
        self, space: bytes, session: str, conversation: Conversation, *, folded: bool, after: bytes = b""
    ) -> None:
        """Takes a request of a session, as the client sent it; `folded` says whether a fold is in force for it, `after`
        is the chain key of what the provider keeps before it, where that is known. Quick: what is new is written in the
        background."""
        if not self._is_new(space, session, conversation, folded=folded):
            return
        before = self._waiting.size
        self._waiting.add(Item(space, session, conversation, self._clock.now(), after, size_of(conversation)))
        if not (self._gathering or self._flushing):
            self._gather(_GATHER)
        elif before < self._urgent <= self._waiting.size:
            self._tasks.spawn(self._flushed(), "record the transcript")

    async def record_at_once(
        self,
        space: bytes,
        session: str,
        conversation: Conversation,
        beside: Sequence[Put],
        *,
        folded: bool,
        after: bytes = b"",
    ) -> None:
        """The same of a request that its client will not send again, written now, in one batch with the writes
        `beside`; where the session is erased meanwhile, none of it is written. Raises StoreUnavailable; then it is to
        be recorded again."""
        if not self._is_new(space, session, conversation, folded=folded):
            await self._archive.write(beside)
            return
        with self._places.writing() as write:
            await self._write([Item(space, session, conversation, self._clock.now(), after)], write, beside)

    async def flush(self) -> None:
        """Writes what waits. Raises StoreUnavailable; then it waits on."""
        while self._waiting:
            batch = self._waiting.take(_AT_ONCE)
            with self._places.writing() as write:
                try:
                    await self._write(batch, write)
                except BaseException as error:
                    if isinstance(error, Exception) and not isinstance(error, StoreUnavailable):
                        raise
                    # The store is away, or the proxy stops.
                    self._waiting.put_back([item for item in batch if not write.erased(_name(item))])
                    raise

    def forget(self, tenant: str, session: str | None = None) -> None:
        """Something was erased (see Erasures): a session that goes on, or all of a tenant's, is recorded from its
        beginning again."""

        def gone(name: Name) -> bool:
            return session in (None, name[1]) and tenant_of(name[0]) == tenant

        self._places.lose(gone, erased=True)
        self._waiting.drop(gone)

    def begin_anew(self) -> None:
        """The store was emptied: every session that goes on is recorded from its beginning again."""
        self._places.lose(lambda _: True, erased=False)

    def _is_new(self, space: bytes, session: str, conversation: Conversation, *, folded: bool) -> bool:
        """Whether a request is to be recorded, and holds what is not known to be."""
        if self._mode == "off" or not session or not conversation.chain:
            return False
        place = self._places.get((space, session))
        if place is None:
            return folded or self._mode == "all"
        return place.last != conversation.chain[-1] or place.head != _head(place, conversation)

    def _gather(self, seconds: float) -> None:
        self._gathering = True
        self._tasks.spawn(self._gathered(seconds), "record the transcript")

    async def _gathered(self, seconds: float) -> None:
        try:
            if self._wait is not None:
                await self._wait(seconds)
        finally:
            self._gathering = False
        await self._flushed()

    async def _flushed(self) -> None:
        """Writes what waits, where nobody does. Where the store is away, it is tried again."""
        if self._flushing:
            return
        self._flushing = True
        try:
            await self.flush()
        except StoreUnavailable:
            if self._wait is not None and not self._gathering:
                self._gather(_AGAIN_AFTER)
        finally:
            self._flushing = False

    async def _write(self, batch: Sequence[Item], write: Write, beside: Sequence[Put] = ()) -> None:
        places: dict[Name, Place] = {}
        plans = [plan for item in batch if (plan := await self._plan(item, places, write)) is not None]
        while batch := [item for item in batch if not write.erased(_name(item))]:
            plans = [plan for plan in plans if not write.erased(_name(plan.item))]
            small = sum(plan.bulk for plan in plans) <= _PACK_AT_ONCE
            writes, sizes = self._packed(plans) if small else await self._tasks.offload(self._packed, plans)
            if not any(write.erased(_name(item)) for item in batch):
                if plans or beside:
                    await self._archive.write([*writes, *beside], minor=not beside)
                places.update((name, replace(places[name], size=size)) for name, size in sizes.items())
                break
        for name, place in places.items():
            self._places.note(name, place, write)

    async def _plan(self, item: Item, places: dict[Name, Place], write: Write) -> Plan | None:
        """What is to be written of a request; None where nothing is new. Notes in `places` how far it is recorded
        then."""
        name = _name(item)
        place = places.get(name) or self._places.get(name)
        conversation, chain, now = item.conversation, item.conversation.chain, self._clock.now()
        # Where the provider keeps what came before, a request holds only what is new.
        appended = conversation.previous is not None
        if place is not None and not self._stale(place, now) and _goes_on(place, conversation):
            start = place.count
        else:
            try:
                place, known = await self._found(item)
            except StoreUnavailable:
                # The store is away. All that the request holds is written: it may be kept on this machine till then.
                place, known = Place(0, b"", b"", now, 0, 0), state_of(())
            keys = [message.key for message in conversation.messages]
            there = len(known.keys) if appended else common(known.keys, keys)
            start = there if appended else await self._archive.first_missing(known.rows[:there])
            # Should the store go away half-way, its log tells of messages that it does not have.
            last = b"" if appended or not start else chain[start - 1]
            self._places.note(name, replace(place, count=start, last=last), write)
        if appended and place.last == chain[-1]:
            return None
        fresh = not appended and self._stale(place, now)
        start = 0 if fresh else start
        messages = conversation.messages if appended else conversation.messages[start:]
        beside = _head(place, conversation)
        head = beside if fresh or place.head != beside else b""
        since, entries = (now, 0) if start == 0 else (place.since, place.entries + 1)
        count = start + len(messages)
        places[name] = Place(count, chain[-1], beside, since, entries, place.size)
        if not messages and not head:
            return None
        begin = BEHIND if appended else start
        return Plan(item, begin, messages, conversation.lead if head else (), head, fresh, place.size)

    def _stale(self, place: Place, now: float) -> bool:
        """Whether all of a transcript is to be written again: rows are kept for so long after they were written."""
        return now - place.since >= self._archive.every or place.entries >= _AGAIN

    async def _found(self, item: Item) -> tuple[Place, State]:
        """How far a session is recorded, by this worker or others. A log may name what the store does not have: it is
        written first, and who wrote it may have taken rows for stored that were in a store before this one."""
        store = self._archive.store
        key = holdings.transcript_key(tenant_of(item.space), item.session)
        state = state_of(holdings.decode_recorded(await store.read(key)))
        beside = [holdings.head_key(state.head), *map(row_key, state.lead_rows)] if state.head else []
        head = state.head if beside and None not in await store.get_many(beside) else b""
        since = state.since if state.keys else self._clock.now()
        return Place(len(state.keys), b"", head, since, state.entries, state.size), state

    def _packed(self, plans: Sequence[Plan]) -> tuple[list[Put | Append], dict[Name, int]]:
        """The writes, what lists the rest first; and what each transcript counts with them. Slow where much is new."""
        pack, rows = Rows(self._archive), list[Put | Append]()
        sizes: dict[Name, int] = {}
        for plan in plans:
            item, conversation = plan.item, plan.item.conversation
            name = _name(item)
            entry = Recorded(
                plan.start,
                [message.key for message in plan.messages],
                [pack.row(plan, message) for message in plan.messages],
                item.at,
                conversation.dialect,
                conversation.model,
                plan.head,
                pack.head(plan) if plan.head else 0,
                [message.key for message in plan.lead],
                [pack.row(plan, message) for message in plan.lead],
                conversation.chain[-1],
                item.after if plan.start == BEHIND else conversation.chain[plan.start - 1] if plan.start else b"",
                pack.variants(plan.messages),
                pack.variants(plan.lead),
            )
            sizes[name] = entry.size + (0 if plan.fresh else sizes.get(name, plan.size))
            rows += self._listed(plan, entry, sizes[name])
        return [*rows, *pack.puts.values()], sizes

    def _listed(self, plan: Plan, entry: Recorded, size: int) -> list[Put | Append]:
        item, tenant = plan.item, tenant_of(plan.item.space)
        told = Entry("transcript", "", item.session, item.at, item.at, size)
        log = Append(
            holdings.transcript_key(tenant, item.session), holdings.encode(entry), _KEPT, self._archive.retention
        )
        return [*self._archive.entered(item.space, told), log]

    # -- reading ------------------------------------------------------------------

    async def find(self, space: bytes, session: str) -> Transcript | None:
        """The transcript of a session; None where there is none. Raises StoreUnavailable."""
        return await transcript_of(self._archive, space, session)

    async def read(self, space: bytes, session: str, first: int, last: int) -> list[bytes | None]:
        """The client's messages `first` to `last` (inclusive) as JSON; the system prompt is number 0, or several are
        where the list itself begins with such. None stands for what is not kept any more. Raises StoreUnavailable."""
        transcript = await self.find(space, session)
        if transcript is None:
            return []
        beside = transcript.system is not None
        rows = transcript.rows
        wanted = rows[max(0, first - beside) : max(0, last + 1 - beside)]
        head = [system_json(transcript)] if beside and first <= 0 <= last else []
        return [*head, *await self._wires(space, wanted)]

    async def original(self, space: bytes, session: str) -> Original | None:
        """The whole unfolded history as a request's body of its dialect; None where there is no transcript. Raises
        StoreUnavailable."""
        transcript = await self.find(space, session)
        if transcript is None:
            return None
        return body_of(transcript, await self._wires(space, transcript.rows))

    async def _wires(self, space: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        wires: list[bytes | None] = []
        for at in range(0, len(keys), _PAGE):
            page = keys[at : at + _PAGE]
            found = await self._archive.rows(space, page)
            wires += [found.get(key) for key in page]
        return wires


def _name(item: Item) -> Name:
    return item.space, item.session


def _head(place: Place, conversation: Conversation) -> bytes:
    """The key of what stands beside the list; what goes on from a thread leaves it out, and it stays as it was."""
    return place.head if conversation.threaded else conversation.overhead_key


def _goes_on(place: Place, conversation: Conversation) -> bool:
    """Whether a request holds what is recorded, and perhaps more behind it."""
    if conversation.previous is not None:
        return True
    chain = conversation.chain
    return place.count <= len(chain) and (place.count == 0 or chain[place.count - 1] == place.last)
