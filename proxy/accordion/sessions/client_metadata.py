"""Client metadata: headers and body fields that name a request's session, agent and delegation.

Known clients have their own names for them: Claude Code, Codex, OpenCode, gateways (LiteLLM, OpenRouter, Helicone),
tracing. These are labels for grouping; a conversation is identified by its content. Malformed values are ignored.

Accordion's own headers (`x-accordion-delegation`, `x-accordion-parent`, `x-accordion-agent`), or the same names in the
body's `metadata`, declare a delegation. They are a promise, so a malformed value is refused. Where the upstream would
refuse these keys of `metadata`, they are removed. Sources: Anthropic's reference has `user_id` only, and its API takes
no other. OpenAI's API takes 16 pairs; Chat Completions takes them only if the completion is stored: "The 'metadata'
parameter is only allowed when 'store' is enabled." Responses always takes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from accordion.model.errors import BadRequest
from accordion.protocols.json_spans import FIELDS, with_fields

DELEGATION, PARENT, AGENT = "x-accordion-delegation", "x-accordion-parent", "x-accordion-agent"
OWN_KEYS = frozenset({DELEGATION, PARENT, AGENT})
"""The keys of `metadata` that are for the proxy."""
HEADERS = frozenset(map(str.encode, OWN_KEYS))
_MAX_PAIRS = 16
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

_VALUE = re.compile(r"[A-Za-z0-9_.:-]{8,128}")
_VENDOR_SESSION = re.compile(rb"x-[a-z0-9-]+-session-id")
_VENDOR_SUFFIX = b"-session-id"
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
_DELEGATION_HEADERS = frozenset({*_AGENT_HEADERS, *_CLAUDE_PARENT, *_OPENCODE_PARENT, *_CODEX_PARENT})
_CLAUDE_CLASS, _CLAUDE_TYPE, _CODEX_AGENT, _CODEX_TURN = (
    b"x-claude-code-request-class",
    b"x-claude-code-agent-type",
    b"x-openai-subagent",
    b"x-codex-turn-metadata",
)
_CODEX_FIELDS = frozenset((*_CODEX_SESSION_HEADERS, *_CODEX_AGENT_HEADERS, *_CODEX_PARENT, _CODEX_TURN))
_SESSION_FIELDS = ("litellm_session_id", "session_id")
# All headers with metadata, except those of Codex and of other vendors.
_METADATA_HEADERS = (
    _DELEGATION_HEADERS | HEADERS | {b"x-accordion-session", b"baggage", *_SESSION_HEADERS, _CLAUDE_CLASS, _CLAUDE_TYPE}
)
_METADATA_FIELDS = frozenset({*_SESSION_FIELDS, "metadata", "prompt_cache_key"})
# The number of bytes of a User-Agent that are read and cached.
_LONGEST_AGENT = 200


class DeclaredDelegation(msgspec.Struct, frozen=True):
    """A delegation that a client declares. `param` and `parent_param` are the names of the headers or fields."""

    delegation: str
    parent: str = ""
    param: str = DELEGATION
    parent_param: str = PARENT


class ClientMetadata(msgspec.Struct, frozen=True):
    """The metadata of a request. A field is empty if the request has no well-formed value."""

    session: str = ""
    agent: str = ""
    client: str = ""
    is_subagent: bool = False
    """Whether the request is a sub-agent's."""
    is_client_compaction: bool = False
    """Whether the request is part of the client's own compaction, by its metadata or its content."""
    parent: str = ""
    """The label of the parent agent, if a known client's metadata names it."""
    agent_name: str = ""
    """The agent's name or kind."""
    declared_delegation: DeclaredDelegation | None = None
    """The delegation that the request declares with Accordion's own headers or fields."""
    is_cache_key: bool = False
    """Whether `session` is only the key of the prompt cache, which many conversations may share."""
    partition: str = ""
    """A further division of requests with the same label: the project, and the agent's position if the label does
    not have it."""

    @property
    def label(self) -> str:
        """The group of the request: the client's session, and the agent within it."""
        return f"{self.session}/{self.agent}" if self.agent else self.session

    @property
    def names_session(self) -> bool:
        """Whether the label is of one session, as far as its client says."""
        return bool(self.session) and not self.is_cache_key


def read_client_metadata(headers: Mapping[bytes, bytes], envelope: Mapping[str, bytes]) -> ClientMetadata:
    """Reads a request's metadata. `headers` by lower-case name, `envelope` as raw JSON by field.

    The session is taken from the first of these: our own header, a vendor's, Codex's names (for Codex only, since they
    are common words), the fields of the body, tracing baggage, `prompt_cache_key`. A value counts only if it matches
    `[A-Za-z0-9_.:-]{8,128}`. Raises BadRequest if our own header does not match, or a declaration is malformed.
    """
    client = read_client_name(headers.get(b"user-agent", b"")[:_LONGEST_AGENT])
    is_codex = client == "codex"
    has_no_metadata = _METADATA_HEADERS.isdisjoint(headers) and _METADATA_FIELDS.isdisjoint(envelope)
    # `find` instead of `in`, which first tries to read the bytes as a number and takes ten times as long.
    if has_no_metadata and not is_codex and b"\n".join(headers).find(_VENDOR_SUFFIX) < 0:
        # This is the case for most requests. A search for each name would take as long as reading their bodies.
        return ClientMetadata(client=client)
    declaration, name = read_declaration(headers, envelope.get("metadata"))
    if is_codex and (body_metadata := envelope.get("client_metadata")):
        headers = _add_body_fields(headers, body_metadata)
    session = (
        _read_own_header(headers.get(b"x-accordion-session"))
        or _first_value(headers, _SESSION_HEADERS)
        or (_first_value(headers, _CODEX_SESSION_HEADERS) if is_codex else "")
        or _find_vendor_session(headers)
        or _find_body_session(envelope)
        or _find_baggage_session(headers.get(b"baggage"))
    )
    cache_key = "" if session else _string_value(envelope.get("prompt_cache_key"))
    session = session or cache_key
    kind = headers.get(_CODEX_AGENT, b"") if is_codex else b""
    agent = _first_value(headers, _AGENT_HEADERS) or (_first_value(headers, _CODEX_AGENT_HEADERS) if is_codex else "")
    # A compaction is part of the conversation that it ends.
    agent = "" if agent == session or agent.encode() == kind == b"compact" else agent
    is_compaction = (
        headers.get(_CLAUDE_CLASS) == b"compaction"
        or kind == b"compact"
        or (is_codex and _is_codex_compaction(headers))
    )
    is_subagent = (
        not _DELEGATION_HEADERS.isdisjoint(headers)
        or kind not in (b"", b"compact")
        or headers.get(_CLAUDE_CLASS) == b"subagent"
    )
    parent = ""
    if session and not (kind == b"compact" or headers.get(_CLAUDE_CLASS) == b"compaction"):
        parent = _find_parent(headers, envelope, session, agent, kind)
    name = name or _read_agent_name(headers.get(_CLAUDE_TYPE) or kind)
    return ClientMetadata(
        session, agent, client, is_subagent or bool(parent), is_compaction, parent, name, declaration,
        is_cache_key=bool(cache_key),
    )  # fmt: skip


def read_declaration(headers: Mapping[bytes, bytes], metadata: bytes | None) -> tuple[DeclaredDelegation | None, str]:
    """Returns the declared delegation, if any, and the agent's name. A header has precedence over a field.

    Raises BadRequest with the name of the header or field that is malformed, or that names the delegation itself as its
    parent.
    """
    if HEADERS.isdisjoint(headers) and (not metadata or b"x-accordion-" not in metadata):
        return None, ""
    fields = _decode_metadata(metadata)
    node, param = _find_declared_value(headers, fields, DELEGATION)
    parent, parent_param = _find_declared_value(headers, fields, PARENT)
    name, name_param = _find_declared_value(headers, fields, AGENT)
    for value, source in ((node, param), (parent, parent_param)):
        if value is not None and not _ID.fullmatch(value):
            raise BadRequest(f"{source} must have 1 to 128 characters, of letters, digits and _ . : -", param=source)
    if name is not None and not (0 < len(name) <= 128 and name.isprintable()):
        raise BadRequest(f"{name_param} must have 1 to 128 printable characters", param=name_param)
    if node is None:
        if parent is not None:
            raise BadRequest(f"{parent_param} needs {DELEGATION} as well, to name the child", param=parent_param)
        return None, name or ""
    if node == parent:
        raise BadRequest(f"{parent_param} names the delegation itself", param=parent_param)
    return DeclaredDelegation(node, parent or "", param, parent_param), name or ""


def metadata_to_send(protocol_name: str, fields: Mapping[str, bytes]) -> bytes | None:
    """Returns the value of `metadata` to send, without the proxy's keys where the upstream would reject them.

    None where there is no such field, or nothing is left of it.
    """
    raw = fields.get("metadata")
    if raw is None or raw[:1] != b"{":
        return raw
    try:
        pairs = FIELDS.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return raw
    own = OWN_KEYS & pairs.keys()
    if not own or not _would_be_refused(protocol_name, fields, len(pairs), len(own)):
        return raw
    return with_fields(raw, dict.fromkeys(own)) if len(own) < len(pairs) else None


def remove_own_keys(protocol_name: str, body: bytes, fields: Mapping[str, bytes]) -> bytes:
    """Returns the body with `metadata` as it is sent and every other byte unchanged; `fields` are its top-level
    fields."""
    metadata = metadata_to_send(protocol_name, fields)
    return body if metadata == fields.get("metadata") else with_fields(body, {"metadata": metadata})


def _decode_metadata(metadata: bytes | None) -> Mapping[str, object]:
    try:
        fields = msgspec.json.decode(metadata or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _find_declared_value(
    headers: Mapping[bytes, bytes], metadata: Mapping[str, object], name: str
) -> tuple[str | None, str]:
    """Returns the value of a name, and the header or field that has it; None if there is none."""
    raw = headers.get(name.encode())
    if raw is not None:
        return raw.decode("utf-8", "replace"), name
    value = metadata.get(name) if metadata else None
    # A value that is no string becomes empty, and is then refused.
    return (None, name) if value is None else (value if isinstance(value, str) else "", f"metadata.{name}")


def _read_agent_name(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").strip() if raw else ""
    return text if len(text) <= 128 and text.isprintable() else ""


def _find_parent(
    headers: Mapping[bytes, bytes], envelope: Mapping[str, bytes], session: str, agent: str, kind: bytes
) -> str:
    """Returns the label of the parent agent; empty if no metadata names it, or if the agent names itself."""
    if (thread := _first_value(headers, _CODEX_PARENT)) and agent:
        return "" if thread == agent else session if thread == session else f"{session}/{thread}"
    if kind and agent:
        return session
    if _AGENT_HEADERS[0] in headers and agent:
        parent = _first_value(headers, _CLAUDE_PARENT)
        return "" if parent == agent else f"{session}/{parent}" if parent not in ("", session) else session
    parent = _first_value(headers, _OPENCODE_PARENT) or (
        "" if agent else _read_parent_session(envelope.get("metadata"))
    )
    return "" if parent == session else parent


def _read_parent_session(metadata: bytes | None) -> str:
    """Returns the parent session in Claude Code's metadata."""
    if not metadata or b"parent_session_id" not in metadata:
        return ""
    try:
        session = msgspec.json.decode(msgspec.json.decode(metadata)["user_id"])["parent_session_id"]
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, TypeError, LookupError):
        return ""
    return session if isinstance(session, str) and _VALUE.fullmatch(session) else ""


def _add_body_fields(headers: Mapping[bytes, bytes], raw: bytes) -> Mapping[bytes, bytes]:
    """Returns the headers with those that Codex sends in the body."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return headers
    if not isinstance(fields, dict):
        return headers
    values = {name.lower().encode(): value.encode() for name, value in fields.items() if isinstance(value, str)}
    return {name: value for name, value in values.items() if name in _CODEX_FIELDS} | dict(headers)


@lru_cache(1_024)
def read_client_name(user_agent: bytes) -> str:
    """Returns a short name of the client from its User-Agent; empty if it has none."""
    agent = user_agent.decode("latin-1").strip()
    lower_agent = agent.lower()
    for substring, name in (
        ("claude-cli", "claude-code"),
        ("claude-code", "claude-code"),
        ("codex", "codex"),
        ("opencode", "opencode"),
        ("geminicli", "gemini-cli"),
        ("agents/python", "openai-agents"),
        ("agents/javascript", "openai-agents"),
        ("litellm", "litellm"),
        ("ai-sdk", "ai-sdk"),
        ("langchain", "langchain"),
        ("pydantic-ai", "pydantic-ai"),
    ):
        if substring in lower_agent:
            return name
    name = re.split(r"[\s(]", agent, maxsplit=1)[0].lower()
    return name if re.fullmatch(r"[\x21-\x7e]{1,40}", name) else ""


def _is_codex_compaction(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the request is part of Codex's own compaction."""
    raw = headers.get(_CODEX_TURN)
    if raw is None:
        return False
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("request_kind") == "compaction"


def _read_own_header(raw: bytes | None) -> str:
    if raw is not None and not _valid_value(raw):
        raise BadRequest(
            "x-accordion-session must have 8 to 128 characters, of letters, digits and _ . : -",
            param="x-accordion-session",
        )
    return _valid_value(raw)


def _valid_value(raw: bytes | None) -> str:
    if not raw or len(raw) > 128:
        return ""
    text = raw.decode("latin-1")
    return text if _VALUE.fullmatch(text) else ""


def _first_value(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> str:
    for name in names:
        raw = headers.get(name)
        if raw is not None and (value := _valid_value(raw)):
            return value
    return ""


def _find_vendor_session(headers: Mapping[bytes, bytes]) -> str:
    if b"\n".join(headers).find(_VENDOR_SUFFIX) < 0:
        return ""
    for name, raw in headers.items():
        if _VENDOR_SESSION.fullmatch(name) and (value := _valid_value(raw)):
            return value
    return ""


def _string_value(raw: bytes | None) -> str:
    return _valid_value(raw[1:-1]) if raw and raw[:1] == b'"' else ""


def _find_body_session(envelope: Mapping[str, bytes]) -> str:
    for name in _SESSION_FIELDS:
        if value := _string_value(envelope.get(name)):
            return value
    metadata = envelope.get("metadata")
    if not metadata or metadata[:1] != b"{":
        return ""
    try:
        fields = msgspec.json.decode(metadata)
        user = fields.get("user_id")
        if isinstance(user, str) and user[:1] == "{":
            user = msgspec.json.decode(user)
            session = user.get("session_id") if isinstance(user, dict) else None
        else:
            old_format = _CLAUDE_USER.search(user) if isinstance(user, str) else None
            session = old_format.group(1) if old_format else fields.get("session_id")
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return ""
    return session if isinstance(session, str) and _VALUE.fullmatch(session) else ""


def _find_baggage_session(raw: bytes | None) -> str:
    if not raw:
        return ""
    match = _BAGGAGE_SESSION.search(raw[:8192].decode("latin-1"))
    return _valid_value(match.group(1).encode("latin-1")) if match else ""


def _would_be_refused(protocol_name: str, fields: Mapping[str, bytes], pairs: int, own: int) -> bool:
    """Whether the upstream would reject the request only because of the proxy's keys."""
    if protocol_name == "messages":
        return True
    unstored = protocol_name == "chat" and fields.get("store") != b"true" and pairs == own
    return unstored or pairs > _MAX_PAIRS
