"""Determines which artifacts agents of one branch may read of each other, and archives hidden results for them.

An id alone gives no access. It must be in the list that the agent sees, and its artifact must have left the window of
the agent's own delegation, of an ancestor or of a descendant. For all others the id is unknown.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

from msgspec.structs import replace

from accordion.archive.archive import Archive, CompactionWrite
from accordion.archive.artifacts import ArchivedMessage, Artifact, result_text
from accordion.archive.references import artifact_id, describe, describe_size, shorten_arguments
from accordion.compaction.strategies.base import HANDOFF_TOOLS
from accordion.delegation.branch_access import BranchAccess, BranchViewer
from accordion.delegation.visibility_filter import FilteredResult
from accordion.model.boundaries import CallInHistory, PartPosition
from accordion.model.cache import ENTRY, BoundedCache, string_size
from accordion.model.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.model.delegation import AgentPosition, DelegationNode, node_kind
from accordion.model.errors import StoreUnavailable
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Clock, Tasks
from accordion.model.tenant import TenantScope
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.prefix_nodes import make_scope
from accordion.sessions.tenants import Caller

ForeignIds = Literal["none", "unreadable", "readable"]
"""Whether a list contains artifact ids of other agents, or of the conversation before its client compacted it, and
whether the agent may read at least one."""

_log = logging.getLogger("accordion")

_ID = re.compile(rb"art_[0-9a-f]{12}(?![0-9a-f])")
_MAX_IDS = 16
"""Maximum number of ids of a list that are looked up: the first ones, so that an offered tool stays offered."""
_MAX_RECORDS = 32
"""Maximum number of records of an artifact that are checked."""
_RETRY_SECONDS = 2.0
"""Seconds until an id that could not be read is looked up again."""


class VisibleArtifacts(StructWithHiddenFields, frozen=True):
    """The artifacts that one request may read. `texts` are the bytes of its list, and of the compaction's text."""

    hidden_fields = frozenset({"texts"})

    shared_artifacts: SharedArtifacts
    viewer: BranchViewer
    texts: Sequence[bytes]

    def contains_id(self, name: str) -> bool:
        """Returns whether the texts contain an id."""
        id_bytes = name.encode()
        return any(id_bytes in text for text in self.texts)

    async def can_read(self, artifact: Artifact, calls: Sequence[CallInHistory]) -> bool:
        """Returns whether a record belongs to the viewer's branch, and none of its calls to another branch."""
        branch_access = self.shared_artifacts.branch_access
        if artifact.kind == "result" and not calls:
            # The owner is no longer known.
            return artifact.session == self.viewer.session
        is_same_branch = await branch_access.is_same_branch(self.viewer, artifact.session)
        return is_same_branch and await branch_access.can_see_results(self.viewer, calls)


@dataclass(slots=True)
class SharedArtifacts:
    """Checks access to artifacts, and archives hidden results.

    Its caches take at most `capacity` bytes. `skipped_tools` are patterns of the names of tools whose results become no
    artifacts.
    """

    archive: Archive
    branch_access: BranchAccess
    tasks: Tasks
    clock: Clock
    skipped_tools: Sequence[str] = HANDOFF_TOOLS
    capacity: int = 8 * 2**20
    _stored_results: BoundedCache[tuple[bytes, int, str], bool] = field(init=False)
    _readable_ids: BoundedCache[tuple[TenantScope, str, bytes], tuple[bool, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._stored_results = BoundedCache(self.capacity // 2, lambda key, _: string_size(key[0], key[2]))
        self._readable_ids = BoundedCache(self.capacity // 2, lambda key, _: ENTRY + string_size(*key[1:]))

    async def has_readable_id(self, viewer: BranchViewer, body: bytes) -> bool:
        """Returns whether a list contains an id of a readable artifact.

        Reads the store for ids that are not cached; returns False while it is unavailable.
        """
        now, agent = (
            self.clock.monotonic(),
            (viewer.caller.tenant, viewer.position.node or viewer.session),
        )
        for name in list(dict.fromkeys(_ID.findall(body)))[:_MAX_IDS]:
            known = self._readable_ids.get((*agent, name))
            if known is None or not (known[0] or now - known[1] < _RETRY_SECONDS):
                known = await self._is_readable(viewer, name.decode()), now
                self._readable_ids[(*agent, name)] = known
            if known[0]:
                return True
        return False

    def archive_hidden_results(
        self,
        protocol_name: str,
        caller: Caller,
        position: AgentPosition,
        client_conversation: Conversation,
        hidden_results: Sequence[FilteredResult],
        owners: Mapping[PartPosition, str],
    ) -> None:
        """Archives results that the viewer does not see, once each, for the agents that may read them.

        Returns at once. The results are in `client_conversation`; `owners` maps each of them to its delegation.
        """
        messages, stored = client_conversation.messages, self._stored_results
        results_by_owner: dict[str, dict[tuple[bytes, int, str], FilteredResult]] = {}
        for each in hidden_results:
            index, part = each.result
            name = messages[index].key, part, owners.get(each.result, "")
            if name not in stored:
                stored[name] = True
                results_by_owner.setdefault(name[2], {})[name] = each
        if results_by_owner:
            work = self._archive_results(protocol_name, caller, position, messages, results_by_owner)
            self.tasks.spawn(work, "archive hidden results")

    def forget(self) -> None:
        """Clears the caches after an erasure."""
        self._stored_results.clear()
        self._readable_ids.clear()

    # -- the steps ----------------------------------------------------------------

    async def _is_readable(self, viewer: BranchViewer, name: str) -> bool:
        with suppress(StoreUnavailable):
            for session in await self._find_owning_sessions(viewer.caller.tenant, name):
                if await self.branch_access.is_same_branch(viewer, session):
                    return True
        return False

    async def _archive_results(
        self, protocol_name: str, caller: Caller, position: AgentPosition, messages: Sequence[Message],
        results_by_owner: Mapping[str, Mapping[tuple[bytes, int, str], FilteredResult]],
    ) -> None:  # fmt: skip
        tenant, tree = caller.tenant, self.branch_access.delegation_tree
        for owner, results in results_by_owner.items():
            try:
                await tree.load(tenant, (owner,))
                if (node := tree.get(tenant, owner)) is not None and node.session:
                    await self._archive_for_owner(
                        node, protocol_name, caller, position, messages, tuple(results.values())
                    )
                    continue
            except StoreUnavailable:
                pass
            except Exception:
                _log.exception("a result that is hidden from an agent could not be archived")
                continue
            # The client still has the result, and sends it again with the next request.
            for name in results:
                self._stored_results.pop(name)

    async def _archive_for_owner(
        self, owner: DelegationNode, protocol_name: str, caller: Caller, position: AgentPosition,
        messages: Sequence[Message], hidden_results: Sequence[FilteredResult],
    ) -> None:  # fmt: skip
        """Archives results for the delegation that produced them, unless a compaction of its own did."""
        metadata = (
            ClientMetadata(owner.id[2:])
            if node_kind(owner.id) == "metadata"
            else ClientMetadata(position.client_session, partition=owner.id)
        )
        scope, at, tenant = make_scope(caller, metadata), self.clock.now(), caller.tenant
        artifacts = []
        for each in hidden_results:
            artifact = self._build_artifact(tenant, protocol_name, messages, each)
            if artifact is not None and owner.session not in await self._find_owning_sessions(tenant, artifact.id):
                artifacts.append(replace(artifact, scope=scope, session=owner.session, at=at))
        if artifacts:
            keys = {key for each in artifacts for key in each.keys}
            indexes = sorted(
                {position[0] for each in hidden_results for position in (each.result, each.call or each.result)}
            )
            rows = [
                ArchivedMessage(messages[index].key, messages[index].wire)
                for index in indexes
                if messages[index].key in keys
            ]
            digest = hashlib.sha256("".join([owner.session, *(each.id for each in artifacts)]).encode())
            write = CompactionWrite(f"hidden-{digest.hexdigest()[:16]}", owner.session, at)
            puts = partial(self.archive.build_puts, tenant, rows, artifacts, write)
            await self.archive.write(await self.tasks.offload(puts))

    async def _find_owning_sessions(self, tenant: TenantScope, name: str) -> set[str]:
        """Returns the sessions for which an artifact is stored."""
        return {each.session for each in await self.archive.load_records(tenant, name, limit=_MAX_RECORDS)}

    def _build_artifact(
        self, tenant: TenantScope, protocol_name: str, messages: Sequence[Message], hidden_result: FilteredResult
    ) -> Artifact | None:
        """Builds the artifact of a hidden result, with the id that any compaction would give it.

        Returns None if the result has no text, or its tool's results become no artifacts.
        """
        index, part = hidden_result.result
        message = messages[index]
        result, first = message.parts[part], index if hidden_result.call is None else hidden_result.call[0]
        call = messages[first].parts[hidden_result.call[1]] if hidden_result.call is not None else None
        text = result_text(result) if isinstance(result, ToolResult) else ""
        if not text.strip() or any(fnmatchcase(hidden_result.name, pattern) for pattern in self.skipped_tools):
            return None
        return Artifact(
            artifact_id(tenant, message.key, part),
            "result",
            protocol_name,
            (message.key,) if first == index else (messages[first].key, message.key),
            first,
            index,
            part,
            hidden_result.name,
            shorten_arguments(call.arguments) if isinstance(call, ToolCall) else "",
            hidden_result.call_id,
            len(text),
            len(text.encode()) // 4,
            describe(text) or describe_size(text),
        )
