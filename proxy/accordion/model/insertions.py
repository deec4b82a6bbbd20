"""Insertions: content that the proxy adds to a history and that the client does not have.

These are tool rounds (the model read an artifact), recalled excerpts and memories. The client owns its history, so an
insertion is a record that is applied again at every later request, until a compaction covers its position. Like a
compaction it is found by content: its anchor is the chain key of the client's message before it.
"""

from __future__ import annotations

import msgspec


class ToolRound(msgspec.Struct, frozen=True):
    """One of several provider responses that make up one response to the client.

    `response` has its entries, in the form of a request's messages and with the provider's own bytes, including
    calls of the artifact tool. `results` has the entries with the results of these calls; empty if there are none.
    """

    response: tuple[bytes, ...]
    results: tuple[bytes, ...] = ()


class ToolRoundInsertion(msgspec.Struct, frozen=True):
    """The tool rounds of one response: several, or one with calls of both the artifact tool and the client's tools.

    `anchor` is the chain key of the last message of the request. `calls` are the ids of the calls of the client's own
    tools, in order. If there are none, `text` is the visible text with normalized white space, which identifies the
    client's copy of the response.
    """

    anchor: bytes
    rounds: tuple[ToolRound, ...]
    calls: tuple[str, ...]
    text: str
    at: float


class RecallInsertion(msgspec.Struct, frozen=True):
    """A user message that the proxy adds: an archived excerpt, memories, or imported session memories.

    An excerpt precedes the turn that asks for it. Memories follow the message that they belong to. Imported session
    memories follow the message that requests them; `names` has their ids. `anchor` is the chain key of the last message
    of the turn, `wire` the message's JSON. `before` is the number of messages, up to that of the anchor, in front of
    which the insertion stands; 0 if it follows the anchor.
    """

    anchor: bytes
    wire: bytes
    at: float
    artifacts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    before: int = 0


Insertion = ToolRoundInsertion | RecallInsertion
