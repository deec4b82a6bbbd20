"""What is known of a request before it leaves: its seat, its session, replay, accounting and policy.

`Gauging` is where forward.py and `accordion explain` learn whose request it is, where it stands, how full the window
will be once earlier folds are put back, and what is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field

from msgspec import structs

from accordion.accounting.calibration import UNKNOWN, Calibrations, estimate, is_credible, on_record
from accordion.accounting.meter import Meter
from accordion.accounting.overflow import Overflow
from accordion.compaction.controls import read_controls
from accordion.compaction.dresser import Dresser
from accordion.compaction.policy import Options, decide
from accordion.compaction.replay import Folds
from accordion.compaction.wishes import Wishes
from accordion.core.budget import Decision, Limits, Utilization, Window
from accordion.core.conversation import Conversation
from accordion.core.edits import Folded, unfolded
from accordion.core.errors import TooLong, Unreadable
from accordion.core.http import Inbound
from accordion.core.ports import Route, Router, Tasks, Windows
from accordion.core.values import dataclass, replace
from accordion.dialects.base import Dialect
from accordion.dialects.encodings import decoded
from accordion.dialects.naming import named_by, named_in
from accordion.dialects.reader import Reader
from accordion.gauged import Gauge, Rules, attempt_of, base_of, fold_of, images, is_anthropic, lost, size_of, told_apart
from accordion.identity.marks import read_marks
from accordion.identity.points import goes_on, rounds
from accordion.identity.sessions import Place, Sessions
from accordion.identity.tenants import Caller
from accordion.importing import Mentions
from accordion.seating import Seated, Seating, seat_marks

_log = logging.getLogger("accordion")

# Bodies up to this size are read at once where no more than `_NEW_AT_ONCE` of them is new, all others in a thread, so
# that other requests need not wait: a thread costs a tenth of a millisecond, a megabyte that is new ten, or, of very
# small messages, 300.
_READ_AT_ONCE = 1 << 20
_NEW_AT_ONCE = 32_768
_TENANTS_LOGGED = 1_000
# Bodies above this size are read one after the other, so that what reading takes beside them is taken once.
_READ_ALONE = 4 << 20


@dataclass(frozen=True, slots=True)
class Gauging:
    """Reads, identifies, measures, decides."""

    dialects: Mapping[str, Dialect]
    """By request path, such as `/v1/messages`."""
    counters: Mapping[str, Dialect]
    """The same for paths that ask how many tokens a request would be, such as `/v1/messages/count_tokens`."""
    openai: Dialect
    anthropic: Dialect
    """Whose error shape is used on paths that no dialect reads."""
    reader: Reader
    sessions: Sessions
    seating: Seating
    meter: Meter
    calibrations: Calibrations
    windows: Windows
    folds: Folds
    wishes: Wishes
    rules: Callable[[str, str, bool, int], Rules]
    """By model, by the family of its provider, whether a sub-agent asks, and the window in tokens."""
    base_models: Mapping[str, str]
    """The id that a configured name stands for, where the encoding is looked up."""
    router: Router
    tasks: Tasks
    max_body: int = 64 * 2**20
    dresser: Dresser | None = None
    """Who puts weaves and recalls in place and offers our tool; None where nobody does."""
    mentions: Mentions = field(default_factory=Mentions)
    unread_logged: set[str] = field(default_factory=set)
    """Whose requests were logged as passed on unread, and why."""

    def speaks(self, path: str, fields: Mapping[bytes, bytes]) -> Dialect:
        """The dialect of a path: the one that reads it, else the one whose provider it goes to."""
        own = self.dialects.get(path) or self.counters.get(path)
        return own or (self.anthropic if is_anthropic(path, fields) else self.openai)

    async def gauge(self, inbound: Inbound, fields: Mapping[bytes, bytes], caller: Caller, started: float = 0) -> Gauge:
        """Reads a request, finds its session, puts earlier folds back, measures, decides. What cannot be read is
        passed on unread. `started`: see Gauge. Raises BadRequest where a header of ours is malformed."""
        anthropic = is_anthropic(inbound.path, fields)
        dialect = self.dialects.get(inbound.path) or self.counters.get(inbound.path)
        if dialect is None or inbound.method != "POST" or not isinstance(inbound.body, bytes):
            plain = await self._plain(inbound.beginning, fields) if self.router.models else b""
            model = named_by(inbound) or await self._named(plain, fields.get(b"content-type", b""))
            route = self.router.route(inbound.path, anthropic, model)
            encoded = b"content-encoding" in fields and route.family != "litellm"
            return Gauge(caller, route, self.speaks(inbound.path, fields), plain=plain if encoded else b"")
        plain = inbound.body if b"content-encoding" not in fields else await self._plain(inbound.body, fields)
        if self._is_quick(dialect, plain, caller):
            read = self._read(dialect, plain, caller)
        else:
            offload = self.tasks.offload if len(plain) <= _READ_ALONE else self.tasks.offload_alone
            read = await offload(self._read, dialect, plain, caller)
        conversation, unread = (None, read) if isinstance(read, str) else (read, "")
        # A body that cannot be read may still say whose it is: it must not go to a provider that it was not meant for.
        model = conversation.model if conversation is not None else await self._named(plain)
        route = self.router.for_dialect(self.router.route(inbound.path, anthropic, model), dialect.name)
        if conversation is None:
            return Gauge(caller, route, dialect, plain=plain, illegible=True, unread=unread)
        counting = inbound.path in self.counters
        marks, beta = read_marks(fields, conversation.envelope), fields.get(b"anthropic-beta", b"").decode("latin-1")
        controls = read_controls(fields, conversation, compacting=marks.compacting)
        marks = self.mentions.divided(marks, controls.project)
        seated = await self.seating.seated(dialect, caller, marks, conversation, plain)
        bare = Gauge(
            caller, route, dialect, plain=seated.plain, beta=beta, counting=counting, request_id=inbound.request_id,
            controls=controls, seated=seated, started=started,
            model=self.base_models.get(conversation.model) or route.model or conversation.model,
        )  # fmt: skip
        try:
            marks, seen = seat_marks(marks, seated.seat), seated.conversation
            if counting:
                return await self._measure(bare, self.sessions.aside(caller, marks, seen), seated)
            place = await self.sessions.resolve(caller, marks, seen, inbound.request_id)
            if not marks.compacting:
                seated = await self.seating.placed(caller, seated, place)
            return await self._measure(bare, place, seated)
        except Exception:
            # Knowing more about a request is a favour, forwarding it is a promise.
            _log.exception(
                "a request could not be measured; it is forwarded unchanged", extra={"request_id": inbound.request_id}
            )
            return structs.replace(bare, seated=seated)

    async def anew(self, gauge: Gauge) -> Gauge:
        """The same where some is shown only because it was shown before: with all hidden that is others', since what
        comes is a fold."""
        if gauge.seated is None or gauge.place is None or not gauge.seated.late:
            return gauge
        seated, place = await self.seating.anew(gauge.dialect, gauge.caller, gauge.seated, gauge.place)
        return await self._measure(structs.replace(gauge, plain=seated.plain), place, seated)

    async def refolded(self, gauge: Gauge, folded: Folded, *, fresh: bool = False, woven: bool = True) -> Gauge:
        """The same with another list to be forwarded, measured. `fresh`, `woven`: see Dresser.dress."""
        place, window = gauge.place, gauge.window
        if place is None or window is None:
            return gauge
        shown, offered = folded, ""
        wears = folded.compaction is not None or gauge.reads is not None or gauge.remembers
        if wears and self.dresser is not None:
            shown, offered = await self.dresser.dress(
                gauge.dialect, gauge.caller.space, place.label, place.conversation, folded,
                fresh=fresh, woven=woven, reads=bool(gauge.reads),
            )  # fmt: skip
        elif not gauge.foldable and self.dresser is not None:
            shown = await self.dresser.bared(gauge.dialect, gauge.caller.space, place.label, folded)
        counted = await self._count(gauge, shown.conversation, window)
        if shown.conversation.chain is not (bare := folded.conversation).chain:
            if (longer := self.meter.longer(shown.conversation, bare, gauge.model)) is None:
                without = await self._count(gauge, bare, window)
                longer = counted.messages + counted.media - without.messages - without.media
            counted = told_apart(counted, longer)
        if folded.conversation.max_output is None and (reserved := gauge.rules.thresholds.reserved_output):
            counted = replace(counted, reserved_output=min(reserved, window.size))
        return structs.replace(
            gauge,
            folded=folded,
            counted=counted.tokens,
            text=counted.tokens - counted.media,
            utilization=self._corrected(gauge.route, place, counted, window, folded if woven else None),
            dressed=shown if folded.compaction is not None or shown is not folded else None,
            offered="" if gauge.counting else offered,
        )

    async def brought(self, gauge: Gauge) -> int:
        """Tokens that a fold of this request brings along: those of our tool, where it is not offered yet."""
        folded, window = gauge.folded, gauge.window
        if self.dresser is None or folded is None or window is None:
            return 0
        if gauge.dressed is not None and gauge.dressed.conversation.tools is not folded.conversation.tools:
            return 0
        if (offered := self.dresser.offered(gauge.dialect, folded.conversation)) is folded.conversation:
            return 0
        before = await self._count(gauge, folded.conversation, window)
        longer = (await self._count(gauge, offered, window)).tokens - before.tokens
        # Counted as the rest of the request is: with what is known of the provider's own count.
        return round(longer * gauge.utilization.tokens / max(1, gauge.counted))

    def overflowed(self, gauge: Gauge, overflow: Overflow) -> None:
        """Takes the limit that an overflow error named, unless the error only quotes what was sent."""
        if overflow.limit and gauge.place is not None and not overflow.quotes(gauge.plain):
            model = gauge.place.conversation.model
            self.windows.learn(model, gauge.route.name, gauge.beta, gauge.caller.tenant, overflow.limit)

    # -- the steps ----------------------------------------------------------------

    async def _plain(self, body: bytes, fields: Mapping[bytes, bytes]) -> bytes:
        """The body without its content encoding; empty where that cannot be undone."""
        if (encoding := fields.get(b"content-encoding")) is None:
            return body
        return await self.tasks.offload(decoded, body, encoding.decode("latin-1"), self.max_body) or b""

    def _is_quick(self, dialect: Dialect, plain: bytes, caller: Caller) -> bool:
        """Whether a body is read sooner than a thread would be there for it."""
        if len(plain) <= _NEW_AT_ONCE:
            return True
        return len(plain) <= _READ_AT_ONCE and self.reader.unknown(dialect, plain, caller.space) <= _NEW_AT_ONCE

    def _read(self, dialect: Dialect, plain: bytes, caller: Caller) -> Conversation | str:
        """What a body says; where it cannot be read, why it is not, if that is to be told."""
        try:
            return self.reader.read(dialect, plain, caller.space)
        except TooLong as error:
            self._log_unread(caller, len(plain), error.message)
            return error.message
        except Unreadable:
            return ""
        except Exception:
            _log.exception("a request could not be read; it is forwarded unchanged")
            return ""

    def _log_unread(self, caller: Caller, size: int, reason: str) -> None:
        """A warning once for each tenant and reason, since a client may send such a body again and again."""
        told, key = self.unread_logged, f"{caller.tenant} {reason}"
        level = logging.DEBUG if key in told else logging.WARNING
        if len(told) < _TENANTS_LOGGED:
            told.add(key)
        _log.log(level, "a request of %s bytes is passed on unread: it holds %s", f"{size:,}", reason)

    async def _named(self, plain: bytes, kind: bytes = b"") -> str | None:
        """The model that a body names which is not read otherwise; of use only where models are configured."""
        if not self.router.models:
            return None
        if len(plain) > _NEW_AT_ONCE:
            return await self.tasks.offload(named_in, plain, kind)
        return named_in(plain, kind)

    async def _measure(self, bare: Gauge, place: Place, seated: Seated) -> Gauge:
        conversation, caller, route = place.conversation, bare.caller, bare.route
        window = self.windows.window(conversation.model, route.name, bare.beta, caller.tenant)
        rules = self.rules(conversation.model, route.family, seated.seat.delegated, window.size)
        limits = rules.thresholds.limits(window.size)
        gauge = structs.replace(bare, place=place, seated=seated, window=window, rules=rules, limits=limits, reads=None)
        if gauge.foldable:
            fresh = self._unsure(caller, place)
            if self.mentions.named(place, gauge.plain):
                gauge = structs.replace(gauge, remembers=True)
            if seated.seat.delegated and b"art_" in gauge.plain:
                reads = await self.seating.reads(caller, seated, place, gauge.plain)
                gauge = structs.replace(gauge, reads=reads)
            folded = await self.folds.find(bare.dialect, caller.space, place.label, conversation, fresh=fresh)
        else:
            folded, fresh = unfolded(conversation), False
        gauge = await self.refolded(gauge, folded, fresh=fresh)
        return structs.replace(gauge, decision=self.decided(gauge, place, folded, window, limits))

    def _unsure(self, caller: Caller, place: Place) -> bool:
        """Whether others may have folded this history, or this worker itself before it was started anew."""
        conversation, at = place.conversation, place.base_index
        if place.base is None:
            return goes_on(conversation)
        known = at >= 0 and self.folds.remembers(caller.space, place.label, conversation.chain[at])
        return not known or rounds(conversation, at) > 1

    def decided(self, gauge: Gauge, place: Place, folded: Folded, window: Window, limits: Limits) -> Decision:
        """What is to be done with a request that was measured."""
        budgets, used, word = gauge.rules.budgets, gauge.utilization, gauge.controls.word
        if word == "auto" and not gauge.counting and self.wishes.forced(gauge.caller.tenant, place.session.id):
            word = "now"
        threaded, linked = place.conversation.threaded and not gauge.counting, gauge.linked
        options = Options(
            mode=gauge.rules.mode,
            word=word,
            compacting=gauge.controls.compacting,
            recorded=place.recorded,
            kept_by_provider=place.conversation.previous is not None,
            threaded=threaded,
            linked=linked,
            lost=(threaded or linked) and lost(gauge, place, self.sessions.store.available),
            attempt=attempt_of(folded, place.base if threaded else None),
            deferred=self.wishes.deferred(gauge.caller.tenant, place.session.id),
        )
        return decide(
            folded,
            used,
            limits,
            window,
            options=options,
            bytes_over=0 < budgets.body < len(gauge.plain) and budgets.body < size_of(gauge),
            images_over=bool(used.media) and 0 < budgets.images < images(folded.conversation),
        )

    async def _count(self, gauge: Gauge, conversation: Conversation, window: Window) -> Utilization:
        if self.meter.slow(conversation, gauge.model, len(gauge.plain)):
            return await self.tasks.offload(self.meter.measure, conversation, window, gauge.model)
        return self.meter.measure(conversation, window, gauge.model)

    def _corrected(
        self, route: Route, place: Place, counted: Utilization, window: Window, folded: Folded | None
    ) -> Utilization:
        """The count corrected by what the provider reported to this model: for the beginning of this very list, else by
        how far counts were off (accounting/calibration.py). `folded`: None for a new list."""
        base, last, model = base_of(place), None, place.conversation.model
        if base is not None and place.base_index >= 0 and base.reported:
            # Media of this list may stand in the part that was reported.
            text = max(0, base.counted - counted.media)
            if not is_credible(base.reported, base.counted, text, window):
                base = None
        known = place.session.correction_of(model)
        if known == UNKNOWN and base is not None and base.model == model:
            # Another worker had this session so far, or this one before it was started anew.
            known = on_record(base.counted, base.reported)
        factor = self.calibrations.factor(route.name, model, known)
        if base is not None and base.reported and folded is not None and base.fold == fold_of(folded):
            if place.base_index < 0:
                # What the provider keeps had its own overhead in the report; this request brings it along again.
                last = (counted.preamble + counted.tools, base.reported)
            elif base.overhead_key == place.conversation.overhead_key and base.model == model:
                last = (base.counted, base.reported)
        return counted.corrected(factor, estimate(counted.tokens, last, factor), carried=last is not None)
