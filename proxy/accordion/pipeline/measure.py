"""Measures a request before it is sent: agent, session, earlier compactions, token counts and the decision.

`Measurer.measure` reads the body, resolves the agent's position and the visible list, finds the session by the prefix
chain, applies the deepest earlier compaction, adds insertions, counts tokens, corrects the count by the provider's last
report, and asks the policy for a decision. pipeline/forward.py and `accordion explain` both use it. If a step after
reading fails, the request is forwarded unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field

from msgspec import structs

from accordion.accounting.calibration import UNKNOWN, Calibrations, correction_from_report, estimate_tokens, is_credible
from accordion.accounting.overflow import WindowOverflow
from accordion.accounting.token_meter import TokenMeter
from accordion.compaction.policy import PolicyOptions, decide
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.request_controls import read_controls
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.insertions.composer import InsertionComposer
from accordion.model.budget import Decision, TokenLimits, Utilization, Window
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Conversation
from accordion.model.errors import TooManyMessages, Unreadable
from accordion.model.http import Inbound
from accordion.model.ports import Route, Router, Tasks, WindowTable
from accordion.model.values import dataclass, replace
from accordion.pipeline.request import (
    CompactionRules,
    RequestState,
    body_size,
    count_conversation_images,
    find_compaction_id,
    find_report_node,
    is_anthropic,
    last_attempt,
    provider_list_may_differ,
    separate_insertion_tokens,
)
from accordion.pipeline.session_import import MemoryMentions
from accordion.pipeline.visibility import Visibility, VisibleRequest, metadata_with_scope
from accordion.protocols.base import WireProtocol
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.content_encoding import decode_body
from accordion.protocols.model_name import model_in_body, model_in_target
from accordion.sessions.client_metadata import read_client_metadata
from accordion.sessions.prefix_nodes import count_responses, has_response
from accordion.sessions.sessions import SessionMatch, Sessions
from accordion.sessions.tenants import Caller

_log = logging.getLogger("accordion")

# Bodies up to this size are read without a thread if at most `_NEW_AT_ONCE` bytes of them are new. All others are read
# in a thread, so that other requests need not wait. A thread costs 0.1 ms; a new megabyte costs 10 ms, or 300 ms if its
# messages are very small.
_MAX_READ_INLINE = 1 << 20
_NEW_AT_ONCE = 32_768
_TENANTS_LOGGED = 1_000
# Bodies above this size are read one at a time, so that the extra memory for reading is needed only once.
_MIN_READ_ALONE = 4 << 20


@dataclass(frozen=True, slots=True)
class Measurer:
    """Reads and measures requests, and decides what is done with them."""

    protocols: Mapping[str, WireProtocol]
    """By request path, such as `/v1/messages`."""
    token_count_protocols: Mapping[str, WireProtocol]
    """The same for paths that count a request's tokens, such as `/v1/messages/count_tokens`."""
    openai: WireProtocol
    anthropic: WireProtocol
    """`openai` and `anthropic` give the error format for paths that no protocol reads."""
    request_reader: BodyReader
    sessions: Sessions
    visibility: Visibility
    token_meter: TokenMeter
    calibrations: Calibrations
    window_table: WindowTable
    compactions: CompactionRepository
    session_overrides: SessionOverrideStore
    compaction_rules: Callable[[str, str, bool, int], CompactionRules]
    """By model, provider family, whether a sub-agent sent the request, and the window in tokens."""
    base_models: Mapping[str, str]
    """The model id behind a configured name, used to find the token encoding."""
    router: Router
    tasks: Tasks
    max_body: int = 64 * 2**20
    insertion_composer: InsertionComposer | None = None
    """Adds tool rounds and recalled excerpts, and offers our tool; None if nothing is inserted."""
    memory_mentions: MemoryMentions = field(default_factory=MemoryMentions)
    unread_logged: set[str] = field(default_factory=set)
    """Tenants and reasons for which an unread request was already logged."""

    def protocol_for(self, path: str, fields: Mapping[bytes, bytes]) -> WireProtocol:
        """Returns the protocol that reads a path, or else the protocol of the provider that it goes to."""
        own = self.protocols.get(path) or self.token_count_protocols.get(path)
        return own or (self.anthropic if is_anthropic(path, fields) else self.openai)

    async def measure(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], caller: Caller, started_at: float = 0
    ) -> RequestState:
        """Reads a request, finds its session, applies earlier compactions, counts tokens and decides.

        A body that cannot be read is passed on unread. `started_at`: see RequestState. Raises BadRequest if one of our
        headers is malformed.
        """
        anthropic = is_anthropic(inbound.path, fields)
        dialect = self.protocols.get(inbound.path) or self.token_count_protocols.get(inbound.path)
        if dialect is None or inbound.method != "POST" or not isinstance(inbound.body, bytes):
            plain = await self._decode_body(inbound.beginning, fields) if self.router.models else b""
            model = model_in_target(inbound) or await self._find_model_name(plain, fields.get(b"content-type", b""))
            route = self.router.route(inbound.path, anthropic, model)
            encoded = b"content-encoding" in fields and route.family != "litellm"
            return RequestState(
                caller, route, self.protocol_for(inbound.path, fields), decoded_body=plain if encoded else b""
            )
        plain = inbound.body if b"content-encoding" not in fields else await self._decode_body(inbound.body, fields)
        if self._is_quick(dialect, plain, caller):
            read = self._read_conversation(dialect, plain, caller)
        else:
            offload = self.tasks.offload if len(plain) <= _MIN_READ_ALONE else self.tasks.offload_alone
            read = await offload(self._read_conversation, dialect, plain, caller)
        conversation, unread = (None, read) if isinstance(read, str) else (read, "")
        # A body that cannot be read may still name its model. It must not go to a provider that it was not meant for.
        model = conversation.model if conversation is not None else await self._find_model_name(plain)
        route = self.router.for_dialect(self.router.route(inbound.path, anthropic, model), dialect.name)
        if conversation is None:
            return RequestState(caller, route, dialect, decoded_body=plain, is_unreadable=True, unread=unread)
        counting = inbound.path in self.token_count_protocols
        marks, beta = (
            read_client_metadata(fields, conversation.envelope),
            fields.get(b"anthropic-beta", b"").decode("latin-1"),
        )
        controls = read_controls(fields, conversation, is_client_compaction=marks.is_client_compaction)
        marks = self.memory_mentions.with_project(marks, controls.project)
        seated = await self.visibility.resolve(dialect, caller, marks, conversation, plain)
        bare = RequestState(
            caller,
            route,
            dialect,
            decoded_body=seated.body,
            beta=beta,
            is_token_count=counting,
            request_id=inbound.request_id,
            controls=controls,
            visible_request=seated,
            started_at=started_at,
            actual_model=self.base_models.get(conversation.model) or route.model or conversation.model,
        )
        try:
            marks, seen = metadata_with_scope(marks, seated.position), seated.conversation
            if counting:
                return await self._measure_conversation(
                    bare, self.sessions.match_without_recording(caller, marks, seen), seated
                )
            place = await self.sessions.resolve(caller, marks, seen, inbound.request_id)
            if not marks.is_client_compaction:
                seated = await self.visibility.attach_session(caller, seated, place)
            return await self._measure_conversation(bare, place, seated)
        except Exception:
            # Measuring is optional, forwarding is not.
            _log.exception(
                "a request could not be measured; it is forwarded unchanged", extra={"request_id": inbound.request_id}
            )
            return structs.replace(bare, visible_request=seated)

    async def hide_foreign_results(self, request: RequestState) -> RequestState:
        """Hides all results of other agents, also those that are visible only because they were shown earlier.

        Used before a compaction, which changes the prefix in any case.
        """
        if (
            request.visible_request is None
            or request.session_match is None
            or not request.visible_request.has_late_decisions
        ):
            return request
        seated, place = await self.visibility.hide_foreign_results(
            request.protocol, request.caller, request.visible_request, request.session_match
        )
        return await self._measure_conversation(structs.replace(request, decoded_body=seated.body), place, seated)

    async def recompose(
        self,
        request: RequestState,
        history: CompactedConversation,
        *,
        check_store: bool = False,
        with_insertions: bool = True,
    ) -> RequestState:
        """Returns the request with another history to be forwarded, measured again.

        `check_store`, `with_insertions`: see InsertionComposer.compose.
        """
        place, window = request.session_match, request.window
        if place is None or window is None:
            return request
        shown, offered = history, ""
        wears = history.compaction is not None or request.can_read_artifacts is not None or request.may_hold_memories
        if wears and self.insertion_composer is not None:
            shown, offered = await self.insertion_composer.compose(
                request.protocol,
                request.caller.tenant_key,
                place.label,
                place.conversation,
                history,
                check_store=check_store,
                with_insertions=with_insertions,
                has_shared_artifacts=bool(request.can_read_artifacts),
            )
        elif not request.is_compactable and self.insertion_composer is not None:
            shown = await self.insertion_composer.remove_orphan_reasoning(
                request.protocol, request.caller.tenant_key, place.label, history
            )
        counted = await self._count_tokens(request, shown.conversation, window)
        if shown.conversation.chain is not (bare := history.conversation).chain:
            if (longer := self.token_meter.count_added(shown.conversation, bare, request.actual_model)) is None:
                without = await self._count_tokens(request, bare, window)
                longer = counted.messages + counted.media - without.messages - without.media
            counted = separate_insertion_tokens(counted, longer)
        if history.conversation.max_output is None and (reserved := request.rules.thresholds.reserved_output):
            counted = replace(counted, reserved_output=min(reserved, window.size))
        return structs.replace(
            request,
            history=history,
            uncorrected_tokens=counted.tokens,
            text_tokens=counted.tokens - counted.media,
            utilization=self._correct_count(
                request.route, place, counted, window, history if with_insertions else None
            ),
            history_with_insertions=shown if history.compaction is not None or shown is not history else None,
            tool_name="" if request.is_token_count else offered,
        )

    async def count_tool_tokens(self, request: RequestState) -> int:
        """Returns the tokens that a compaction of this request adds: those of our tool, if it is not offered yet."""
        folded, window = request.history, request.window
        if self.insertion_composer is None or folded is None or window is None:
            return 0
        if (
            request.history_with_insertions is not None
            and request.history_with_insertions.conversation.tools is not folded.conversation.tools
        ):
            return 0
        if (
            offered := self.insertion_composer.offer_tool(request.protocol, folded.conversation)
        ) is folded.conversation:
            return 0
        before = await self._count_tokens(request, folded.conversation, window)
        longer = (await self._count_tokens(request, offered, window)).tokens - before.tokens
        # Corrected by the provider's own counts in the same ratio as the rest of the request.
        return round(longer * request.utilization.tokens / max(1, request.uncorrected_tokens))

    def learn_limit(self, request: RequestState, overflow: WindowOverflow) -> None:
        """Records the limit that an overflow error names, unless the error only quotes the request."""
        if overflow.limit and request.session_match is not None and not overflow.is_quoted_from(request.decoded_body):
            model = request.session_match.conversation.model
            self.window_table.learn(model, request.route.name, request.beta, request.caller.tenant, overflow.limit)

    # -- the steps ----------------------------------------------------------------

    async def _decode_body(self, body: bytes, fields: Mapping[bytes, bytes]) -> bytes:
        """Removes the content encoding of a body; returns empty bytes if that is not possible."""
        if (encoding := fields.get(b"content-encoding")) is None:
            return body
        return await self.tasks.offload(decode_body, body, encoding.decode("latin-1"), self.max_body) or b""

    def _is_quick(self, dialect: WireProtocol, plain: bytes, caller: Caller) -> bool:
        """Returns whether reading a body takes less time than starting a thread for it."""
        if len(plain) <= _NEW_AT_ONCE:
            return True
        return (
            len(plain) <= _MAX_READ_INLINE
            and self.request_reader.count_new_bytes(dialect, plain, caller.tenant_key) <= _NEW_AT_ONCE
        )

    def _read_conversation(self, protocol: WireProtocol, body: bytes, caller: Caller) -> Conversation | str:
        """Reads a body; returns the conversation, or the reason why it was not read (empty if none is reported)."""
        try:
            return self.request_reader.read(protocol, body, caller.tenant_key)
        except TooManyMessages as error:
            self._log_unread(caller, len(body), error.message)
            return error.message
        except Unreadable:
            return ""
        except Exception:
            _log.exception("a request could not be read; it is forwarded unchanged")
            return ""

    def _log_unread(self, caller: Caller, size: int, reason: str) -> None:
        """Logs a warning once for each tenant and reason, since a client may send such a body again and again."""
        told, key = self.unread_logged, f"{caller.tenant} {reason}"
        level = logging.DEBUG if key in told else logging.WARNING
        if len(told) < _TENANTS_LOGGED:
            told.add(key)
        _log.log(level, "a request of %s bytes is passed on unread: it holds %s", f"{size:,}", reason)

    async def _find_model_name(self, body: bytes, kind: bytes = b"") -> str | None:
        """Finds the model in a body that is not read otherwise. Only needed if models are configured."""
        if not self.router.models:
            return None
        if len(body) > _NEW_AT_ONCE:
            return await self.tasks.offload(model_in_body, body, kind)
        return model_in_body(body, kind)

    async def _measure_conversation(
        self, request: RequestState, session_match: SessionMatch, visible_request: VisibleRequest
    ) -> RequestState:
        conversation, caller, route = session_match.conversation, request.caller, request.route
        window = self.window_table.window(conversation.model, route.name, request.beta, caller.tenant)
        rules = self.compaction_rules(conversation.model, route.family, visible_request.position.delegated, window.size)
        limits = rules.thresholds.limits(window.size)
        gauge = structs.replace(
            request,
            session_match=session_match,
            visible_request=visible_request,
            window=window,
            rules=rules,
            limits=limits,
            can_read_artifacts=None,
        )
        if gauge.is_compactable:
            fresh = self._is_possibly_stale(caller, session_match)
            if self.memory_mentions.may_mention_memory(session_match, gauge.decoded_body):
                gauge = structs.replace(gauge, may_hold_memories=True)
            if visible_request.position.delegated and b"art_" in gauge.decoded_body:
                reads = await self.visibility.can_read_artifacts(
                    caller, visible_request, session_match, gauge.decoded_body
                )
                gauge = structs.replace(gauge, can_read_artifacts=reads)
            folded = await self.compactions.find(
                request.protocol, caller.tenant_key, session_match.label, conversation, check_store=fresh
            )
        else:
            folded, fresh = without_compaction(conversation), False
        gauge = await self.recompose(gauge, folded, check_store=fresh)
        return structs.replace(gauge, decision=self.decide(gauge, session_match, folded, window, limits))

    def _is_possibly_stale(self, caller: Caller, session_match: SessionMatch) -> bool:
        """Returns whether another worker, or this one before a restart, may have compacted this history."""
        conversation, at = session_match.conversation, session_match.base_index
        if session_match.base_node is None:
            return has_response(conversation)
        known = at >= 0 and self.compactions.knows_position(
            caller.tenant_key, session_match.label, conversation.chain[at]
        )
        return not known or count_responses(conversation, at) > 1

    def decide(
        self,
        request: RequestState,
        session_match: SessionMatch,
        history: CompactedConversation,
        window: Window,
        limits: TokenLimits,
    ) -> Decision:
        """Decides what is done with a measured request."""
        budgets, used, word = request.rules.budgets, request.utilization, request.controls.mode
        if (
            word == "auto"
            and not request.is_token_count
            and self.session_overrides.has_compaction_request(request.caller.tenant, session_match.session.id)
        ):
            word = "now"
        threaded, linked = (
            session_match.conversation.is_threaded and not request.is_token_count,
            request.is_reconstructable,
        )
        options = PolicyOptions(
            mode=request.rules.mode,
            request_mode=word,
            is_client_compaction=request.controls.is_client_compaction,
            is_history_known=session_match.is_recorded,
            is_kept_by_provider=session_match.conversation.previous is not None,
            is_thread=threaded,
            is_reconstructable=linked,
            provider_list_differs=(threaded or linked)
            and provider_list_may_differ(request, session_match, self.sessions.store.is_available),
            previous=last_attempt(history, session_match.base_node if threaded else None),
            is_deferred=self.session_overrides.is_waiting_for_summary(request.caller.tenant, session_match.session.id),
        )
        return decide(
            history,
            used,
            limits,
            window,
            options=options,
            exceeds_bytes=0 < budgets.max_body_bytes < len(request.decoded_body)
            and budgets.max_body_bytes < body_size(request),
            exceeds_images=bool(used.media)
            and 0 < budgets.max_images < count_conversation_images(history.conversation),
        )

    async def _count_tokens(self, request: RequestState, conversation: Conversation, window: Window) -> Utilization:
        if self.token_meter.is_slow(conversation, request.actual_model, len(request.decoded_body)):
            return await self.tasks.offload(self.token_meter.measure, conversation, window, request.actual_model)
        return self.token_meter.measure(conversation, window, request.actual_model)

    def _correct_count(
        self,
        route: Route,
        session_match: SessionMatch,
        utilization: Utilization,
        window: Window,
        history: CompactedConversation | None,
    ) -> Utilization:
        """Corrects our count by the tokens that the provider reported to this model.

        Uses the report for the beginning of this very list if there is one, or else the ratio of earlier reports to
        counts (accounting/calibration.py). `history`: None for a new list, to which no report applies.
        """
        base, last, model = find_report_node(session_match), None, session_match.conversation.model
        if base is not None and session_match.base_index >= 0 and base.reported:
            # The reported part may contain media of this list.
            text = max(0, base.counted - utilization.media)
            if not is_credible(base.reported, base.counted, text, window):
                base = None
        known = session_match.session.correction_of(model)
        if known == UNKNOWN and base is not None and base.model == model:
            # Another worker handled this session so far, or this one did before a restart.
            known = correction_from_report(base.counted, base.reported)
        factor = self.calibrations.factor(route.name, model, known)
        if base is not None and base.reported and history is not None and base.fold == find_compaction_id(history):
            if session_match.base_index < 0:
                # The report includes the overhead of the request that made it; this request brings that overhead again.
                last = (utilization.preamble + utilization.tools, base.reported)
            elif base.overhead_key == session_match.conversation.overhead_key and base.model == model:
                last = (base.counted, base.reported)
        return utilization.apply_correction(
            factor, estimate_tokens(utilization.tokens, last, factor), carried=last is not None
        )
