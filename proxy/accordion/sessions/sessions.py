"""Identifies the session of a request by its content.

Theory of operation. Each request records a prefix node under the identity key of its last message (prefix_nodes.py).
The next request of the same conversation contains that key a few messages before its end. So the node of its longest
recorded prefix, the *base*, names its session, in one of three cases:

1. No request continued from the base yet. This one continues its session.
2. In an earlier request, another response followed the base. This one is a fork, with a session of its own.
3. The same response followed, and then another message of the user: one of the two is an edited question, or a side
   request that nobody continues. As long as neither goes on, the branch of the newest request has the session. The
   first branch that goes on keeps it, and every branch that goes on later is a fork.

A client may leave the end of its list out of the next request; then the base is found by its second name
(transient_messages.py). A client may put a summary in place of its list; then there is no base, and the session is
found by the summary (client_compactions.py). Labels (client_metadata.py) only divide: two labels never share a session.
The one exception is a summary that is not recorded: there the label of a session joins.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
from msgspec import structs
from msgspec.structs import replace

from accordion.model.cache import LONGEST_NAME
from accordion.model.conversation import Conversation
from accordion.model.costs import CachedPrompt
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox, Put, WorkerSync
from accordion.model.records import ObservedCall, Session
from accordion.model.tenant import TenantScope
from accordion.protocols.base import WireProtocol
from accordion.sessions.client_compactions import (
    find_summarized_session,
    find_summary_names,
    label_name,
    list_summary_names,
    opens_with_summary,
)
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.prefix_index import PrefixIndex
from accordion.sessions.prefix_nodes import (
    PrefixNode,
    StoredSum,
    count_responses,
    extend_chain,
    find_deepest,
    find_rival_branch,
    has_live_successor,
    has_response,
    is_branch_alive,
    list_successors,
    make_scope,
    next_key,
    node_id,
    provider_state_name,
    session_id_from_content,
    session_id_from_node,
)
from accordion.sessions.tenants import TENANTS, Caller
from accordion.sessions.transient_messages import (
    copy_digest,
    find_newest_request,
    find_responses,
    has_possible_end,
    list_ends,
    response_digest,
    second_name,
    with_end,
)


class SessionMatch(msgspec.Struct, frozen=True):
    """The session of a request, and the node from which the request continues.

    `base_node` is the node of the longest recorded prefix, `base_index` the index of its message (-1 if the provider
    keeps the messages before). `is_recorded` is False if the request continues provider-kept state without a node.
    `has_same_form` is False if the client sends that prefix in another form than before: then `base_node` has no
    report. Nor has it one if the client left out the end of that request.
    """

    session: Session
    row_name: str
    conversation: Conversation
    scope: bytes
    base_node: PrefixNode | None = None
    base_index: int = -1
    is_recorded: bool = True
    has_same_form: bool = True
    had_other_form: bool = False
    """Whether this request or an earlier one of the session has messages in another form than the one before it."""
    lost_end: bool = False
    """Whether the request lacks the end of the one from which it continues."""
    follows_client_compaction: bool = False
    """Whether the client put a summary in place of the list that the session had before."""

    @property
    def continues_by_id(self) -> bool:
        """Whether the request continues `base_node` by an id: the provider keeps the messages before."""
        return self.base_node is not None and self.base_index < 0

    @property
    def may_omit_end(self) -> bool:
        """Whether the next request may lack the end of this one, so that its node needs a second name.

        It will not if this request has the end of the one right before it.
        """
        if not self.row_name or self.conversation.is_kept_by_provider or not has_possible_end(self.conversation):
            return False
        if self.base_node is None or self.lost_end:
            return True
        return count_responses(self.conversation, self.base_index) != 1


class _Base(msgspec.Struct, frozen=True):
    """The node from which a request continues (None: there is none), and the index of its message (-1).

    `second` is the node of its second name if it was found by that. Then `chain`, the request's identity keys, has the
    key of the base at `index`, in place of `shorter`.
    """

    index: int
    node: PrefixNode | None
    chain: Sequence[bytes]
    second: PrefixNode | None = None
    shorter: bytes = b""


class _RequestForm(msgspec.Struct, frozen=True):
    """The form in which a request has its messages, compared with the request from which it continues.

    `base_index` is the index of the last message of that request, `end_chain_key` the chain key of this request's end
    (empty if it is the identity key).
    """

    base_index: int
    has_same_form: bool
    had_other_form: bool
    end_chain_key: bytes

    @classmethod
    def of(cls, conversation: Conversation, index: int, base: PrefixNode | None) -> _RequestForm:
        """Compares a request with the one that ended at `base`; `index` is the first one with its identity key."""
        if base is None:
            return cls(index, True, False, _end_chain_key(conversation))
        same_form_index = _find_same_form(conversation, index, base.end_chain_key)
        has_same_form = same_form_index >= 0
        had_other_form = base.had_other_form or not has_same_form
        return cls(
            same_form_index if has_same_form else index, has_same_form, had_other_form, _end_chain_key(conversation)
        )

    def build_node(self, session_id: str, base: bytes = b"") -> PrefixNode:
        """Returns the node for the end of the request."""
        return PrefixNode(session_id, base=base, end_chain_key=self.end_chain_key, had_other_form=self.had_other_form)


def _find_same_form(conversation: Conversation, index: int, chain_key: bytes) -> int:
    """Returns the index of the message with this chain key (empty: the identity key) among those with the
    identity key of the message at `index`; -1 if there is none."""
    chain, identity = conversation.chain, conversation.identity_chain
    key = identity[index]
    for at in range(index, len(chain)):
        if identity[at] != key:
            break
        if chain[at] == (chain_key or key):
            return at
    return -1


def _end_chain_key(conversation: Conversation) -> bytes:
    """Returns the chain key of a list's end; empty if it is the identity key."""
    if not conversation.identity or conversation.identity[-1] == conversation.chain[-1]:
        return b""
    return conversation.chain[-1]


@dataclass(slots=True)
class Sessions:
    """The sessions of one worker: a cache over the store, which other workers and earlier runs write too.

    `worker` is a unique name of this process. `capacity` is the most sessions in memory, `retention` their time to live
    in the store, in seconds. `worker_sync` is None if no other worker uses the store.
    """

    store: KeyValueStore
    outbox: Outbox
    clock: Clock
    worker: str
    capacity: int = 2_000
    retention: float = 30 * 86_400.0
    worker_sync: WorkerSync | None = None
    prefix_index: PrefixIndex = field(init=False)
    _sessions: OrderedDict[str, tuple[Session, str]] = field(default_factory=OrderedDict)
    _session_count: int = 0

    def __post_init__(self) -> None:
        self.prefix_index = PrefixIndex(self.store, self.outbox, 8 * self.capacity, self.retention, self.worker_sync)

    async def resolve(
        self,
        caller: Caller,
        client_metadata: ClientMetadata,
        conversation: Conversation,
        request_id: str,
        new_session_id: str = "",
    ) -> SessionMatch:
        """Finds or creates the session of a request, and records the request's node.

        A list that continues no known one belongs to the session `new_session_id`, or to a new one if that is empty.

        The store is read only if this worker has no node or may be out of date; when it is unavailable, the nodes in
        memory are used.
        """
        scope = make_scope(caller, client_metadata)
        if conversation.is_kept_by_provider:
            return await self._resolve_continuation(caller, client_metadata, scope, conversation)
        base = await self._find_base(scope, conversation)
        if not new_session_id and self._begins_anew(client_metadata, conversation, base):
            new_session_id = await self._find_compacted_session(
                caller, client_metadata, scope, conversation, base.index + 1
            )
            if new_session_id:
                base = _Base(-1, None, conversation.identity_chain)
                match = self._match(caller, client_metadata, scope, conversation, base, request_id, new_session_id)
                return replace(match, follows_client_compaction=not client_metadata.is_client_compaction)
        return self._match(caller, client_metadata, scope, conversation, base, request_id, new_session_id)

    @staticmethod
    def _begins_anew(client_metadata: ClientMetadata, conversation: Conversation, base: _Base) -> bool:
        """Whether a list continues no recorded one, or continues one in another way than by its response."""
        if base.node is None:
            return True
        if client_metadata.is_client_compaction or base.index == len(base.chain) - 1:
            return False
        is_other_branch = base.node.next not in (b"", next_key(base.chain, base.index))
        return is_other_branch or conversation.messages[base.index + 1].role != "assistant"

    async def _find_compacted_session(
        self, caller: Caller, client_metadata: ClientMetadata, scope: bytes, conversation: Conversation, start: int
    ) -> str:
        """Returns the session that a client continues after its own compaction, or compacts; empty if there is none.

        `start` is the first message after the longest recorded prefix.
        """
        is_request = client_metadata.is_client_compaction
        is_known_form = is_request or opens_with_summary(conversation, start)
        if not is_request:
            # Other conversations that begin here need not wait for a read.
            reads_store = is_known_form or has_response(conversation)
            session = await self._find_summarized_session(caller.tenant, scope, conversation, start, reads_store)
            if session:
                return session
        if not is_known_form or not client_metadata.names_session:
            return ""
        name = label_name(scope)
        if name not in self.prefix_index.nodes:
            await self.prefix_index.load_first([name])
        node = self.prefix_index.nodes.get(name)
        return node.session if node is not None else ""

    async def _find_summarized_session(
        self, tenant: TenantScope, scope: bytes, conversation: Conversation, start: int, reads_store: bool
    ) -> str:
        """Returns the session of the summary with which a list begins at `start`; empty if none is recorded."""
        names = find_summary_names(tenant, scope, conversation, start)
        session = find_summarized_session(names, self.prefix_index.nodes)
        if not session and reads_store:
            await self.prefix_index.load_first(names)
            session = find_summarized_session(names, self.prefix_index.nodes)
        return session

    async def _find_base(self, scope: bytes, conversation: Conversation) -> _Base:
        """Finds the node from which a request continues, by its name or by its second name."""
        names = self._list_second_names(scope, conversation)
        if names and (base := await self._find_by_second_name(scope, conversation, names[:1])) is not None:
            return base
        # Of the earlier ones, the store may have newer ones than this worker.
        index, node = await self.prefix_index.find(scope, conversation, [name for _, name in names if name])
        if names and (base := await self._find_by_second_name(scope, conversation, names)) is not None:
            return base
        return _Base(index, node, conversation.identity_chain)

    def _list_second_names(self, scope: bytes, conversation: Conversation) -> list[tuple[int, bytes]]:
        """Returns the second names that nodes of earlier requests may have, the newest first.

        Each comes with the index of the message before the response; the name is empty if the response cannot be
        recognized. There are none if the newest of these requests has a node in memory.
        """
        chain, newest = conversation.identity_chain, find_newest_request(conversation.messages)
        if newest < 0 or scope + chain[newest] in self.prefix_index.nodes:
            return []
        names = list[tuple[int, bytes]]()
        for index, response in find_responses(conversation):
            digest = copy_digest(response)
            names.append((index, second_name(scope, chain[index], digest) if digest else b""))
        return names

    async def _find_by_second_name(
        self, scope: bytes, conversation: Conversation, names: Sequence[tuple[int, bytes]]
    ) -> _Base | None:
        """Finds the node from which a request continues by a second name in memory; None if there is none, or if the
        request contains the end of a later request."""
        nodes, chain = self.prefix_index.nodes, conversation.identity_chain
        at, second = next(((at, nodes[name]) for at, name in names if name in nodes), (-1, None))
        if second is None or not second.chain or find_deepest(nodes, scope, chain)[0] >= at:
            return None
        longer = with_end(conversation, at, second.chain)
        index, node = await self.prefix_index.find(scope, longer)
        return _Base(at, node, longer.identity_chain, second, chain[at]) if index == at else None

    def _match(
        self,
        caller: Caller,
        client_metadata: ClientMetadata,
        scope: bytes,
        conversation: Conversation,
        found: _Base,
        request_id: str,
        new_session_id: str = "",
    ) -> SessionMatch:
        """Finds or creates the session of a request that continues from a base, and records the request's node."""
        index, base, chain, second = found.index, found.node, found.chain, found.second
        form = _RequestForm.of(conversation, index, second or base)
        if base is None:
            name = scope + (chain[-1] if chain else request_id.encode())
            own_id = node_id(name)
            session_id, forked_from = new_session_id or session_id_from_node(own_id), ""
            if chain and new_session_id:
                self.prefix_index.add(name, form.build_node(session_id))
            elif chain:
                self.prefix_index.write(name, own_id, form.build_node(session_id))
        elif client_metadata.is_client_compaction:
            # It is no turn, so that it is no branch either.
            session_id, forked_from = base.session, ""
        elif chain[index] != chain[-1]:
            if found.shorter:
                base = structs.replace(base, shorter=found.shorter)
            session_id, forked_from = self._choose_session(scope, chain, index, base, form)
            if client_metadata.names_session:
                self._record_label(scope, session_id)
        else:
            # The same list again is a retry, unless the conversation has continued since. Then it is a new one with
            # the same beginning, or a user went back to this point.
            forked_from = base.session if base.next else ""
            session_id = session_id_from_content(scope, request_id.encode()) if base.next else base.session
            if forked_from:
                self.prefix_index.add(scope + chain[-1], form.build_node(session_id))
        session, row = self._get_or_create(caller, client_metadata, session_id, forked_from, scope)
        if base is not None and (second is not None or not form.has_same_form):
            base = structs.replace(
                base, reported=0, counted=0, overhead_key=b"", compaction_id="", covered_count=0, model="", cached=None
            )
        return SessionMatch(
            session, row, conversation, scope, base, form.base_index, True, form.has_same_form, form.had_other_form,
            second is not None,
        )  # fmt: skip

    async def is_after_client_compaction(self, tenant: TenantScope, session_match: SessionMatch) -> bool:
        """Whether the session's list begins with a summary that its client put in place of an earlier one."""
        conversation = session_match.conversation
        if opens_with_summary(conversation, 0):
            return True
        session = await self._find_summarized_session(tenant, session_match.scope, conversation, 0, reads_store=True)
        return session == session_match.session.id

    def _record_label(self, scope: bytes, session_id: str) -> None:
        """Records the session that was continued last under a label."""
        name = label_name(scope)
        node = self.prefix_index.nodes.get(name)
        if node is None or node.session != session_id:
            self.prefix_index.add(name, PrefixNode(session_id))

    def record_client_summary(self, session_match: SessionMatch, tenant: TenantScope, summary: str) -> None:
        """Records a summary that the model wrote for the client, so that the list that begins with it belongs to the
        session."""
        for name in list_summary_names(tenant, session_match.scope, session_match.conversation, summary):
            self.prefix_index.add(name, PrefixNode(session_match.session.id))

    def record_end(self, scope: bytes, session_id: str, conversation: Conversation) -> None:
        """Records a node at the end of a list, so that later requests that contain the list belong to the session."""
        if conversation.chain:
            node = _RequestForm.of(conversation, -1, None).build_node(session_id)
            self.prefix_index.add(scope + conversation.identity_chain[-1], node)

    def match_without_recording(
        self, caller: Caller, client_metadata: ClientMetadata, conversation: Conversation, session_id: str = ""
    ) -> SessionMatch:
        """Returns the match of a request that belongs to no conversation, such as one for a token count.

        It has the session of its history, or else the session `session_id`, if that is in memory. Nothing is recorded.
        """
        scope = make_scope(caller, client_metadata)
        index, base = find_deepest(self.prefix_index.nodes, scope, conversation.identity_chain)
        session = self.find_in_memory(base.session if base is not None else session_id)
        session = session or Session(
            id="", tenant=caller.tenant.name, created=self.clock.now(), label=client_metadata.label
        )
        return SessionMatch(
            session, "", conversation, scope, base, index, is_recorded=not conversation.is_kept_by_provider
        )

    def replace_list(self, session_match: SessionMatch, conversation: Conversation) -> SessionMatch:
        """Returns the match with another form of the request's list, and records its node in the same session.

        The request continues from its node only if both forms are the same up to there. A request that belongs to no
        conversation records nothing.
        """
        chain, at = conversation.chain, session_match.base_index
        if session_match.row_name:
            self.record_end(session_match.scope, session_match.session.id, conversation)
        if 0 <= at < len(chain) and chain[at] == session_match.conversation.chain[at]:
            return replace(session_match, conversation=conversation)
        return replace(session_match, conversation=conversation, base_node=None, base_index=-1)

    def record_response(
        self,
        session_match: SessionMatch,
        session: Session,
        reported_tokens: int,
        counted_tokens: int,
        compaction_id: str = "",
        cached: CachedPrompt | None = None,
        *,
        covered_count: int = 0,
        sums: tuple[StoredSum, ...] = (),
        insertions: bytes = b"",
    ) -> None:
        """Updates the session after a response, and records the provider's count at the request's node.

        `compaction_id` is the compaction that was applied to the request, `cached` what the provider's prompt cache has
        of it; `covered_count`, `sums` and `insertions`: see PrefixNode.
        """
        if (entry := self._sessions.get(session.id)) is not None:
            self._sessions[session.id] = session, entry[1]
        if (reported_tokens or cached is not None) and session_match.conversation.chain:
            conversation = session_match.conversation
            name = session_match.scope + conversation.identity_chain[-1]
            if (node := self.prefix_index.nodes.get(name)) is not None:
                updated = structs.replace(
                    node,
                    reported=reported_tokens,
                    counted=counted_tokens,
                    overhead_key=conversation.overhead_key,
                    model=conversation.model[:LONGEST_NAME],
                    compaction_id=compaction_id,
                    covered_count=covered_count,
                    cached=cached,
                    sums=sums,
                    insertions=insertions,
                    end_chain_key=_end_chain_key(conversation),
                )
                self.prefix_index.write(name, node_id(name), updated)

    def record_second_names(
        self,
        session_match: SessionMatch,
        protocol: WireProtocol,
        tenant: TenantScope,
        calls: Sequence[ObservedCall],
        text: str,
    ) -> None:
        """Records second names of the node of a request that `may_omit_end`, after a response with these calls, or else
        with this text."""
        if not (digest := response_digest(calls, [text])):
            return
        conversation, session_id = session_match.conversation, session_match.session.id
        for end, end_chain_key in list_ends(conversation, protocol, tenant):
            name = second_name(session_match.scope, end, digest)
            if self._is_awaited(session_match, name):
                # Another conversation has the same shorter list and the same response. Which of the two a later request
                # continues cannot be known, so it continues neither.
                node = structs.replace(self.prefix_index.nodes[name], chain=b"")
            else:
                node = PrefixNode(
                    session_id,
                    chain=conversation.identity_chain[-1],
                    end_chain_key=b"" if end_chain_key == end else end_chain_key,
                    had_other_form=session_match.had_other_form,
                )
            self.prefix_index.add(name, node)

    def _is_awaited(self, session_match: SessionMatch, name: bytes) -> bool:
        """Whether a second name belongs to another session, which was not continued so far."""
        nodes = self.prefix_index.nodes
        node = nodes.get(name)
        if node is None or node.session == session_match.session.id:
            return False
        end = nodes.get(session_match.scope + node.chain)
        return end is None or not end.next

    def record_states(self, caller: Caller, states: Mapping[str, PrefixNode]) -> None:
        """Records nodes under the provider's ids of responses or conversations."""
        for state_id, node in states.items():
            self.prefix_index.add(provider_state_name(caller, state_id), node)

    def build_state_writes(self, caller: Caller, states: Mapping[str, PrefixNode]) -> list[Put]:
        """Records new nodes under the provider's ids; returns the writes for them, which the caller makes."""
        return [
            put
            for state_id, node in states.items()
            for put in self.prefix_index.add_and_build_writes(provider_state_name(caller, state_id), node)
        ]

    def build_end_writes(self, session_match: SessionMatch) -> list[Put]:
        """Returns the writes of the node at the end of a request's list, which `resolve` recorded."""
        chain = session_match.conversation.identity_chain
        return self.prefix_index.build_writes(session_match.scope + chain[-1]) if chain else []

    async def find_state(self, caller: Caller, state_id: str) -> PrefixNode | None:
        """Returns the node of a response's or a conversation's id; None if it is not recorded."""
        # A node from the store is not cached: that of a conversation's id changes with each response at any worker.
        return await self.prefix_index.get(provider_state_name(caller, state_id))

    def find_in_memory(self, session_id: str) -> Session | None:
        """Returns a session from this worker's memory."""
        entry = self._sessions.get(session_id)
        return entry[0] if entry else None

    async def _resolve_continuation(
        self, caller: Caller, client_metadata: ClientMetadata, scope: bytes, conversation: Conversation
    ) -> SessionMatch:
        """Matches a request that continues state kept by the provider."""
        name = provider_state_name(caller, conversation.continued_id)
        # A conversation's id has no node at first; a response's id is known only after the response.
        state = await self.prefix_index.get(name, is_expected=conversation.provider_state != "object")
        start = hashlib.sha256(name + state.chain if state else name).digest()
        chain = accumulate((message.key for message in conversation.messages), extend_chain, initial=start)
        conversation = replace(conversation, chain=tuple(chain)[1:], identity=())
        session, row = self._get_or_create(
            caller, client_metadata, state.session if state else session_id_from_content(scope, start), "", scope
        )
        if conversation.chain:
            self.prefix_index.add(scope + conversation.chain[-1], PrefixNode(session.id))
        return SessionMatch(session, row, conversation, scope, state, -1, is_recorded=state is not None)

    def _choose_session(
        self, scope: bytes, chain: Sequence[bytes], index: int, base: PrefixNode, form: _RequestForm
    ) -> tuple[str, str]:
        """Returns the session of a request that continues from `base`, and the session of which it is a fork."""
        nodes = self.prefix_index.nodes
        rival = find_rival_branch(nodes, scope, chain, index, base)
        # Workers that do not know each other's nodes skip some: a branch whose end is in this list is no rival.
        is_same_branch = rival is not None and rival.node.branch in chain
        following = next_key(chain, index)
        is_fork = base.next not in (b"", following) or has_live_successor(nodes, scope, base)
        is_fork = is_fork or (rival is not None and not is_same_branch and is_branch_alive(nodes, scope, rival.node))
        session_id = session_id_from_content(scope, chain[-1]) if is_fork else base.session
        if is_fork and base.next:
            self.prefix_index.add(scope + chain[-1], form.build_node(session_id))
            return session_id, base.session
        # If the base is itself the end of a branch that lost the session, it belongs to the fork now.
        origin = b"" if is_fork else base.base
        changes = {"next": following, "branch": chain[-1], "base": origin, "successor": b""}
        self.prefix_index.add(scope + chain[index], structs.replace(base, session=session_id, **changes))
        self.prefix_index.add(scope + chain[-1], form.build_node(session_id, base=chain[index]))
        if is_fork:
            return session_id, base.session
        # Each end that had the session in the meantime has lost it, so that it is a fork if it continues.
        for end in tuple(list_successors(nodes, scope, base)):
            self._transfer_session(scope, end, chain[index])
        if rival is not None:
            node = rival.node
            if not is_same_branch:
                self._transfer_session(scope, node.branch, chain[-1] if node is base else chain[index])
            end = next((key for key in (rival.key, node.shorter) if key and key in chain), b"")
            if node is not base and end:
                # The rival branch was never continued, such as a side request: this branch gets the session back.
                response_key = next_key(chain, chain.index(end))
                node = structs.replace(node, next=response_key, branch=rival.own_branch)
                self.prefix_index.add(scope + rival.key, node)
        return session_id, ""

    def _transfer_session(self, scope: bytes, old_end: bytes, new_end: bytes) -> None:
        """Records that the branch ending at `old_end` lost the session to the branch ending at `new_end`."""
        node = self.prefix_index.nodes.get(scope + old_end) if old_end else None
        if node is not None:
            self.prefix_index.add(scope + old_end, structs.replace(node, successor=new_end))

    def _get_or_create(
        self, caller: Caller, client_metadata: ClientMetadata, session_id: str, forked_from: str, scope: bytes
    ) -> tuple[Session, str]:
        sessions = self._sessions
        entry = sessions.get(session_id)
        if entry is not None:
            sessions.move_to_end(session_id)
            return entry
        now, tenant = self.clock.now(), caller.tenant.name
        session = Session(
            session_id, tenant, now, client_metadata.session, client_metadata.client, client_metadata.agent,
            forked_from, scope=scope,
        )  # fmt: skip
        self.outbox.put(Key(TENANTS, tenant), bytes, self.retention)
        # Each time a session enters a worker's memory it gets a row of its own in the store; readers add the rows up.
        self._session_count += 1
        entry = sessions[session_id] = session, f"{self.worker}.{self._session_count}"
        if len(sessions) > self.capacity:
            sessions.popitem(last=False)
        return entry

    def forget(self, session: str | None) -> None:
        """Removes a session, or all, from memory after an erasure."""
        self.prefix_index.forget(session)
        if session is None:
            self._sessions.clear()
        else:
            self._sessions.pop(session, None)
