"""Unfolding: what the model reads back is answered within the same reply.

The provider's reply is spliced (dialects/splice.py): what is not a call of our tool goes on as it comes. Where a reply
calls only our tool, the call is answered from the archive, the provider is asked again with the answer behind the list,
and its next reply goes on where the last one stopped. What the client cannot know of is recorded before the reply ends,
and put back at every later request (compaction/overlays.py).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import structs

from accordion.archive.desk import Desk, Reading
from accordion.compaction.overlays import Overlays
from accordion.compaction.rendering import Rendering
from accordion.core.conversation import ToolResult
from accordion.core.errors import UpstreamCut
from accordion.core.http import Told
from accordion.core.ports import Clock, Headers, UpstreamReply
from accordion.core.records import Unfolded, Usage
from accordion.core.tooling import Answer, OurCall
from accordion.core.values import replace
from accordion.core.weaves import Round, Weave
from accordion.dialects.encodings import Decoder
from accordion.dialects.spans import fields_of, items_of, list_of, object_of
from accordion.dialects.splice import RoundSeen, Weaver
from accordion.dialects.splicing import to_json, well_formed
from accordion.dialects.sse import Events
from accordion.dialects.tap import BOUND
from accordion.gauged import Gauge
from accordion.identity.kinship import Viewer
from accordion.relay import Course, content
from accordion.rewriting import Rewritten, body_of, headers_of_read
from accordion.sharing import Sharing, Shown

_log = logging.getLogger("accordion")

Ask = Callable[[Gauge], Awaitable[UpstreamReply]]

_NO_ROOM = "There is no room left in the window for this answer. Ask for less, or go on without it."
_ENOUGH = "No more artifacts can be read within this response. Go on with what you have."
_TOO_LONG = (400, 413)


@dataclass(frozen=True, slots=True)
class Unfolding:
    """Splices replies. `rounds` is how often the provider is asked again within one reply at most."""

    weavers: Mapping[str, Weaver]
    desk: Desk
    overlays: Overlays
    rendering: Rendering
    count: Callable[[str, str], int]
    """Tokens of a text for a model."""
    clock: Clock
    rounds: int = 8
    sharing: Sharing | None = None
    """None where nothing of others is read."""

    async def spliced(self, reply: UpstreamReply, gauge: Gauge, ask: Ask, course: Course) -> UpstreamReply:
        """The reply to the client, made of this one and of those that follow it; the very same where our tool was not
        offered, or where there is nothing to read. `ask` sends a request that goes on; `course` is told at the end what
        became of it."""
        if not gauge.offered or reply.status != 200:
            return reply
        kind, encoding = content(reply.headers)
        streamed = kind == "text/event-stream"
        if not (streamed or kind.endswith("json")):
            return reply
        if streamed:
            talk = _Talk(self, gauge, ask, course, stream=True)
            talk.shown = Rewritten(reply, talk.told(reply, encoding))
            return talk.shown
        # A document shows nothing before its end, so that an error on the way can still be the answer.
        body = await body_of(reply, encoding)
        if not _ours(body, gauge.offered):
            return Told(body, headers_of_read(reply.headers))
        return await _Talk(self, gauge, ask, course, stream=False).whole(body, reply.headers)

    async def continued(self, gauge: Gauge) -> Gauge:
        """A request that goes on, by its id, from a reply in which something was read back: with the id that the
        provider has for it, and with the answers to our calls, of which the client does not know."""
        place = gauge.place
        if place is None or place.base is None or not place.base.ids or not gauge.plain:
            return gauge
        try:
            fields = fields_of(gauge.plain)
            if "previous_response_id" not in fields:
                return gauge
            fields["previous_response_id"] = to_json(place.base.ids[-1])
            said = place.conversation.messages
            given = {part.call_id for each in said for part in each.parts if isinstance(part, ToolResult)}
            found = await self.overlays.find(gauge.caller.space, place.label, (place.base.chain,), 1, fresh=True)
            weaves = [each for each in found if isinstance(each, Weave) and given.intersection(each.calls)]
            if owed := weaves[0].rounds[-1].answered if weaves else ():
                fields[gauge.dialect.listing] = list_of([*owed, *items_of(fields[gauge.dialect.listing])])
            return structs.replace(gauge, sent=object_of(fields))
        except Exception:
            _log.exception(
                "an earlier read-back could not be put into a request", extra={"request_id": gauge.request_id}
            )
            return gauge

    def reading(self, gauge: Gauge, behind: int) -> Reading:
        """Who reads, and how much there is room for when `behind` tokens were added to the list already."""
        compaction = gauge.folded.compaction if gauge.folded is not None else None
        room = gauge.window.usable_input - gauge.utilization.occupied - behind if gauge.window is not None else 0
        return Reading(
            gauge.caller.space,
            frozenset(compaction.artifacts if compaction is not None else ()),
            max(0, room),
            lambda text: self.count(text, gauge.model),
            gauge.window.size if gauge.window is not None else 0,
            gauge.place.session.id if gauge.place is not None else "",
            self._others(gauge),
        )

    def _others(self, gauge: Gauge) -> Shown | None:
        """What else it is shown the ids of: in what it sees of its client's list, and in what a fold wrote."""
        if self.sharing is None or gauge.seated is None or gauge.place is None:
            return None
        seated, folded = gauge.seated, gauge.folded
        viewer = Viewer(gauge.caller, seated.seat, gauge.place.session.id, seated.client)
        written = [message.wire for message in folded.conversation.messages] if gauge.fold and folded else []
        return Shown(self.sharing, viewer, (gauge.plain, *written))


class _Talk:
    """One reply to the client, and the rounds behind it."""

    def __init__(self, house: Unfolding, gauge: Gauge, ask: Ask, course: Course, *, stream: bool) -> None:
        self._house, self._gauge, self._ask, self._course = house, gauge, ask, course
        self._weaver = house.weavers[gauge.dialect.name]
        self._splice = self._weaver.splice(gauge.offered, stream)
        self._rounds: list[Round] = []
        self._texts: list[str] = []
        self._behind = 0
        self._calls = 0
        self._usages: list[Usage | None] = []
        self._resolved = False
        self._container = ""
        self.shown: Rewritten | None = None
        """The stream as the client has it."""

    async def told(self, reply: UpstreamReply, encoding: str) -> AsyncGenerator[bytes, None]:
        """The stream as the client sees it, also where it ends in the provider's own error. Raises UpstreamCut and the
        like where a round ends too early."""
        while True:
            async with aclosing(self._heard(reply, encoding)) as blocks:
                async for block in blocks:
                    yield block
            following = await self._following()
            if following is None:
                break
            reply = following
            kind, encoding = content(reply.headers)
            self._splice.next()
            if reply.status != 200 or kind != "text/event-stream":
                if not (refusal := self._gauge.dialect.stream_refusal(await body_of(reply, encoding))):
                    raise UpstreamCut(
                        f"Connection lost: the provider answered {reply.status} after a read-back. "
                        "Send the request again."
                    )
                yield self._splice.feed(refusal)
                return
            if self.shown is not None:
                # Whether all was said is for the events to tell: this round may end in nothing.
                self.shown.delimited = False
        self._record()
        if rest := self._splice.close():
            yield rest

    async def whole(self, body: bytes, headers: Headers) -> UpstreamReply:
        """The document as the client sees it; the provider's own error where it refuses to go on. `body` is that of the
        first reply, which may call our tool."""
        while True:
            told = await self._fed(self._splice.feed(well_formed(body)))
            following = await self._following()
            if following is None:
                break
            reply = following
            if reply.status != 200:
                return reply
            self._splice.next()
            body = await body_of(reply, content(reply.headers)[1])
        if self._rounds and not self._splice.held:
            raise UpstreamCut(
                "Connection lost: the provider's answer ended early after a read-back. Send the request again."
            )
        self._record()
        return Told(told + self._splice.close(), headers_of_read(headers))

    async def _heard(self, reply: UpstreamReply, encoding: str) -> AsyncGenerator[bytes, None]:
        """One round: what of it may go on at once."""
        splice, events = self._splice, Events(BOUND)
        decoder = Decoder(encoding) if encoding else None
        try:
            async with aclosing(reply.chunks()) as pieces:
                async for piece in pieces:
                    block = well_formed(events.feed(piece if decoder is None else decoder.feed(piece)))
                    out = splice.feed(block) if block else b""
                    if splice.wanted:
                        out = await self._fed(out)
                    else:
                        self._course.shown, self._course.telling = out, splice.telling
                    if out:
                        yield out
            if (rest := events.flush()) and (out := await self._fed(splice.feed(well_formed(rest)))):
                yield out
        finally:
            await reply.close()

    async def _fed(self, out: bytes) -> bytes:
        while wanted := self._splice.wanted:
            texts = await self._house.desk.texts(self._house.reading(self._gauge, self._behind), wanted)
            out += self._splice.give(texts)
        return out

    # -- from one round to the next -----------------------------------------------

    async def _following(self) -> UpstreamReply | None:
        """The provider's next reply, where the last one asked for something; None where it is the end."""
        if not self._splice.held:
            return None
        seen = self._splice.round()
        self._usages.append(seen.usage)
        self._texts.append(seen.text)
        self._resolved = self._resolved or seen.resolved
        self._container = seen.container or self._container
        if not (seen.ours and seen.finished):
            self._rounds.append(Round(seen.said))
            return None
        self._calls += len(seen.ours)
        answers = await self._answers(seen.ours)
        self._note(seen, answers)
        if seen.theirs or len(self._rounds) > self._house.rounds:
            # Some models call what they are not offered any more.
            return None
        reply = await self._asked()
        if reply.status in _TOO_LONG and any(answer.text != _NO_ROOM for answer in answers):
            await reply.close()
            self._rounds.pop()
            self._note(seen, [Answer(call.call_id, _NO_ROOM, error=True) for call in seen.ours])
            reply = await self._asked()
        return reply

    async def _answers(self, calls: Sequence[OurCall]) -> list[Answer]:
        if len(self._rounds) >= self._house.rounds:
            return [Answer(call.call_id, _ENOUGH, error=True) for call in calls]
        return await self._house.desk.answers(self._house.reading(self._gauge, self._behind), calls)

    def _note(self, seen: RoundSeen, answers: Sequence[Answer]) -> None:
        self._rounds.append(Round(seen.said, self._weaver.answers(answers)))
        told = sum(self._house.count(answer.text, self._gauge.model) for answer in answers)
        self._behind += told + (seen.usage.output if seen.usage is not None else 0)

    async def _asked(self) -> UpstreamReply:
        """Asks the provider to go on behind all rounds so far."""
        gauge = self._gauge
        dressed = gauge.dressed
        if dressed is None:
            raise UpstreamCut(
                "Connection lost: the response could not be continued after a read-back. Send the request again."
            )
        fields = self._weaver.onward(dressed.conversation.envelope, self._container)
        last = self._weaver.last(fields) if len(self._rounds) >= self._house.rounds else {}
        dressed = replace(dressed, conversation=replace(dressed.conversation, envelope={**fields, **last}))
        behind = [w for each in self._rounds for w in (*self._weaver.again(each.said, fields), *each.answered)]
        body = self._house.rendering.body(gauge.dialect, dressed, behind)
        return await self._ask(structs.replace(gauge, sent=body))

    def _record(self) -> None:
        """Tells what was done, and what the client cannot know of, which is stored before the response ends."""
        rounds, place = self._rounds, self._gauge.place
        if self._calls:
            self._course.unfolded, self._course.ids = _unfolded(self._usages, self._calls), self._splice.ids
        hidden = len(rounds) > 1 or any(each.answered for each in rounds) or self._resolved
        if not hidden or place is None or not place.conversation.chain:
            return
        text, at = " ".join(" ".join(self._texts).split()), self._house.clock.now()
        weave = Weave(place.conversation.chain[-1], tuple(rounds), self._splice.round().theirs, text, at)
        self._course.weave = weave


def _ours(document: bytes, tool: str) -> bool:
    """Whether a reply may call our tool or name an artifact, as far as can be told without reading it: JSON may write
    both with escapes."""
    return tool.encode() in document or b"$artifact" in document or b"\\u" in document


def _unfolded(usages: Sequence[Usage | None], calls: int) -> Unfolded:
    known = [usage for usage in usages if usage is not None]
    return Unfolded(
        rounds=len(usages) - 1,
        calls=calls,
        input=sum(usage.input for usage in known[:-1]),
        first=usages[0],
    )
