"""Gives up compactions that a provider refuses.

Theory of operation. We do not know every provider's rules. If a provider refuses a compacted list, it is sent other
lists (`find_replacement`), one after the other: the list without the compaction that the request made, if an earlier
one is in force; the client's own; and where neither fits, one with a compaction in the most careful form (`whole`, see
compaction/whole_groups.py). Once it takes one of them (`accept`), the refused compactions are withdrawn for good, in
the same way as people undo one. The refused form is learned for the session, and for a day for the tenant's requests to
this model at this provider. From then on compactions have the most careful form. If that is refused too, none is made
for a request that fits the window. If the provider refuses the client's own list as well, the fault is the client's,
and nothing is withdrawn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import msgspec

from accordion.accounting.overflow import OTHER_ERROR_STATUSES
from accordion.compaction.policy import certainly_overflows
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.session_overrides import SessionOverrideStore, UndoneCompactions
from accordion.model.budget import CompactionForm, RefusedForm, most_careful
from accordion.model.compaction import CompactedConversation, Compaction, without_compaction
from accordion.model.ports import WindowTable
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.request import PreparedRequest, find_compaction_id
from accordion.protocols.json_values import find_error

_RARE_STATUSES = frozenset({403, 404, 405, 409, 410, 415})
_SERVER_STATUSES = frozenset({500, 501, 502})
"""The statuses by which some servers refuse the content of a request, too: unknown items, templates of llama.cpp that
fail, errors that a gateway passes on."""
_ABOUT_LIST = re.compile(
    r"messages|\binput\b|contents|\bitem|tool|function|thinking|reasoning|\brole|conversation|alternat|template|jinja",
    re.IGNORECASE,
)
"""Matches a refusal that names a list of messages or a part of it."""
_SERVER_FAILED = re.compile(
    r"\bserver|api_error|internal|upstream|gateway|unavailable|temporar|time.?out|timed out|try again|retry"
    r"|connection|\"(?:code|status)\": ?\"?5\d\d\b",
    re.IGNORECASE,
)
"""Matches an error that says that the server failed."""
_ABOUT_OTHERS = re.compile(
    r"credit|billing|quota|balance|api[ _-]?key|authenti|unauthori|rate[ _-]?limit|overload", re.IGNORECASE
)
"""Matches a refusal that no other list would help."""
_MAX_ATTEMPTS = 4
"""Maximum number of lists that are sent in place of a refused one."""
_LONGEST_READ, _LONGEST_WORDS = 65_536, 160
_QUOTED = re.compile(r"\"[^\"]{24,}\"|'[^']{24,}'|`[^`]{24,}`|[^\s\"'`]{24,}")
"""Matches what may quote the request, or be a credential."""

_log = logging.getLogger("accordion")

_List = tuple[str, CompactionForm | None]
"""A list that may be sent: the id of the compaction that it begins with (empty: none), and the form of a new one."""


class RefusedCompaction(msgspec.Struct, frozen=True):
    """A compaction that the provider refused, with its form, and status and words of the refusal."""

    compaction: Compaction
    form: CompactionForm
    words: str


class ListAttempts(msgspec.Struct):
    """The lists that were sent for one request in place of a refused one."""

    refused: list[RefusedCompaction] = msgspec.field(default_factory=list)
    sent: set[_List] = msgspec.field(default_factory=set)
    is_repeated: bool = False
    """Whether a list was sent a second time, after an error that may be transient."""


class ListRefusals(msgspec.Struct, frozen=True):
    """Finds other lists for refused ones, and withdraws compactions. `now` returns seconds since the epoch."""

    compaction_step: CompactionStep
    compactions: CompactionRepository
    session_overrides: SessionOverrideStore
    window_table: WindowTable
    now: Callable[[], float]

    def may_concern(self, request: PreparedRequest, status: int, refusal: bytes) -> bool:
        """Whether a refusal may be about what a compaction made of the list."""
        return bool(request.compaction_id) and request.rewritten_body is not None and self.may_refuse(status, refusal)

    def may_refuse(self, status: int, refusal: bytes) -> bool:
        """Whether an error may refuse the content of a request. What its words do not exclude may be: each list more
        that is sent in vain costs less than a session that is refused for good."""
        text = refusal[:_LONGEST_READ].decode(errors="replace")
        if 400 <= status < 500 and status not in OTHER_ERROR_STATUSES:
            return _ABOUT_LIST.search(text) is not None or _ABOUT_OTHERS.search(text) is None
        if status in _RARE_STATUSES:
            return _ABOUT_LIST.search(text) is not None
        return (status < 400 or status in _SERVER_STATUSES) and _ABOUT_OTHERS.search(text) is None

    def may_be_transient(self, status: int, refusal: bytes) -> bool:
        """Whether a refusal says by status or words that the server failed, and nothing of the list, so that the same
        list may be taken next time."""
        text = refusal[:_LONGEST_READ].decode(errors="replace")
        has_failed = status in _SERVER_STATUSES or (status < 400 and _SERVER_FAILED.search(text) is not None)
        return has_failed and _ABOUT_LIST.search(text) is None

    def add(self, request: PreparedRequest, status: int, refusal: bytes, attempts: ListAttempts) -> None:
        """Records that the provider refused the compacted list of a request."""
        compaction = request.history.compaction
        if compaction is not None:
            is_own = request.base_history is not None
            form: CompactionForm = request.compaction_form if is_own else compaction.form
            attempts.refused.append(RefusedCompaction(compaction, form, describe_refusal(status, refusal)))

    async def find_replacement(
        self, request: PreparedRequest, attempts: ListAttempts, *, is_too_long: bool
    ) -> PreparedRequest | None:
        """Returns the request with a list to send in place of the refused one; None if there is no other.

        `is_too_long`: the provider found the list too long that this one was compacted from.
        """
        client = without_compaction(request.conversation)
        bases = [request.base_history] if request.base_history is not None else []
        bases += [client] if not bases or bases[0].compaction is not None else []
        for base in bases:
            restored = None if is_too_long else await self._restore(request, base, attempts)
            if restored is not None and restored.utilization.occupied_tokens < request.limits.hard:
                return _mark_as_sent(restored, attempts)
            is_same = attempts.refused[-1].form == "whole" and base is request.base_history
            if not is_same and (compacted := await self._compact(request, base, attempts)) is not None:
                return compacted
        restored = None if is_too_long else await self._restore(request, client, attempts)
        if restored is None or certainly_overflows(restored.utilization, restored.window, restored.text_tokens):
            return None
        return _mark_as_sent(restored, attempts)

    async def accept(self, request: PreparedRequest, attempts: ListAttempts) -> None:
        """Withdraws the compactions that were refused before the provider took the list of this request, and learns
        their form."""
        if not attempts.refused:
            return
        form: RefusedForm = most_careful(*(each.form for each in attempts.refused))
        refusals = {each.compaction.id: each.words for each in attempts.refused}
        await self._withdraw(request, request.history, form, refusals)
        model, tenant = request.conversation.model, request.caller.tenant.name
        is_known = most_careful(form, request.window.refused_form) == request.window.refused_form
        self.window_table.learn(model, request.route.name, request.beta, tenant, 0, refused_form=form)
        refused = attempts.refused[0]
        _log.log(
            logging.INFO if is_known else logging.WARNING,
            "session %s: %s at %s refused a compacted list (%s) and took another, so the compaction %s is withdrawn. "
            "Its steps: %s. From now on in this session, and for a day in others of this model at this provider, %s",
            request.session_match.session.id,
            model,
            request.route.name,
            refused.words,
            refused.compaction.id,
            ", ".join(step.strategy for step in refused.compaction.steps),
            "only whole groups of messages are replaced by a summary"
            if form == "free"
            else "a request that fits the window is not compacted",
            extra={"request_id": request.inbound.request_id},
        )
        attempts.refused.clear()

    async def _restore(
        self, request: PreparedRequest, base: CompactedConversation, attempts: ListAttempts
    ) -> PreparedRequest | None:
        """Returns the request with this list; None if it was sent before."""
        if (find_compaction_id(base), None) in attempts.sent or len(attempts.sent) >= _MAX_ATTEMPTS:
            return None
        return await self.compaction_step.restore_history(request, base, attempts.refused[-1].words)

    async def _compact(
        self, request: PreparedRequest, base: CompactedConversation, attempts: ListAttempts
    ) -> PreparedRequest | None:
        """Returns the request with a compaction of this list in the most careful form; None if that was sent before,
        or cannot be made."""
        name: _List = (find_compaction_id(base), "whole")
        if name in attempts.sent or len(attempts.sent) >= _MAX_ATTEMPTS:
            return None
        attempts.sent.add(name)
        # A refused compaction would win over the new one in the store.
        refusals = {each.compaction.id: each.words for each in attempts.refused}
        await self._withdraw(request, base, "", refusals)
        return await self.compaction_step.compact_whole_groups(request, base, attempts.refused[-1].words)

    async def _withdraw(
        self,
        request: PreparedRequest,
        remaining: CompactedConversation,
        form: RefusedForm,
        refusals: dict[str, str],
    ) -> None:
        """Withdraws these compactions, and all others of the list but those that `remaining` was made of."""
        tenant, session = request.caller.tenant, request.session_match.session.id
        ids, last = frozenset(refusals), find_compaction_id(remaining)
        while True:
            undone = UndoneCompactions(self.now(), 0, ids, form, refusals)
            await self.session_overrides.withdraw_compactions(tenant, session, undone)
            found = await self.compactions.find(
                request.protocol, request.ref, request.conversation, check_store=True, has_same_form=False
            )
            if (other := find_compaction_id(found)) in {"", last, *ids}:
                return
            ids |= {other}


def _mark_as_sent(restored: PreparedRequest, attempts: ListAttempts) -> PreparedRequest:
    attempts.sent.add((restored.compaction_id, None))
    return restored


def describe_refusal(status: int, refusal: bytes) -> str:
    """Returns status and words of a refusal in one short line, without what may quote the request or be a
    credential."""
    error = find_error(refusal).get("error", {})
    message = error.get("message") if type(error.get("message")) is str else refusal[:1_000].decode(errors="replace")
    words = " ".join(_QUOTED.sub("…", message[:1_000]).split())
    words = "".join(char for char in words if char.isprintable())
    return f"{status}: {words[:_LONGEST_WORDS]}{'…' if len(words) > _LONGEST_WORDS else ''}"
