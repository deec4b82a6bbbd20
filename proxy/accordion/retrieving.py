"""Replies that the provider keeps, asked for by the id that the client was shown.

A reply in which something was read back is several to the provider. The client knows the first one's id; the last one's
leads to all that was said (docs/adr/0010-unfolding.md). What a request held, which `input_items` tells, is what
the first one was given: what the others were given beside that was said in the reply.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote

from accordion.compaction.overlays import Overlays
from accordion.core.errors import AccordionError
from accordion.core.http import Inbound, Told
from accordion.core.ports import UpstreamReply
from accordion.core.values import replace
from accordion.core.weaves import Weave
from accordion.dialects.encodings import Decoder
from accordion.dialects.responses_kept import document_shown, events_shown
from accordion.dialects.sse import Events
from accordion.dialects.tap import BOUND
from accordion.gauged import Gauge
from accordion.identity.points import Point
from accordion.identity.sessions import Sessions
from accordion.relay import content
from accordion.rewriting import Rewritten, body_of, headers_of_read

_PATH = "/v1/responses/"

Send = Callable[[Inbound, Gauge], Awaitable[UpstreamReply]]


@dataclass(frozen=True, slots=True)
class Retrieving:
    """Sends requests for such replies with the provider's own ids, and shows the answers under the client's."""

    sessions: Sessions
    overlays: Overlays

    async def retrieved(self, inbound: Inbound, gauge: Gauge, send: Send) -> UpstreamReply | None:
        """The answer; None where the request is for no such reply. Raises what `send` raises."""
        if not inbound.path.startswith(_PATH):
            return None
        name, _, below = inbound.path.removeprefix(_PATH).partition("/")
        if below not in ("", "cancel") or inbound.method not in ("GET", "DELETE", "POST"):
            return None
        shown = unquote(name)
        point = await self.sessions.state(gauge.caller, shown)
        if point is None or not point.ids:
            return None
        path = _PATH + quote(point.ids[-1], safe="") + (f"/{below}" if below else "")
        headers = tuple(pair for pair in inbound.headers if pair[0] != b"accept-encoding")
        asked = replace(inbound, path=path, headers=(*headers, (b"accept-encoding", b"identity")))
        reply = await send(asked, gauge)
        if reply.status != 200:
            return reply
        if inbound.method == "DELETE":
            await self._rest(asked, gauge, send, [each for each in point.ids[:-1] if each != point.ids[-1]])
        return await self._shown(reply, shown, await self._weaves(gauge, point))

    async def _rest(self, asked: Inbound, gauge: Gauge, send: Send, names: list[str]) -> None:
        """Deletes the rounds before the last, of which the client knows nothing."""
        for name in names:
            with suppress(AccordionError):
                await (await send(replace(asked, path=_PATH + quote(name, safe="")), gauge)).close()

    async def _weaves(self, gauge: Gauge, point: Point) -> list[Weave]:
        found = await self.overlays.find(gauge.caller.space, point.label, (point.chain,), 1, fresh=True)
        return [each for each in found if isinstance(each, Weave)]

    async def _shown(self, reply: UpstreamReply, shown: str, weaves: list[Weave]) -> UpstreamReply:
        kind, encoding = content(reply.headers)
        if kind == "text/event-stream":
            return Rewritten(reply, _events(reply, Decoder(encoding) if encoding else None, shown, weaves))
        whole = await body_of(reply, encoding)
        told = document_shown(whole, shown, weaves) if len(whole) <= BOUND else whole
        return Told(told, headers_of_read(reply.headers))


async def _events(
    reply: UpstreamReply, decoder: Decoder | None, shown: str, weaves: list[Weave]
) -> AsyncGenerator[bytes, None]:
    events = Events(BOUND)
    async with aclosing(reply.chunks()) as pieces:
        async for piece in pieces:
            if block := events.feed(piece if decoder is None else decoder.feed(piece)):
                yield events_shown(block, shown, weaves)
    if rest := events.flush():
        yield events_shown(rest, shown, weaves)
