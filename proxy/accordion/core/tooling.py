"""Our own tool, as the rooms speak of it: what is offered, what was asked, what is answered."""

from __future__ import annotations

from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """Our tool. `schema` is the JSON schema of its arguments, as JSON."""

    name: str
    description: str
    schema: bytes


@dataclass(frozen=True, slots=True)
class OurCall:
    """A call of our tool. `arguments` is the text that the model wrote, which may be no JSON."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What our tool says to a call."""

    call_id: str
    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place in the arguments of one of the client's calls where the model named an artifact instead of quoting it:
    `{"$artifact": "art_…", "path": "$.x"}`. `path` is empty where the whole is meant."""

    artifact: str
    path: str = ""
