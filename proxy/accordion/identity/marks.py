"""The headers and fields by which known clients say who is speaking.

They are labels for grouping; what a conversation is stays its content. Names as the clients themselves send them:
Claude Code, Codex, OpenCode, gateways (LiteLLM, OpenRouter, Helicone), tracing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from accordion.core.errors import BadRequest
from accordion.core.values import dataclass
from accordion.identity.declared import HEADERS, Declared, declarations, printable

_VALUE = re.compile(r"[A-Za-z0-9_.:-]{8,128}")
_VENDOR_SESSION = re.compile(rb"x-[a-z0-9-]+-session-id")
_VENDORS = b"-session-id"
_BAGGAGE_SESSION = re.compile(r"(?:^|,)\s*session\.id\s*=\s*([^,;\s]+)")
_CLAUDE_USER = re.compile(r"_session_([A-Za-z0-9-]{8,128})$")

_SESSION_HEADERS = (
    b"x-claude-code-session-id",
    b"x-litellm-session-id",
    b"x-opencode-session",
    b"x-session-id",
    b"helicone-session-id",
)
_CODEX_SESSION_HEADERS = (b"session-id", b"session_id", b"conversation_id")
_CODEX_AGENT_HEADERS = (b"thread-id", b"x-openai-subagent")
_AGENT_HEADERS = (b"x-claude-code-agent-id",)
_CLAUDE_PARENT, _OPENCODE_PARENT, _CODEX_PARENT = (
    (b"x-claude-code-parent-agent-id",),
    (b"x-parent-session-id",),
    (b"x-codex-parent-thread-id",),
)
_DELEGATED = frozenset({*_AGENT_HEADERS, *_CLAUDE_PARENT, *_OPENCODE_PARENT, *_CODEX_PARENT})
_CLAUDE_CLASS, _CLAUDE_TYPE, _CODEX_AGENT, _CODEX_TURN = (
    b"x-claude-code-request-class",
    b"x-claude-code-agent-type",
    b"x-openai-subagent",
    b"x-codex-turn-metadata",
)
_CODEX_FIELDS = frozenset((*_CODEX_SESSION_HEADERS, *_CODEX_AGENT_HEADERS, *_CODEX_PARENT, _CODEX_TURN))
_SESSION_FIELDS = ("litellm_session_id", "session_id")
# Where a mark may stand, or a word of ours, but for Codex's and other vendors' headers.
_MARKING = _DELEGATED | HEADERS | {b"x-accordion-session", b"baggage", *_SESSION_HEADERS, _CLAUDE_CLASS, _CLAUDE_TYPE}
_MARKING_FIELDS = frozenset({*_SESSION_FIELDS, "metadata", "prompt_cache_key"})
# So much of a User-Agent is read, and remembered.
_LONGEST_AGENT = 200


@dataclass(frozen=True, slots=True)
class Marks:
    """What a request says of itself. Empty where it says nothing, or nothing well-formed."""

    session: str = ""
    agent: str = ""
    client: str = ""
    delegated: bool = False
    """Whether a sub-agent speaks."""
    compacting: bool = False
    """Whether the client asks for a compaction of its own."""
    parent: str = ""
    """The label of the agent that this one works for, where a known client's marks name it."""
    name: str = ""
    """What the agent is called, or its kind."""
    declared: Declared | None = None
    """What the request says of its delegation in our own words."""
    scope: str = ""
    """What divides requests of one label further: their project, and their place among the agents where it is not in
    the label."""

    @property
    def label(self) -> str:
        """The group that the request belongs to: the client's session, and the agent within it."""
        return f"{self.session}/{self.agent}" if self.agent else self.session


def read_marks(headers: Mapping[bytes, bytes], envelope: Mapping[str, bytes]) -> Marks:
    """Reads the marks of a request. `headers` by lower-case name, `envelope` as raw JSON by field.

    Order: our own header, a vendor's, Codex's names (from Codex alone, they are too common else), the fields of the
    body, tracing baggage, and `prompt_cache_key`. A value counts only where it matches `[A-Za-z0-9_.:-]{8,128}`. Raises
    BadRequest where our own header does not; marks of other clients are never fatal, whatever they hold.
    """
    client = client_name(headers.get(b"user-agent", b"")[:_LONGEST_AGENT])
    codex = client == "codex"
    unmarked = _MARKING.isdisjoint(headers) and _MARKING_FIELDS.isdisjoint(envelope)
    # Not by `in`, which first takes bytes for a number: that takes ten times as long.
    if unmarked and not codex and b"\n".join(headers).find(_VENDORS) < 0:
        # Most requests: it would take as long as reading their bodies to look for each mark by itself.
        return Marks(client=client)
    declared, name = declarations(headers, envelope.get("metadata"))
    if codex and (said := envelope.get("client_metadata")):
        headers = _with_fields(headers, said)
    session = (
        _own(headers.get(b"x-accordion-session"))
        or _first(headers, _SESSION_HEADERS)
        or (_first(headers, _CODEX_SESSION_HEADERS) if codex else "")
        or _vendor(headers)
        or _fields(envelope)
        or _baggage(headers.get(b"baggage"))
        or _text(envelope.get("prompt_cache_key"))
    )
    agent = _first(headers, _AGENT_HEADERS) or (_first(headers, _CODEX_AGENT_HEADERS) if codex else "")
    agent = "" if agent == session else agent
    kind = headers.get(_CODEX_AGENT, b"") if codex else b""
    compacting = headers.get(_CLAUDE_CLASS) == b"compaction" or kind == b"compact" or (codex and _compacts(headers))
    delegated = (
        not _DELEGATED.isdisjoint(headers) or kind not in (b"", b"compact") or headers.get(_CLAUDE_CLASS) == b"subagent"
    )
    parent = ""
    if session and not (kind == b"compact" or headers.get(_CLAUDE_CLASS) == b"compaction"):
        parent = _parent(headers, envelope, session, agent, kind)
    name = name or printable(headers.get(_CLAUDE_TYPE) or kind)
    return Marks(session, agent, client, delegated or bool(parent), compacting, parent, name, declared)


def _parent(
    headers: Mapping[bytes, bytes], envelope: Mapping[str, bytes], session: str, agent: str, kind: bytes
) -> str:
    """The label of the agent that this one works for. Empty where no mark says it, or where one names itself."""
    if (thread := _first(headers, _CODEX_PARENT)) and agent:
        return "" if thread == agent else session if thread == session else f"{session}/{thread}"
    if kind and agent:
        return session
    if _AGENT_HEADERS[0] in headers and agent:
        above = _first(headers, _CLAUDE_PARENT)
        return "" if above == agent else f"{session}/{above}" if above not in ("", session) else session
    above = _first(headers, _OPENCODE_PARENT) or ("" if agent else _parent_session(envelope.get("metadata")))
    return "" if above == session else above


def _parent_session(metadata: bytes | None) -> str:
    """The session that Claude Code says this one was begun by."""
    if not metadata or b"parent_session_id" not in metadata:
        return ""
    try:
        found = msgspec.json.decode(msgspec.json.decode(metadata)["user_id"])["parent_session_id"]
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, TypeError, LookupError):
        return ""
    return found if isinstance(found, str) and _VALUE.fullmatch(found) else ""


def _with_fields(headers: Mapping[bytes, bytes], said: bytes) -> Mapping[bytes, bytes]:
    """The headers with those that Codex sends in the body instead."""
    try:
        fields = msgspec.json.decode(said)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return headers
    if not isinstance(fields, dict):
        return headers
    named = {name.lower().encode(): value.encode() for name, value in fields.items() if isinstance(value, str)}
    return {name: value for name, value in named.items() if name in _CODEX_FIELDS} | dict(headers)


@lru_cache(1_024)
def client_name(user_agent: bytes) -> str:
    """A short name for the program that speaks, from the beginning of its User-Agent; empty where it has none."""
    agent = user_agent.decode("latin-1").strip()
    low = agent.lower()
    for sign, name in (
        ("claude-cli", "claude-code"),
        ("claude-code", "claude-code"),
        ("codex", "codex"),
        ("opencode", "opencode"),
        ("agents/python", "openai-agents"),
        ("agents/javascript", "openai-agents"),
        ("litellm", "litellm"),
        ("ai-sdk", "ai-sdk"),
        ("langchain", "langchain"),
        ("pydantic-ai", "pydantic-ai"),
    ):
        if sign in low:
            return name
    name = re.split(r"[\s(]", agent, maxsplit=1)[0].lower()
    return name if re.fullmatch(r"[\x21-\x7e]{1,40}", name) else ""


def _compacts(headers: Mapping[bytes, bytes]) -> bool:
    """Whether Codex says that this request makes a compaction."""
    raw = headers.get(_CODEX_TURN)
    if raw is None:
        return False
    try:
        said = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("request_kind") == "compaction"


def _own(raw: bytes | None) -> str:
    if raw is not None and not _value(raw):
        raise BadRequest(
            "x-accordion-session must have 8 to 128 characters, of letters, digits and _ . : -",
            param="x-accordion-session",
        )
    return _value(raw)


def _value(raw: bytes | None) -> str:
    if not raw or len(raw) > 128:
        return ""
    text = raw.decode("latin-1")
    return text if _VALUE.fullmatch(text) else ""


def _first(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> str:
    for name in names:
        raw = headers.get(name)
        if raw is not None and (value := _value(raw)):
            return value
    return ""


def _vendor(headers: Mapping[bytes, bytes]) -> str:
    if b"\n".join(headers).find(_VENDORS) < 0:
        return ""
    for name, raw in headers.items():
        if _VENDOR_SESSION.fullmatch(name) and (value := _value(raw)):
            return value
    return ""


def _text(raw: bytes | None) -> str:
    return _value(raw[1:-1]) if raw and raw[:1] == b'"' else ""


def _fields(envelope: Mapping[str, bytes]) -> str:
    for name in _SESSION_FIELDS:
        if value := _text(envelope.get(name)):
            return value
    metadata = envelope.get("metadata")
    if not metadata or metadata[:1] != b"{":
        return ""
    try:
        given = msgspec.json.decode(metadata)
        user = given.get("user_id")
        if isinstance(user, str) and user[:1] == "{":
            user = msgspec.json.decode(user)
            found = user.get("session_id") if isinstance(user, dict) else None
        else:
            old = _CLAUDE_USER.search(user) if isinstance(user, str) else None
            found = old.group(1) if old else given.get("session_id")
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return ""
    return found if isinstance(found, str) and _VALUE.fullmatch(found) else ""


def _baggage(raw: bytes | None) -> str:
    if not raw:
        return ""
    found = _BAGGAGE_SESSION.search(raw[:8192].decode("latin-1"))
    return _value(found.group(1).encode("latin-1")) if found else ""
