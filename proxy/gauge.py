"""What is known of a request before it leaves, and what its reply teaches: identity and accounting, brought together.

`Gauging` is where forward.py and `accordion explain` learn whose request it is, where it stands, how full the window
will be, and what is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from proxy.accounting.calibration import Calibrations, estimate
from proxy.accounting.meter import Meter
from proxy.accounting.overflow import read_overflow
from proxy.core.budget import Decision, Limits, Thresholds, Utilization, Window, decide
from proxy.core.conversation import Conversation
from proxy.core.errors import Unreadable
from proxy.core.http import Inbound
from proxy.core.ports import Route, Router, Tasks, Windows
from proxy.core.records import ReplySeen, Session
from proxy.core.values import dataclass
from proxy.dialects.base import Dialect
from proxy.dialects.encodings import decoded
from proxy.dialects.reader import Reader
from proxy.dialects.spans import named_model
from proxy.identity.marks import read_marks
from proxy.identity.sessions import Place, Sessions
from proxy.identity.tenants import Caller

_log = logging.getLogger("accordion")

# Text up to this size is counted at once, more of it in a thread, so that other requests need not wait.
_COUNT_AT_ONCE = 32_768
# Likewise bodies: a thread costs a tenth of a millisecond, a megabyte read for the first time ten.
_READ_AT_ONCE = 1 << 20

_UNMEASURED = Utilization(0)
_UNREAD = Decision("pass", "not read")


@dataclass(frozen=True, slots=True)
class Gauge:
    """What is known of one request. `place` is None where it was not read; it is forwarded all the same."""

    caller: Caller
    route: Route
    dialect: Dialect
    place: Place | None = None
    window: Window | None = None
    utilization: Utilization = _UNMEASURED
    counted: int = 0
    """Our own count before any correction, in tokens."""
    plain: bytes = b""
    """The body without any content encoding; empty where it was not read."""
    limits: Limits | None = None
    decision: Decision = _UNREAD
    beta: str = ""


@dataclass(frozen=True, slots=True)
class Gauging:
    """Reads, identifies, measures, decides; learns from the reply."""

    dialects: Mapping[str, Dialect]
    """By request path, such as `/v1/messages`."""
    openai: Dialect
    anthropic: Dialect
    """Whose error shape is used on paths that no dialect reads."""
    reader: Reader
    sessions: Sessions
    meter: Meter
    calibrations: Calibrations
    windows: Windows
    thresholds: Mapping[str, Thresholds]
    """By model; the empty name stands for all others."""
    base_models: Mapping[str, str]
    """The id that a configured name stands for, where the encoding is looked up."""
    router: Router
    tasks: Tasks
    max_body: int = 64 * 2**20

    def speaks(self, path: str, fields: Mapping[bytes, bytes]) -> Dialect:
        """The dialect of a path: the one that reads it, else the one whose provider it goes to."""
        own = self.dialects.get(path)
        return own or (self.anthropic if is_anthropic(path, fields) else self.openai)

    async def gauge(self, inbound: Inbound, fields: Mapping[bytes, bytes], caller: Caller) -> Gauge:
        """Reads a request, finds its session, measures it, decides. What cannot be read is passed on unread."""
        anthropic = is_anthropic(inbound.path, fields)
        dialect = self.dialects.get(inbound.path) if inbound.method == "POST" else None
        if dialect is None or not isinstance(inbound.body, bytes):
            model = await self._named(inbound.body) if isinstance(inbound.body, bytes) else None
            return Gauge(caller, self.router.route(inbound.path, anthropic, model), self.speaks(inbound.path, fields))
        plain = self._plain(inbound.body, fields)
        conversation = await self._read(dialect, plain, caller)
        # A body that cannot be read may still say whose it is: it must not go to a provider that it was not meant for.
        model = conversation.model if conversation else await self._named(plain)
        route = self.router.route(inbound.path, anthropic, model)
        route = self.router.for_dialect(route, dialect.name)
        if conversation is None:
            return Gauge(caller, route, dialect)
        marks = read_marks(fields, conversation.envelope)
        try:
            place = await self.sessions.resolve(caller, marks, conversation, inbound.request_id)
            return await self._measure(caller, route, dialect, place, _beta(fields), plain)
        except Exception:
            # Knowing more about a request is a favour, forwarding it is a promise.
            _log.exception("a request could not be gauged and goes on", extra={"request_id": inbound.request_id})
            return Gauge(caller, route, dialect, plain=plain)

    def learn(self, gauge: Gauge, place: Place, status: int, seen: ReplySeen) -> Session:
        """Takes what a reply reported; returns the session as it is now."""
        session = self.sessions.current(place.session.id) or place.session
        model = place.conversation.model
        if seen.error or status >= 400:
            overflow = read_overflow(status, seen.error)
            if overflow is not None and overflow.limit:
                self.windows.learn(model, gauge.route.name, gauge.beta, gauge.caller.tenant, overflow.limit)
            return session
        usage = seen.usage
        if usage is None or not usage.input:
            return session
        if place.conversation.previous is None:
            correction = self.calibrations.learn(
                gauge.route.name, model, session.correction, gauge.counted, usage.input
            )
            if correction != session.correction:
                session = replace(session, correction=correction)
        kept = {seen.response_id, _conversation_id(place.conversation)} if gauge.dialect.name == "responses" else set()
        for state in kept - {""}:
            self.sessions.answered(gauge.caller, place, state, usage.input + usage.output)
        return session

    # -- the steps ----------------------------------------------------------------

    def _plain(self, body: bytes, fields: Mapping[bytes, bytes]) -> bytes:
        """The body without its content encoding; empty where that cannot be undone."""
        encoding = fields.get(b"content-encoding")
        return body if encoding is None else decoded(body, encoding.decode("latin-1"), self.max_body) or b""

    async def _read(self, dialect: Dialect, plain: bytes, caller: Caller) -> Conversation | None:
        try:
            if len(plain) > _READ_AT_ONCE:
                return await self.tasks.offload(self.reader.read, dialect, plain, caller.space)
            return self.reader.read(dialect, plain, caller.space)
        except Unreadable:
            return None
        except Exception:
            _log.exception("a request could not be read and goes on")
            return None

    async def _named(self, plain: bytes) -> str | None:
        """The model that a body names which is not read otherwise; of use only where models are configured."""
        if not self.router.models:
            return None
        if len(plain) > _COUNT_AT_ONCE:
            return await self.tasks.offload(named_model, plain)
        return named_model(plain)

    async def _measure(
        self, caller: Caller, route: Route, dialect: Dialect, place: Place, beta: str, plain: bytes
    ) -> Gauge:
        conversation = place.conversation
        window = self.windows.window(conversation.model, route.name, beta, caller.tenant)
        model = self.base_models.get(conversation.model) or route.model or conversation.model
        if self.meter.pending(conversation, model) > _COUNT_AT_ONCE:
            counted = await self.tasks.offload(self.meter.measure, conversation, window, model)
        else:
            counted = self.meter.measure(conversation, window, model)
        utilization = self._corrected(route, place, counted)
        limits = (self.thresholds.get(conversation.model) or self.thresholds[""]).limits(window.size)
        return Gauge(
            caller=caller,
            route=route,
            dialect=dialect,
            place=place,
            window=window,
            utilization=utilization,
            counted=counted.tokens,
            plain=plain,
            limits=limits,
            decision=_decided(place, utilization, limits),
            beta=beta,
        )

    def _corrected(self, route: Route, place: Place, counted: Utilization) -> Utilization:
        """The count, corrected by what the provider reported: for the beginning of this very list where it did, else
        by how far counts of this session and model were off (DESIGN, Accounting)."""
        factor = self.calibrations.factor(route.name, place.conversation.model, place.session.correction)
        base, last = place.base, None
        if base is not None and base.reported:
            if place.base_index < 0:
                # What the provider keeps had its own overhead in the report; this request brings it along again.
                last = (counted.preamble + counted.tools, base.reported)
            elif base.overhead_key == place.conversation.overhead_key:
                last = (base.counted, base.reported)
        return counted.corrected(factor, estimate(counted.tokens, last, factor), carried=last is not None)


def _decided(place: Place, utilization: Utilization, limits: Limits) -> Decision:
    decision = decide(utilization, limits, starts_turn=place.conversation.starts_turn)
    if place.recorded:
        return decision
    return replace(decision, reason=f"{decision.reason}; what the provider keeps is not on record and not counted")


def is_anthropic(path: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request goes to the Anthropic upstream: below `/v1/messages`, or marked by `anthropic-version`."""
    return path == "/v1/messages" or path.startswith("/v1/messages/") or b"anthropic-version" in fields


def _beta(fields: Mapping[bytes, bytes]) -> str:
    return fields.get(b"anthropic-beta", b"").decode("latin-1")


def _conversation_id(conversation: Conversation) -> str:
    """The id of a conversation object that the provider keeps; it stays the same over responses."""
    kept = conversation.previous or ""
    return kept if "conversation" in conversation.envelope else ""
