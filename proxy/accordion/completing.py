"""What the provider keeps of a conversation, put in place of the id of the reply that a request goes on from.

Responses lets a client say `previous_response_id` and only what is new. Below the trigger such a request passes as it
came. Where a fold is due it is made whole from what is on record (archive/links.py), and from there on it is like any
other: folded, read back from, recalled for. Once that was done the provider keeps a folded list under the reply's id,
so it is done at every later request of the conversation. What is not all on record passes as it came, and so does what
the provider refuses in this form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from accordion.accounting.overflow import Overflow
from accordion.archive.links import Links
from accordion.core.budget import Decision
from accordion.core.conversation import Conversation
from accordion.core.errors import StoreUnavailable
from accordion.core.http import Inbound
from accordion.core.records import CompactionSeen
from accordion.core.summarizing import Asker
from accordion.core.values import replace
from accordion.dialects.spans import fields_of, is_text, items_of, list_of, object_of
from accordion.folding import Folding
from accordion.gauge import Gauging
from accordion.gauged import Gauge
from accordion.response_history import client_of

_log = logging.getLogger("accordion")

_PASSES = "so it passes unchanged"
_KEPT = f"the provider keeps the history, {_PASSES}"
Askers = Callable[[Gauge], Asker | None]


@dataclass(frozen=True, slots=True)
class Completing:
    """Makes requests whole that go on from a reply by its id. Who folds them then is said at each call."""

    links: Links

    async def fold(self, folding: Folding, inbound: Inbound, gauge: Gauge, asker: Askers) -> Gauge:
        """The request as it is to be forwarded; see Folding.fold. One that goes on from a reply by its id is whole and
        folded, or as it came."""
        if gauge.decision.action != "complete":
            return await folding.fold(gauge, asker)
        whole = await self._whole(folding.gauging, inbound, gauge)
        if isinstance(whole, str):
            return await folding.fold(_passed(gauge, f"{gauge.decision.reason}; {whole}"), asker)
        folded = await folding.fold(whole, asker)
        if folded.sent is None:
            # Nothing was there to be folded, or it failed; then that is told.
            return await folding.fold(_passed(gauge, folded.decision.reason, folded.seen), asker)
        if folded.decision.action == "refuse":
            return await folding.fold(_passed(gauge, folded.decision.reason), asker)
        return folded

    async def again(
        self, folding: Folding, inbound: Inbound, gauge: Gauge, asker: Askers, overflow: Overflow | None
    ) -> Gauge | None:
        """What is sent where the provider refused a request: folded because it does not fit (see Folding.overflowed),
        or, where it is something else about what was put together, as it came."""
        if overflow is None:
            asked = gauge.asked
            return _passed(asked, "the provider refused the reconstructed history") if asked else None
        whole = await self._whole(folding.gauging, inbound, gauge) if gauge.linked else gauge
        return await folding.overflowed(gauge if isinstance(whole, str) else whole, asker, overflow)

    async def mended(
        self, folding: Folding, inbound: Inbound, gauge: Gauge, asker: Askers, refusal: bytes, *, whole: bool = True
    ) -> Gauge | None:
        """What is sent where the provider refuses a request that goes on from a response by its id, since a call or its
        output is missing: the `whole` history where it is on record and may be sent, else the same with a placeholder
        for what is missing. None where it misses something else, or something of the client's own. Never fails."""
        missing = gauge.dialect.missing(refusal)
        if not missing or not _may_lack(gauge):
            return None
        try:
            can = whole and gauge.sent is None and gauge.linked
            made = await self._whole(folding.gauging, inbound, gauge) if can else ""
            if not isinstance(made, str):
                folded = await folding.fold(made, asker)
                return folded if folded.sent is not None else structs.replace(folded, sent=folded.plain)
            fields, listing = fields_of(gauge.sent or gauge.plain), gauge.dialect.listing
            given = fields[listing]
            entries = [b'{"role":"user","content":%s}' % given] if is_text(given) else items_of(given)
            fields[listing] = list_of([missing, *entries])
        except Exception:
            _log.exception("a refused request could not be mended", extra={"request_id": gauge.request_id})
            return None
        reason = f"{gauge.decision.reason}; the provider missed a tool call or its output, and a placeholder was put in"
        return structs.replace(gauge, sent=object_of(fields), decision=replace(gauge.decision, reason=reason))

    async def _whole(self, gauging: Gauging, inbound: Inbound, gauge: Gauge) -> Gauge | str:
        """The request with what led to the reply in place of its id, gauged; or why it passes as it came. Never
        fails."""
        asked, caller = client_of(gauge), gauge.caller
        try:
            before = await self.links.before(caller.space, asked.previous or "")
            if before is None and not self.links.is_available:
                return f"the store is unavailable, {_PASSES}"
            if before is None:
                return f"the history that the provider keeps is not completely on record, {_PASSES}"
            fields = {name: value for name, value in inbound.fields.items() if name != b"content-encoding"}
            whole = replace(inbound, body=_body(gauge.dialect.listing, before, asked))
            made = await gauging.gauge(whole, fields, caller, gauge.started)
            if made.place is None or gauge.dialect.problems(made.place.conversation.messages):
                return f"the provider keeps another history than the one on record, {_PASSES}"
            return structs.replace(_weighed(gauging, made, gauge), asked=gauge)
        except StoreUnavailable:
            return f"the store is unavailable, {_PASSES}"
        except Exception:
            _log.exception(
                "the history that the provider keeps could not be put into a request",
                extra={"request_id": gauge.request_id},
            )
            return f"the history could not be reconstructed, {_PASSES}"


def _may_lack(gauge: Gauge) -> bool:
    """Whether the provider may lack what the client knows nothing of: the request goes on from a response by its id,
    and something was read back in that, or it is not on record. Where the request may not be changed, nothing was read
    back, and the fault is the client's own."""
    place = gauge.place
    if gauge.asked is not None or place is None or place.conversation.kept != "reply":
        return False
    if (base := place.base) is None:
        return gauge.linked
    return place.conversation.previous is not None and (bool(base.ids) or base.changed)


def _passed(gauge: Gauge, why: str, seen: CompactionSeen | None = None) -> Gauge:
    reason = why if why.endswith(_PASSES) else f"{why}; {_KEPT}"
    return structs.replace(gauge, decision=Decision("pass", reason), seen=seen)


def _weighed(gauging: Gauging, whole: Gauge, kept: Gauge) -> Gauge:
    """A request that was made whole, with the tokens that the provider reported for what it keeps, where it keeps that
    very list."""
    place, folded, window, limits = whole.place, whole.folded, whole.window, whole.limits
    if place is None or folded is None or window is None or limits is None:
        return whole
    base = kept.place.base if kept.place is not None else None
    if base is None or base.changed or not kept.utilization.carried or folded.compaction is not None:
        return whole
    used = whole.utilization.corrected(1.0, kept.utilization.tokens, carried=True)
    whole = structs.replace(whole, utilization=used)
    return structs.replace(whole, decision=gauging.decided(whole, place, folded, window, limits))


def _body(listing: str, before: list[bytes], asked: Conversation) -> bytes:
    """A request that says itself what led to the reply. The list comes first, since its beginning stays the same."""
    own = (message.wire for message in (*asked.lead, *asked.messages))
    entries = [b'{"role":"user","content":%s}' % wire if is_text(wire) else wire for wire in (*before, *own)]
    rest = {name: value for name, value in asked.envelope.items() if name != "previous_response_id"}
    return object_of({listing: list_of(entries), **rest})
