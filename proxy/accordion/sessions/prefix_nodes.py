"""Prefix nodes: records of the points in a conversation where a request ended, and the keys of these records.

A node belongs to a prefix of a message list: its name is a scope and the identity key of the prefix's last message. The
scope is a hash of the client's label (client_metadata.py), so that two labels never share a node. Later requests of the
conversation contain this prefix, and so find the node, also if the client sends earlier messages in another form
(protocols/message_keys.py). Ids of responses and conversations that a provider keeps have nodes too; the name of such a
node is a hash of the id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import structs

from accordion.model.conversation import Conversation
from accordion.model.costs import CachedPrompt
from accordion.model.ports import Key
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.tenants import Caller


class StoredSum(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a list of messages, by its last chain key and the name of the counting rules."""

    chain: bytes
    rules: str
    text: int
    media: int


class PrefixNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A point where a request ended. Every request writes some nodes: a Struct writes only fields with content.

    `next` is the identity key of the message that followed first, `branch` that of the request that continued from here
    and has the session, `base` the node of the same session from which this one continued. `reported` is the provider's
    count of the whole input (0 if none was reported) for `model`, `counted` the proxy's own count, with the overhead
    of `overhead_key`.
    """

    session: str
    next: bytes = b""
    reported: int = 0
    counted: int = 0
    overhead_key: bytes = b""
    chain: bytes = b""
    """Of a response id's node: the chain key that the id stands for. Of a second name (transient_messages.py): the
    identity key of the end of the longer list; empty if the name is ambiguous."""
    branch: bytes = b""
    base: bytes = b""
    compaction_id: str = ""
    """The id of the compaction that was applied to the request of `reported`; empty if none was."""
    covered_count: int = 0
    """The number of the client's messages that this compaction covers."""
    ids: tuple[str, ...] = ()
    """Of a response id's node: the provider's own ids of the tool rounds of the response. The last one stands for the
    whole conversation."""
    successor: bytes = b""
    """Of the end of a branch that lost the session to another branch: the end of that branch at that time."""
    model: str = ""
    scope: bytes = b""
    """Of a response id's node: the scope of the conversation."""
    differs_from_client: bool = False
    """Of a response id's node: whether the provider's list differs from the client's."""
    was_compacted: bool = False
    """Of a response id's node: whether its session was compacted, or may have been."""
    failed_tokens: int = 0
    """Of a response id's node in a thread over its trigger that no compaction made smaller: its tokens."""
    cached: CachedPrompt | None = None
    """What the provider's prompt cache has of the request of `reported`."""
    end_chain_key: bytes = b""
    """The chain key of the request of `reported`; empty if it is the identity key."""
    had_other_form: bool = False
    """Whether a request up to here had earlier messages in another form than the request before it."""
    sums: tuple[StoredSum, ...] = ()
    """Token counts of the messages of the request of `reported` as it was forwarded, and without insertions if it has
    any. A worker that is new to the conversation need not count them again."""
    shorter: bytes = b""
    """The identity key of the end of the shorter list that a later request had, if it left out the end of this one
    (transient_messages.py)."""
    insertions: bytes = b""
    """A hash of the insertions from the last covered message up to here, with those that the response brought; empty
    if it is not known."""


# The most nodes back to which a branch is compared with the recorded one: another worker may record a rival late.
MAX_STEPS_BACK = 8

# The fields that are set together when a response has arrived.
_REPORT_FIELDS = (
    "reported", "counted", "overhead_key", "compaction_id", "covered_count", "model", "cached", "end_chain_key", "sums",
    "insertions",
)  # fmt: skip

_KEY_PREFIX = "point/"
_role = attrgetter("role")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PrefixNode)


class NodeLookup(Protocol[T_co]):
    """A mapping or cache by the names of nodes."""

    def get(self, name: bytes, /) -> T_co | None:
        """Returns the value of a name, or None."""


def decode(value: bytes | None) -> PrefixNode | None:
    """Decodes a stored node; None if there is none, or none that can be decoded."""
    with suppress(msgspec.MsgspecError):
        return _DECODER.decode(value) if value is not None else None
    return None


def merge(own: PrefixNode | None, stored: PrefixNode) -> PrefixNode:
    """Merges the stored node with this worker's own, which may not be written yet."""
    if own is None:
        return stored
    if own.session != stored.session:
        return stored
    if own.next and not stored.next:
        return own
    if own.reported and not stored.reported:
        return structs.replace(stored, **{name: getattr(own, name) for name in _REPORT_FIELDS})
    return stored


def find_deepest(lookup: NodeLookup[T], scope: bytes, chain: Sequence[bytes]) -> tuple[int, T | None]:
    """Returns the index (-1: none) and the value of the longest prefix of a list that `lookup` has.

    Of several messages with the same key, which are there in a chain of identity keys, it is the first.
    """
    index = len(chain)
    for key in reversed(chain):
        index -= 1
        value = lookup.get(scope + key)
        if value is not None:
            while index and chain[index - 1] == key:
                index -= 1
            return index, value
    return -1, None


def next_key(chain: Sequence[bytes], index: int) -> bytes:
    """Returns the first key after a message that differs from its own; empty if there is none."""
    return next((key for key in islice(chain, index + 1, None) if key != chain[index]), b"")


class RivalBranch(NamedTuple):
    """Another branch than a request's that has the session: the node at which the two part, by its key.

    `own_branch` is the key of the request's branch at that node.
    """

    key: bytes
    node: PrefixNode
    own_branch: bytes


def find_rival_branch(
    nodes: Mapping[bytes, PrefixNode], scope: bytes, chain: Sequence[bytes], index: int, base: PrefixNode
) -> RivalBranch | None:
    """Returns the branch that has the session in place of this request's; None if there is none.

    The two part at the base, or at a node before it.
    """
    key, node = chain[index], base
    if base.next:
        has_rival = base.next == next_key(chain, index) and base.branch and base.branch not in chain[index + 1 :]
        return RivalBranch(key, base, chain[-1]) if has_rival else None
    for _ in range(MAX_STEPS_BACK):
        previous = nodes.get(scope + node.base) if node.base else None
        if previous is None or previous.session != base.session:
            break
        if previous.branch not in (b"", key):
            return RivalBranch(node.base, previous, key)
        key, node = node.base, previous
    return None


def is_branch_alive(nodes: Mapping[bytes, PrefixNode], scope: bytes, node: PrefixNode) -> bool:
    """Whether the branch recorded at a node was continued. An end that moved to another session counts as continued."""
    return _has_successor(nodes.get(scope + node.branch), node.session)


def list_successors(nodes: Mapping[bytes, PrefixNode], scope: bytes, node: PrefixNode) -> Iterator[bytes]:
    """Yields the ends that took the session over from an end, in order, up to the first that is not in memory."""
    for _ in range(MAX_STEPS_BACK):
        if not node.successor:
            return
        yield node.successor
        successor = nodes.get(scope + node.successor)
        if successor is None:
            return
        node = successor


def has_live_successor(nodes: Mapping[bytes, PrefixNode], scope: bytes, node: PrefixNode) -> bool:
    """Whether one of the ends that took the session over from an end was continued."""
    return any(_has_successor(nodes.get(scope + key), node.session) for key in list_successors(nodes, scope, node))


def _has_successor(end: PrefixNode | None, session: str) -> bool:
    return end is not None and (end.next != b"" or end.session != session)


def extend_chain(chain_key: bytes, key: bytes) -> bytes:
    """Returns the next key of a chain that begins with state kept by the provider."""
    return hashlib.sha256(chain_key + key).digest()


def has_response(conversation: Conversation) -> bool:
    """Whether the list contains a response of the model."""
    return "assistant" in map(_role, conversation.messages)


def count_responses(conversation: Conversation, index: int) -> int:
    """Counts the responses after a message; a response may be several entries."""
    roles = [message.role for message in conversation.messages[index:]]
    return sum(role == "assistant" != before for before, role in pairwise(roles))


@lru_cache(1_024)
def node_id(name: bytes) -> str:
    """Returns a node's id in the store, 24 hexadecimal digits. A request needs that of its own node twice."""
    return hashlib.sha256(b"session:" + name).hexdigest()[:24]


def node_key(node_id: str) -> Key:
    """Returns the key of a node, by its id."""
    return Key("", f"{_KEY_PREFIX}{node_id}")


def node_key_by_name(name: bytes) -> Key:
    """Returns the key of a node, by its name."""
    return node_key(node_id(name))


def merge_values(key: Key, waiting: bytes, stored_value: bytes) -> bytes | None:
    """Merges two values of a node that two workers wrote; None if the key is no node's, or the stored one has it
    all."""
    if not key.name.startswith(_KEY_PREFIX):
        return None
    own, stored = decode(waiting), decode(stored_value)
    if own is None or stored is None or (merged := merge(own, stored)) == stored:
        return None
    return ENCODER.encode(merged)


def session_nodes_collection(session: str) -> str:
    """Returns the collection that lists the ids of a session's nodes, which are otherwise found only by content.

    The node after which the session is named (`first_node_id`) is not in it, so that a session of one request has no
    such collection.
    """
    return f"points/{session}"


def first_node_id(session: str) -> str:
    """Returns the id of the node after which a session is named."""
    return session.removeprefix("s-")


def make_scope(caller: Caller, client_metadata: ClientMetadata) -> bytes:
    """Returns the first bytes of the names of a label's nodes. The chain keys after them are a tenant's own already."""
    if not (client_metadata.session or client_metadata.agent or client_metadata.partition):
        return b""
    name = (
        f"{client_metadata.label}\n{client_metadata.partition}" if client_metadata.partition else client_metadata.label
    )
    return hashlib.sha256(caller.tenant.key + name.encode()).digest()[:8]


def provider_state_name(caller: Caller, state_id: str) -> bytes:
    """Returns the name of the node for a response's or a conversation's id."""
    return hashlib.sha256(caller.tenant.key + b"state:" + state_id.encode()).digest()


def session_id_from_node(node_id: str) -> str:
    """Returns the id of the session named after a node.

    Two workers that receive the same new conversation give it the same name.
    """
    return f"s-{node_id}"


def session_id_from_content(scope: bytes, content: bytes) -> str:
    """Returns a session id derived from content."""
    return session_id_from_node(node_id(scope + content))
