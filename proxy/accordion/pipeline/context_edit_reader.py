"""Reads the context edits that a request asks for and its provider lacks, and opens our compaction blocks.

A provider that has context edits gets its requests unchanged. Providers behind the translator lack them, except the
clouds that offer Claude's models by the Messages API. Any other provider lacks the features that it refused: this is
learned from the refusal, and holds for a day. Accordion does the edits that the provider lacks (context_edits.py),
and the request is read without them.

Our own blocks are opened for every provider, since only the proxy can read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import msgspec

from accordion.model.cache import BoundedCache, count_entry
from accordion.model.ports import Route, Sealer
from accordion.model.tenant import TenantScope
from accordion.pipeline.sealed_blocks import open_block
from accordion.protocols.base import WireProtocol
from accordion.protocols.context_edits import SEAL_BYTES, ContextEdits, RequestedSummary
from accordion.protocols.json_spans import fields_of, is_list, items_of, list_of, object_of
from accordion.protocols.openai_responses.protocol import OpenAIResponses

COMPACT_PATH = OpenAIResponses.compaction_paths[0]
_COMPACT_REQUEST = ContextEdits("responses/compact", summary=RequestedSummary(0, is_block_only=True))

_CLAUDE_CLOUDS = frozenset({"bedrock", "bedrock_mantle", "vertex_ai", "vertex_ai_beta", "azure_ai"})
_FEATURES = ("context_management", "compaction", "compaction_trigger", _COMPACT_REQUEST.feature)
_MAX_CACHED_REFUSALS = 10_000
_REFUSAL_SECONDS = 86_400.0
"""Seconds for which a refusal is remembered; then the provider is asked again."""
MISSING_PATH_STATUSES = frozenset({404, 405, 501})
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
        is_missing = status in MISSING_PATH_STATUSES and b"model" not in refusal[:_LONGEST_REFUSAL].lower()
        return self._record(tenant, route, _COMPACT_REQUEST.feature, is_missing)

    def _record(self, tenant: TenantScope, route: Route, feature: str, is_missing: bool) -> bool:
        if is_missing:
            self.has_learned = True
            self._expiries[_cache_key(tenant, route, feature)] = self._now() + _REFUSAL_SECONDS
        return is_missing


class EditedBody(msgspec.Struct, frozen=True):
    """A body with our blocks opened, and without the edits that Accordion does."""

    body: bytes
    edits: ContextEdits | None = None
    artifacts: tuple[str, ...] = ()
    """The artifacts that opened blocks name."""
    client_entries: tuple[bytes, ...] = ()
    """The entries of a list to compact by its path, as the client sent them; empty for any other request."""

    @property
    def asks_only_for_block(self) -> bool:
        """Whether the request asks for nothing but a compaction, whatever its size."""
        summary = self.edits.summary if self.edits is not None else None
        return summary is not None and summary.is_block_only and not summary.threshold


class ContextEditReader(msgspec.Struct, frozen=True):
    """Reads edits and blocks of requests."""

    sealer: Sealer
    missing_features: MissingFeatures

    def concerns(self, protocol: WireProtocol, path: str, body: bytes, *, may_be_translated: bool) -> bool:
        """Returns whether a body may have one of our blocks, or may ask for edits that its provider may lack.

        Searches the bytes only. Each search of a body takes about 0.3 ms a megabyte, so most bodies are searched once.
        """
        if protocol.context_edits is None:
            return False
        if path == COMPACT_PATH or SEAL_BYTES in body:
            return True
        if not (may_be_translated or self.missing_features.has_learned):
            return False
        return any(word in body for word in protocol.context_edits.words)

    def read(self, protocol: WireProtocol, path: str, body: bytes, route: Route, tenant: TenantScope) -> EditedBody:
        """Returns the body as it is treated from here on; the same bytes if nothing in it concerns us."""
        editing = protocol.context_edits
        if editing is None:
            return EditedBody(body)
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
                    partial(open_block, self.sealer, protocol.name, tenant),
                    reads_foreign=self.missing_features.lacks(tenant, route, protocol.name, "compaction"),
                )
        except (ValueError, RecursionError):
            return EditedBody(body)
        if opened is not None:
            changed = {**changed, protocol.messages_field: list_of(opened[0])}
        artifacts = opened[1] if opened is not None else ()
        client_entries: tuple[bytes, ...] = ()
        if edits is _COMPACT_REQUEST:
            client_entries = tuple(items_of(list_value)) if is_list(list_value) else (list_value,) if list_value else ()
        return EditedBody(body if changed is fields else object_of(changed), edits, artifacts, client_entries)

    def find_feature(self, protocol: WireProtocol, body: bytes) -> str:
        """Returns the feature that a body asks for; empty if it asks for no edits."""
        try:
            edits = protocol.context_edits.read_edits(fields_of(body)) if protocol.context_edits is not None else None
        except (ValueError, RecursionError):
            return ""
        return edits.feature if edits is not None else ""


def _cache_key(tenant: TenantScope, route: Route, feature: str) -> tuple[str, str, str, str]:
    return tenant.name, route.base_url, route.model or "", feature


def _is_claude_cloud(route: Route) -> bool:
    provider, _, name = (route.model or "").partition("/")
    return provider in _CLAUDE_CLOUDS and "claude" in name.lower()
