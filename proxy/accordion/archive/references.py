"""References: the texts that replace archived content in the window, and the ids of artifacts.

A reference is for a model to read: it names the content, its size, and the call that reads it again. It is true whether
or not the request offers that tool ("if available"), and the id is the same for people who read it otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from accordion.model.tenant import TenantScope

MAX_ARGUMENTS = 300
"""Characters of a call's arguments that a reference repeats."""
OPENINGS = (
    *("[Result of ", "[Result archived", "[Answer of ", "[Older result of ", "[Note, not part of the conversation:"),
    *("[Image archived", "[Audio archived", "[Video archived", "[File archived"),
)
"""The beginnings of all references and notes."""

_DIGITS = 12
_MAX_KEYS = 5
_MAX_JSON = 1_000_000


def artifact_id(tenant: TenantScope, message_key: bytes, part: int | None) -> str:
    """Returns the id of a message, or of one part of it (by its index).

    The same content of the same tenant has the same id. Without the tenant's key, an id reveals nothing.
    """
    part_suffix = b"" if part is None else b"/%d" % part
    return _id(b"artifact", tenant, (message_key + part_suffix,))


def range_id(tenant: TenantScope, keys: Iterable[bytes]) -> str:
    """Returns the id of a range of messages, given their keys in order."""
    return _id(b"range", tenant, keys)


def slice_id(tenant: TenantScope, keys: Iterable[bytes], number: int, of: int) -> str:
    """Returns the id of slice `number` of `of` slices of the text of a range of messages."""
    return _id(b"slice", tenant, (b"%d/%d" % (number, of), *keys))


def result_reference(tool: str, arguments: str, artifact: str, size: str, about: str = "") -> str:
    """Writes the text in place of a result: the call (shortened), the artifact's id, its `size` in words.

    `about` is a digest or a description of it.
    """
    call = f" of {tool}({shorten_arguments(arguments)})" if tool else ""
    description = f"\n{about}" if about else ""
    return f"[Result{call} archived to save space, {size}. {how_to_read(artifact)}.]{description}"


def delegated_reference(
    agent: str, session: str, tool: str, arguments: str, artifact: str, size: str, digest: str
) -> str:
    """Writes the text in place of a sub-agent's answer: as `result_reference`, with a digest of the answer.

    `session` is the sub-agent's own conversation, which the call began.
    """
    call = f" to {tool}({shorten_arguments(arguments)})" if tool else ""
    ending = f" Excerpts:]\n{digest}" if digest else "]"
    agent = describe_agent(agent, session)
    return f"[Answer of {agent}{call} archived to save space, {size}. {how_to_read(artifact)}.{ending}"


def describe_agent(agent: str, session: str) -> str:
    """Names a sub-agent and its conversation in a few words."""
    return (f"the agent {agent}" if agent else "a sub-agent") + (f" (session {session})" if session else "")


def superseded_reference(tool: str, arguments: str, artifact: str, call_id: str) -> str:
    """Writes the text in place of a result that a later one, of the call `call_id`, supersedes."""
    return (
        f"[Older result of {tool}({shorten_arguments(arguments)}), archived. {how_to_read(artifact)}. "
        f"The newer result is below, at call {call_id}.]"
    )


def media_reference(kind: str, artifact: str, size: str) -> str:
    """Writes the text in place of an image or another medium. It names no call: the tool returns text only."""
    return f"[{kind} archived to save space as {artifact}, {size}. It cannot be shown here again.]"


def omission_note(messages: int, artifact: str) -> str:
    """Writes the one note in place of messages that are left out without a summary."""
    noun = "1 earlier message was" if messages == 1 else f"{messages:,} earlier messages were"
    return (
        f"[Note, not part of the conversation: {noun} removed here to save space. {how_to_read(artifact)}. "
        "The same conversation continues below.]"
    )


def sliced_text(head: str, tail: str, artifact: str, omitted: int) -> str:
    """Joins the beginning and the end of a text that is too long for any window, with a note between them."""
    return (
        f"{head}\n[… {omitted:,} characters are left out here because they do not fit the context window. "
        f"{how_to_read(artifact)} …]\n{tail}"
    )


def how_to_read(artifact: str) -> str:
    """Writes the call that reads an artifact, in a few words."""
    return f'Full text: read_artifact("{artifact}"), if available'


def describe_size(text: str) -> str:
    """Writes the size of a text: characters and lines."""
    lines = text.count("\n") + 1
    return f"{len(text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")


def describe(text: str) -> str:
    """Describes a JSON text: the length of an array, the number and the first five keys of an object; else empty."""
    if text[:1] not in ("{", "[") or len(text) > _MAX_JSON:
        return ""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    if isinstance(value, list):
        return f"It is a JSON array of {len(value):,} entries."
    keys = [key[:60] for key in list(value)[:_MAX_KEYS]]
    more = ", …" if len(value) > _MAX_KEYS else ""
    return f"It is a JSON object of {len(value):,} keys: {', '.join(keys)}{more}."


def shorten_arguments(arguments: str) -> str:
    """Returns arguments on one line, at most 300 characters of them."""
    line = " ".join(arguments[: 4 * MAX_ARGUMENTS].split())
    if len(line) <= MAX_ARGUMENTS and len(arguments) <= 4 * MAX_ARGUMENTS:
        return line
    return line[: MAX_ARGUMENTS - 1] + "…"


def _id(kind: bytes, tenant: TenantScope, keys: Iterable[bytes]) -> str:
    return _name(hashlib.sha256(b"".join((kind, *map(_encode, (tenant.key, *keys))))).hexdigest())


def _encode(key: bytes) -> bytes:
    """Puts the length before a key, so that keys one after the other cannot be taken for others."""
    return len(key).to_bytes(8, "big") + key


def _name(digest: str) -> str:
    return "art_" + digest[:_DIGITS]
