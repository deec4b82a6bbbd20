"""Stores what a later request needs of a response, before the response ends.

A client goes on from a response as soon as it has the last byte of it: by the response's id, or with its own copy of it
in the list. What it does not know of, or will not send again, must be on record by then, for any worker and after a
crash: the tool round in which something was read back, what the id stands for, what the provider keeps under it, and
what the request adds to the transcript. All of that is one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from accordion.archive.erasures import Erasures
from accordion.archive.links import Link, Links
from accordion.archive.transcripts import Transcripts
from accordion.archive.writing import Archive
from accordion.compaction.overlays import Overlays
from accordion.core.conversation import Conversation
from accordion.core.errors import StoreUnavailable, Unreadable
from accordion.core.ports import Outbox, Put
from accordion.core.records import ReplySeen
from accordion.core.weaves import Weave
from accordion.dialects.spans import NULL
from accordion.gauged import Gauge
from accordion.identity.points import rounds
from accordion.identity.sessions import Place, Sessions
from accordion.learning import states_of

_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class ResponseHistory:
    """Stores responses. Where the store is away they are queued, and stored when it is back."""

    sessions: Sessions
    links: Links
    overlays: Overlays
    archive: Archive
    outbox: Outbox
    erasures: Erasures
    transcripts: Transcripts

    def is_needed(self, gauge: Gauge) -> bool:
        """Whether the response must wait for it: something may be read back in it, or its client may go on by its id.
        A client that sent the same conversation itself a moment ago goes on so, and need not wait."""
        if gauge.offered:
            return True
        place = gauge.place
        if place is None or gauge.counting or not _is_sent_once(gauge):
            return False
        return place.conversation.kept != "reply" or _is_stored(client_of(gauge))

    async def store(
        self, gauge: Gauge, seen: ReplySeen, reported: ReplySeen, ids: tuple[str, ...], weave: Weave | None
    ) -> None:
        """Stores a response. `seen` is the response as the client has it, `reported` the same with the usage of its
        first round, `ids` the provider's own ids of its rounds. Never fails."""
        place, caller = gauge.place, gauge.caller
        if place is None:
            return
        try:
            puts = list[Put]()
            if weave is not None:
                puts += await self.overlays.puts(caller.space, place.label, weave, place.session.id)
            puts += await self._linked(gauge, place, seen)
            # Last, since it is by this that the others are looked for.
            puts += self.sessions.puts(caller, {} if seen.error else states_of(gauge, place, reported, ids))
            if puts and not self.erasures.since(caller.space, place.session.id, gauge.started):
                await self._write(gauge, place, puts)
        except Exception:
            # The response itself is whole, and must not fail for it.
            _log.exception("a response could not be stored", extra={"request_id": gauge.request_id})

    def note(self, gauge: Gauge, seen: ReplySeen, reported: ReplySeen, ids: tuple[str, ...]) -> None:
        """The same of a response that nobody need wait for, from a client that sends the history itself: what its ids
        stand for is stored soon, and what the provider keeps is held in memory."""
        if gauge.place is not None:
            if not seen.error:
                self.sessions.answered(gauge.caller, states_of(gauge, gauge.place, reported, ids))
            self._link(gauge, gauge.place, seen)

    async def _linked(self, gauge: Gauge, place: Place, seen: ReplySeen) -> list[Put]:
        """The writes that keep what the provider keeps."""
        link = self._link(gauge, place, seen)
        if link is None:
            return []
        return await self.links.puts(gauge.caller.space, place.session.id, seen.response_id, link)

    def _link(self, gauge: Gauge, place: Place, seen: ReplySeen) -> Link | None:
        """What the provider keeps of the exchange, where that is to be stored. Whether this very request was to be
        compacted does not matter: a later one may be."""
        if place.conversation.kept != "reply" or gauge.counting or seen.output is None or not seen.response_id:
            return None
        client, known = client_of(gauge.asked or gauge), not _is_sent_once(gauge)
        if gauge.rules.mode != "auto" or gauge.route.family == "litellm" or not _is_stored(client):
            return None
        return self.links.take(gauge.caller.space, place.session.id, client, seen.response_id, seen.output, known=known)

    def record(self, gauge: Gauge, place: Place) -> None:
        """Records in the transcript what is not recorded yet of a request, soon."""
        self.transcripts.record(
            gauge.caller.space, place.session.id, place.conversation, folded=gauge.was_folded, after=_before(place)
        )

    async def _write(self, gauge: Gauge, place: Place, puts: list[Put]) -> None:
        try:
            if _is_sent_once(gauge):
                await self.transcripts.record_at_once(
                    gauge.caller.space, place.session.id, place.conversation, puts,
                    folded=gauge.was_folded, after=_before(place),
                )  # fmt: skip
            else:
                await self.archive.keep(puts)
        except StoreUnavailable:
            for put in puts:
                self.outbox.put(put.key, partial(bytes, put.value), put.ttl)


def client_of(gauge: Gauge) -> Conversation:
    """What the client itself sent."""
    if gauge.seated is not None:
        return gauge.seated.client
    if gauge.place is None:
        raise Unreadable("only what was read goes on from something")
    return gauge.place.conversation


def _before(place: Place) -> bytes:
    """The chain key of what the provider keeps before a request, where that is known."""
    return place.base.chain if place.base is not None else b""


def _is_sent_once(gauge: Gauge) -> bool:
    """Whether the messages of a request are not in the next one: its client leaves them to the provider. A client that
    sends its history itself brings back the one response that was given since the place that the request goes on from.
    Where there are more, they were given elsewhere, or by their ids."""
    place = (gauge.asked or gauge).place
    if place is None or not place.conversation.kept:
        return False
    conversation, index = place.conversation, place.base_index
    return conversation.previous is not None or index < 0 or rounds(conversation, index) != 1


def _is_stored(client: Conversation) -> bool:
    """Whether the response can be gone on from, and all that the provider has of it can be on record: what its own
    template says cannot."""
    envelope: Mapping[str, bytes] = client.envelope
    return envelope.get("store") != b"false" and envelope.get("prompt", NULL) == NULL
