"""The text that stands for what was moved out of the window, and the id by which it is found again.

A reference is for a model to read: it names what was there, how much of it, and the call that reads it again. It is
true whether or not there is such a tool in the request that it stands in: the tool is named where offered, and the id
is the same for those who read it otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

ARGUMENTS_AT_MOST = 300
"""Characters of a call's arguments that a reference repeats."""

_DIGITS = 12
_KEYS_SHOWN = 5
_JSON_AT_MOST = 1_000_000


def artifact_id(space: bytes, message_key: bytes, part: int | None) -> str:
    """The id of a message, or of one part of it (by its index). The same content of the same tenant (`space` is its
    key) has the same id; nobody else can tell what it stands for."""
    place = b"" if part is None else b"/%d" % part
    return _id(b"artifact", space, (message_key + place,))


def range_id(space: bytes, keys: Iterable[bytes]) -> str:
    """The id of a stretch of messages, given their keys in order."""
    return _id(b"range", space, keys)


def slice_id(space: bytes, keys: Iterable[bytes], number: int, of: int) -> str:
    """The id of one slice of so many of the text of a stretch of messages."""
    return _id(b"slice", space, (b"%d/%d" % (number, of), *keys))


def reference(tool: str, arguments: str, artifact: str, size: str, about: str = "") -> str:
    """What stands in place of a result: the tool, its arguments (shortened), the artifact's id, its `size` in words
    (see `size_of`), and what is known `about` it: a digest or a description."""
    called = f" of {tool}({shortened(arguments)})" if tool else ""
    told = f"\n{about}" if about else ""
    return f"[Result{called} moved out of this window; kept whole, {size}: {reading(artifact)}.]{told}"


def returned(agent: str, session: str, tool: str, arguments: str, artifact: str, size: str, digest: str) -> str:
    """What stands in place of what the sub-agent `agent` answered to the call that began its conversation, which is
    `session`: as `reference`, with a digest of the answer."""
    called = f" to {tool}({shortened(arguments)})" if tool else ""
    told = f" In short:]\n{digest}" if digest else "]"
    return (
        f"[Answer of {answerer(agent, session)}{called} moved out of this window; kept whole, {size}: "
        f"{reading(artifact)}.{told}"
    )


def answerer(agent: str, session: str) -> str:
    """A sub-agent and its conversation in a few words."""
    return (f"the agent {agent}" if agent else "a sub-agent") + (f", whose session is {session}," if session else "")


def newer(tool: str, arguments: str, artifact: str, call_id: str) -> str:
    """What stands in place of a result that a later one, of the call `call_id`, makes needless."""
    return (
        f"[Older result of {tool}({shortened(arguments)}), kept: {reading(artifact)}. "
        f"A newer one is below, at call {call_id}.]"
    )


def pictured(kind: str, artifact: str, size: str) -> str:
    """What stands in place of an image or another medium. No call is named: the tool gives text only."""
    return f"[{kind} moved out of this window to save room; kept whole as {artifact}, {size}.]"


def left_out(messages: int, artifact: str) -> str:
    """The one note that stands in place of messages that were left out without a summary."""
    noun = "1 earlier message was" if messages == 1 else f"{messages:,} earlier messages were"
    return (
        f"[Note on the conversation, not part of it: {noun} left out here because the window is limited; "
        f"kept whole: {reading(artifact)}. What follows is the rest of the same conversation.]"
    )


def sliced(head: str, tail: str, artifact: str, omitted: int) -> str:
    """The beginning and the end of a text that is too long for any window."""
    return (
        f"{head}\n[… {omitted:,} characters in the middle are left out because they do not fit the window; "
        f"kept whole: {reading(artifact)} …]\n{tail}"
    )


def reading(artifact: str) -> str:
    """How an artifact is read, in a few words."""
    return f'read_artifact("{artifact}") where offered'


def size_of(text: str) -> str:
    """How much a text is: characters and lines."""
    lines = text.count("\n") + 1
    return f"{len(text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")


def describe(text: str) -> str:
    """The structure of a JSON text in a few words: an array's length, an object's number of keys and the first five;
    empty for anything else."""
    if text[:1] not in ("{", "[") or len(text) > _JSON_AT_MOST:
        return ""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    if isinstance(value, list):
        return f"It is a JSON array of {len(value):,} entries."
    keys = [key[:60] for key in list(value)[:_KEYS_SHOWN]]
    more = ", …" if len(value) > _KEYS_SHOWN else ""
    return f"It is a JSON object of {len(value):,} keys: {', '.join(keys)}{more}."


def shortened(arguments: str) -> str:
    """Arguments on one line, 300 characters of them at most."""
    line = " ".join(arguments[: 4 * ARGUMENTS_AT_MOST].split())
    if len(line) <= ARGUMENTS_AT_MOST and len(arguments) <= 4 * ARGUMENTS_AT_MOST:
        return line
    return line[: ARGUMENTS_AT_MOST - 1] + "…"


def _id(kind: bytes, space: bytes, keys: Iterable[bytes]) -> str:
    digest = hashlib.sha256(kind)
    for piece in (space, *keys):
        digest.update(len(piece).to_bytes(8, "big") + piece)
    return "art_" + digest.hexdigest()[:_DIGITS]
