"""What was put into a conversation that the client does not know of: what the model read back, and what was recalled.

A client owns its history, so both are records that are put in place again at every later request, until a fold covers
their place. Like folds they are found by content: by the chain key of the client's message behind which they stand.
"""

from __future__ import annotations

from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """One of the provider's replies behind one reply to the client.

    `said` are the entries that it made, in the request's form and the provider's own words, our calls included;
    `answered` those that answer our calls, empty where it made none.
    """

    said: tuple[bytes, ...]
    answered: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Weave:
    """A reply of more than one round, or of one in which our calls stood beside the client's.

    `anchor` is the chain key of the last message of the request that it answered. `calls` are the ids of the client's
    own calls in it, in order; where it has none, `text` is its visible text with white space made even, by which the
    client's copy is recognised.
    """

    anchor: bytes
    rounds: tuple[Round, ...]
    calls: tuple[str, ...]
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Recall:
    """An excerpt of what left the window, put in front of the turn that named it; or memories, put behind the message
    that they belong to; or what came of it that the user asked for session memories, put behind the message that did,
    with the ids (`names`). `anchor` is the chain key of
    the client's last message before that, `wire` a user's entry."""

    anchor: bytes
    wire: bytes
    at: float
    artifacts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


Overlay = Weave | Recall
