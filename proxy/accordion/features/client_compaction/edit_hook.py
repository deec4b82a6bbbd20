"""Reads the context edits that a request asks for and its provider lacks, and opens our compaction blocks.

A provider that has context edits gets its requests unchanged. Providers behind the translator lack them, except the
clouds that offer Claude's models by the Messages API. Any other provider lacks the features that it refused: this is
learned from the refusal, and holds for a day. Accordion does the edits that the provider lacks (edit_handler.py), and
the request is read without them.

Our own blocks are opened for every provider, since only the proxy can read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from accordion.features.client_compaction.context_edits import (
    SEAL_BYTES,
    ContextEditProtocol,
    ContextEdits,
    RequestedSummary,
)
from accordion.features.client_compaction.edit_handler import COMPACT_PATH, ContextEditHandler, EditServices
from accordion.features.client_compaction.messages_edits import MessagesContextEdits
from accordion.features.client_compaction.responses_edits import ResponsesContextEdits
from accordion.features.client_compaction.sealed_blocks import open_block
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.http import Inbound
from accordion.model.ports import Route
from accordion.model.tenant import TenantScope
from accordion.pipeline.request import PassthroughRequest, PreparedRequest, RequestHandler
from accordion.pipeline.request_hooks import FindRoute
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_spans import fields_of, is_list, items_of, list_of, object_of
from accordion.sessions.tenants import Caller

EDIT_PROTOCOLS: Mapping[str, ContextEditProtocol] = {
    "messages": MessagesContextEdits(),
    "responses": ResponsesContextEdits(),
}
"""How clients ask for context edits, by the names of the protocols that have them."""
_COMPACT_REQUEST = ContextEdits("responses/compact", summary=RequestedSummary(0, is_block_only=True))

_CLAUDE_CLOUDS = frozenset({"bedrock", "bedrock_mantle", "vertex_ai", "vertex_ai_beta", "azure_ai"})
_FEATURES = ("context_management", "compaction", "compaction_trigger", _COMPACT_REQUEST.feature)
_MAX_CACHED_REFUSALS = 10_000
_MAX_READ_INLINE = 32_768
"""Larger bodies are read in a thread, in bytes."""
_REFUSAL_SECONDS = 86_400.0
"""Seconds for which a refusal is remembered; then the provider is asked again."""
_MISSING_PATH_STATUSES = frozenset({404, 405, 501})
"""The statuses of a path that a provider does not have."""
_REFUSAL_STATUSES = frozenset({400, 422})
"""The statuses of a refusal that names what is wrong with the request."""
_LONGEST_REFUSAL = 65_536
_UNKNOWN_FEATURE = (
    r"(?:unknown|unrecognized|unsupported|unexpected|invalid value|extra_forbidden)[^.]{0,80}\b%s\b(?![.\[])"
    r"|\b%s\b(?![.\[])\W{0,8}(?:extra inputs are not permitted|is not (?:supported|permitted|allowed))"
)
"""Matches a refusal of the whole feature, and not of a value in it. Sources: error texts of the OpenAI and Anthropic
APIs, of pydantic, serde and Go's encoding/json."""
_COMPACTION_TYPE = b'"compaction"'
_ENDS_OF_ANSWERS = (b'"completed"', b"response.completed", b"message_stop", b'"end_turn"')
"""Marks of a whole answer, in the documents and streams of Responses and Messages."""
_ONE_MODEL_ONLY = "this model"
"""Words of a refusal that holds for one model, so that nothing is learned about the provider."""


class MissingFeatures:
    """The features that providers refused, remembered for a day in this process.

    A refusal of one tenant's request counts for that tenant only. `now` returns seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._expiries: BoundedCache[tuple[str, str, str, str], float] = BoundedCache(_MAX_CACHED_REFUSALS, count_entry)
        self.has_learned = False
        """Whether any provider refused a feature since the start."""

    def lacks(self, tenant: TenantScope, route: Route, protocol: str, feature: str) -> bool:
        """Returns whether the provider of a route lacks a feature."""
        if route.is_translated:
            return not (protocol == "messages" and _is_claude_cloud(route))
        return self.has_learned and (self._expiries.get(_cache_key(tenant, route, feature)) or 0.0) > self._now()

    def lacks_any(self, tenant: TenantScope, route: Route, protocol: str) -> bool:
        """Returns whether the provider of a route lacks any feature."""
        return any(self.lacks(tenant, route, protocol, feature) for feature in _FEATURES)

    def learn(self, tenant: TenantScope, route: Route, feature: str, status: int, refusal: bytes) -> bool:
        """Learns from a refusal; returns whether it says that the provider lacks the feature."""
        text = refusal[:_LONGEST_REFUSAL].decode(errors="replace").lower()
        is_unknown = re.search(_UNKNOWN_FEATURE % (feature, feature), text) is not None and _ONE_MODEL_ONLY not in text
        return self._record(tenant, route, feature, status in _REFUSAL_STATUSES and is_unknown)

    def learn_missing_path(self, tenant: TenantScope, route: Route, status: int, refusal: bytes) -> bool:
        """Learns that a provider has no path to compact lists; returns whether the refusal says so.

        A refusal that is about the model says nothing of the path.
        """
        is_missing = status in _MISSING_PATH_STATUSES and b"model" not in refusal[:_LONGEST_REFUSAL].lower()
        return self._record(tenant, route, _COMPACT_REQUEST.feature, is_missing)

    def record_missing(self, tenant: TenantScope, route: Route, feature: str) -> bool:
        """Learns that the provider ignores a feature. Returns True."""
        return self._record(tenant, route, feature, is_missing=True)

    def _record(self, tenant: TenantScope, route: Route, feature: str, is_missing: bool) -> bool:
        if is_missing:
            self.has_learned = True
            self._expiries[_cache_key(tenant, route, feature)] = self._now() + _REFUSAL_SECONDS
        return is_missing


class ContextEditHook(msgspec.Struct, frozen=True):
    """Reads edits and blocks of requests, and gives such requests a handler."""

    services: EditServices
    missing_features: MissingFeatures

    def concerns(self, protocol: WireProtocol, path: str, body: bytes, *, may_be_translated: bool) -> bool:
        """Whether a body may have one of our blocks, or may ask for edits that its provider may lack.

        Searches the bytes only. Each search of a body takes about 0.3 ms a megabyte, so most bodies are searched once.
        """
        editing = EDIT_PROTOCOLS.get(protocol.name)
        if editing is None:
            return False
        if path == COMPACT_PATH or SEAL_BYTES in body:
            return True
        if not (may_be_translated or self.missing_features.has_learned):
            return False
        return any(word in body for word in editing.words)

    async def read(
        self, protocol: WireProtocol, inbound: Inbound, body: bytes, caller: Caller, find_route: FindRoute
    ) -> tuple[bytes, RequestHandler | None]:
        """Reads the edits that Accordion does, and opens our blocks."""
        route = await find_route()
        if SEAL_BYTES not in body and not self.missing_features.lacks_any(caller.tenant, route, protocol.name):
            return body, None
        arguments = protocol, inbound.path, body, route, caller.tenant
        if len(body) <= _MAX_READ_INLINE and SEAL_BYTES not in body:
            return self.read_body(*arguments)
        return await self.services.tasks.offload(self.read_body, *arguments)

    def read_body(
        self, protocol: WireProtocol, path: str, body: bytes, route: Route, tenant: TenantScope
    ) -> tuple[bytes, ContextEditHandler | None]:
        """Returns the body without edits that Accordion does and with our blocks opened, and the request's handler.

        The same bytes, and None, if nothing in it concerns us.
        """
        editing = EDIT_PROTOCOLS[protocol.name]
        try:
            fields = fields_of(body)
            edits = _COMPACT_REQUEST if path == COMPACT_PATH else editing.read_edits(fields)
            if edits is not None and not self.missing_features.lacks(tenant, route, protocol.name, edits.feature):
                edits = None
            changed = fields if edits is None else editing.remove_edits(fields)
            list_value = changed.get(protocol.messages_field, b"")
            opened = None
            if is_list(list_value):
                opened = editing.open_blocks(
                    items_of(list_value),
                    partial(open_block, self.services.sealer, protocol.name, tenant),
                    reads_foreign=self.missing_features.lacks(tenant, route, protocol.name, "compaction"),
                )
        except (ValueError, RecursionError):
            return body, None
        if opened is not None:
            changed = {**changed, protocol.messages_field: list_of(opened[0])}
        artifacts = opened[1] if opened is not None else ()
        client_entries: tuple[bytes, ...] = ()
        if edits is _COMPACT_REQUEST:
            client_entries = tuple(items_of(list_value)) if is_list(list_value) else (list_value,) if list_value else ()
        handler = None
        if edits is not None or artifacts:
            handler = ContextEditHandler(
                services=self.services, editing=editing, edits=edits, artifacts=artifacts, client_entries=client_entries
            )
        return body if changed is fields else object_of(changed), handler

    def learn(self, request: PreparedRequest, status: int, refusal: bytes) -> bool:
        """Learns that a provider lacks the edits that a request asks for; returns whether the refusal says so."""
        handler = request.handler
        is_edited = isinstance(handler, ContextEditHandler) and handler.edits is not None
        edits = None if is_edited else self._read_edits(request)
        return edits is not None and self.missing_features.learn(
            request.caller.tenant, request.route, edits.feature, status, refusal
        )

    def find_response_type(self, request: PreparedRequest) -> bytes:
        """Returns the type of the item or block that a response to a request for a compaction has."""
        is_asked = request.client_metadata.is_client_compaction and request.handler is None
        return _COMPACTION_TYPE if is_asked and self._asks_for_block(request) else b""

    def learn_from_body(self, request: PreparedRequest, body: bytes) -> bool:
        """Learns that a provider answered in place of making a compaction; returns whether it did so.

        A response that failed, or was cut off, says nothing of the provider.
        """
        edits = self._read_edits(request)
        is_answer = any(mark in body for mark in _ENDS_OF_ANSWERS)
        return (
            edits is not None
            and is_answer
            and self.missing_features.record_missing(request.caller.tenant, request.route, edits.feature)
        )

    def _asks_for_block(self, request: PreparedRequest) -> bool:
        edits = self._read_edits(request)
        return edits is not None and edits.summary is not None and edits.summary.is_block_only

    def _read_edits(self, request: PreparedRequest) -> ContextEdits | None:
        """Reads the edits that the provider is to do; None if there are none."""
        editing = EDIT_PROTOCOLS.get(request.protocol.name)
        if editing is None or not editing.is_announced(request.beta):
            return None
        try:
            return editing.read_edits(fields_of(request.decoded_body))
        except (ValueError, RecursionError):
            return None

    def may_learn(self, request: PassthroughRequest, status: int) -> bool:
        """Whether a provider may lack the path that compacts lists."""
        return request.inbound.path == COMPACT_PATH and status in _MISSING_PATH_STATUSES

    def learn_unread(self, request: PassthroughRequest, status: int, refusal: bytes) -> bool:
        """Learns that a provider lacks that path; returns whether the refusal says so."""
        return self.missing_features.learn_missing_path(request.caller.tenant, request.route, status, refusal)


def _cache_key(tenant: TenantScope, route: Route, feature: str) -> tuple[str, str, str, str]:
    return tenant.name, route.base_url, route.model or "", feature


def _is_claude_cloud(route: Route) -> bool:
    provider, _, name = (route.model or "").partition("/")
    return provider in _CLAUDE_CLOUDS and "claude" in name.lower()
