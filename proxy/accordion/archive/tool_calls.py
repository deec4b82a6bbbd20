"""Answers calls of our artifact tool.

Theory of operation: `ArtifactTool` loads the artifact that a call names, and renders the requested part of it within
the tokens that are available. The caller decides which artifacts may be read (`ReadContext`). An id that may not be
read gets the same answer whether or not such an artifact exists. An artifact's text is data and not an instruction:
each answer begins with a line that describes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from accordion.archive.archive import Archive
from accordion.archive.artifacts import Artifact
from accordion.archive.loaded_artifact import LoadedArtifact, MessageParser, find_calls, load_artifact, resolve_path
from accordion.archive.paths import InvalidPath
from accordion.archive.reader import ReadRequest, UnanswerableRequest, read, read_page
from accordion.archive.structure import outline, value_at
from accordion.archive.tool_definition import find_artifact_id, parse_arguments
from accordion.model.artifact_tool import ArtifactPlaceholder, ArtifactToolCall, ArtifactToolResult
from accordion.model.conversation import ToolCall
from accordion.model.errors import StoreUnavailable
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Tasks

_log = logging.getLogger("accordion")

TOKENS_MOST: Final = 8_000
"""The most tokens of one answer."""
SHARE: Final = 0.3
"""The share of the window above which an artifact is not returned whole."""
ARGUMENT_MOST: Final = 1_000_000
"""The most characters of an artifact that is inserted into another tool's arguments."""
_LEAST: Final = 200
"""The fewest tokens with which an answer is useful."""
_HEAD: Final = 120
"""Tokens reserved for an answer's first line."""
_SAFETY: Final = 0.9
_DOUBT: Final = 3
"""A part of a text may have this many times the text's average tokens per character."""
_QUICK: Final = 200_000
"""The most characters that are processed without a thread."""
_LOOKS: Final = 32
_BEGINNING: Final = 1_500


class SharedAccess(Protocol):
    """Grants access to artifacts of other agents in the same delegation tree."""

    def contains_id(self, name: str) -> bool:
        """Whether the reader's conversation shows the id."""

    async def can_read(self, artifact: Artifact, calls: Sequence[tuple[bytes, int, ToolCall]]) -> bool:
        """Whether the reader may see an artifact.

        `calls` are the calls in the artifact, each with the key of its message and the index of its part there.
        """


class ReadContext(StructWithHiddenFields, frozen=True):
    """The reader's permissions and limits.

    `allowed` are the ids that the tenant of `tenant_key` may read in any case; `others` decides about all other ids,
    None allows none of them. `room` is the number of tokens available, `window` that of the model's window (0:
    unknown). `count` counts the tokens of a text. Of several records with the same content, that of `session` is
    preferred.
    """

    hidden_fields = frozenset({"tenant_key"})

    tenant_key: bytes
    allowed: frozenset[str]
    room: int
    count: Callable[[str], int]
    window: int = 0
    session: str = ""
    others: SharedAccess | None = None


class _CallRefused(Exception):
    """A call that is answered with an error message instead of an artifact."""


class ArtifactTool:
    """Answers calls of the artifact tool. Has no state; never raises."""

    def __init__(self, archive: Archive, dialects: Mapping[str, MessageParser], tasks: Tasks) -> None:
        self._archive = archive
        self._dialects = dialects
        self._tasks = tasks

    async def answer_calls(self, reading: ReadContext, calls: Sequence[ArtifactToolCall]) -> list[ArtifactToolResult]:
        """Answers each call, in their order. The calls share the available tokens equally."""
        return [await self._answer(reading, call, reading.room // len(calls)) for call in calls]

    async def load_texts(self, reading: ReadContext, wanted: Sequence[ArtifactPlaceholder]) -> list[str | None]:
        """Returns the texts of the artifacts that other tools' arguments name.

        A text is None where it is not available, not allowed or too long.
        """
        return [await self._load_text(reading, each) for each in wanted]

    async def _answer(self, reading: ReadContext, call: ArtifactToolCall, room: int) -> ArtifactToolResult:
        try:
            return ArtifactToolResult(
                call.call_id, _encodable(await self._read_part(reading, parse_arguments(call.arguments), room))
            )
        except _CallRefused as refusal:
            return ArtifactToolResult(call.call_id, _encodable(str(refusal)), error=True)
        except (UnanswerableRequest, InvalidPath) as error:
            return ArtifactToolResult(call.call_id, _encodable(str(error)[:1_000]), error=True)
        except Exception:
            _log.exception("an artifact could not be read")
            return ArtifactToolResult(call.call_id, "It could not be read. Go on without it.", error=True)

    async def _read_part(self, reading: ReadContext, wish: ReadRequest, room: int) -> str:
        if not wish.id:
            raise _CallRefused(
                'No artifact was named: `id` must be one that the conversation shows, "art_" and 12 digits.'
            )
        held = await self._load_artifact(reading, wish.id)
        if held.mute:
            raise _CallRefused(
                f"[{wish.id}: archived {held.what}] It holds {held.text}, which cannot be shown as text."
            )
        other = await self._load_artifact(reading, wish.other) if wish.other else None
        quick = len(held.text) <= _QUICK and not (wish.path or wish.pattern or other)
        if quick and not _may_not_fit(held, min(len(held.text), 4 * TOKENS_MOST), room):
            return _render_answer(held, wish, other, reading, room)
        return await self._tasks.offload(_render_answer, held, wish, other, reading, room)

    async def _load_text(self, reading: ReadContext, wanted: ArtifactPlaceholder) -> str | None:
        try:
            held = await self._load_artifact(reading, find_artifact_id(wanted.artifact))
            if held.mute:
                return None
            text = await self._tasks.offload(_select_path, held, wanted.path) if wanted.path else held.text
            return _encodable(text) if len(text) <= ARGUMENT_MOST else None
        except (_CallRefused, InvalidPath):
            return None
        except Exception:
            _log.exception("an artifact could not be written into a tool call")
            return None

    # -- loading ------------------------------------------------------------------

    async def _load_artifact(self, reading: ReadContext, name: str) -> LoadedArtifact:
        """Loads an artifact that the reader may read. Raises _CallRefused."""
        others = None if name in reading.allowed else reading.others
        if name not in reading.allowed and (others is None or not others.contains_id(name)):
            raise _unknown_artifact(name)
        try:
            found = await self._archive.load_records(reading.tenant_key, name, limit=_LOOKS)
            found.sort(key=lambda each: each.session != reading.session)
            for artifact in found:
                rows = await self._archive.load_rows(reading.tenant_key, artifact.keys)
                small = sum(map(len, rows.values())) <= _QUICK
                read_from = artifact, rows, self._dialects, others is not None
                held, calls = (
                    _load_from_rows(*read_from) if small else await self._tasks.offload(_load_from_rows, *read_from)
                )
                if held is not None and (others is None or await others.can_read(artifact, calls)):
                    return held
            await self._archive.check()
        except StoreUnavailable as error:
            raise _CallRefused(
                f"The archive cannot be reached at the moment, so {name} cannot be read. It is kept; try later."
            ) from error
        if others is not None:
            raise _unknown_artifact(name)
        raise _CallRefused(f"{name} is no longer in the archive: what is kept there expires, or was erased.")


def _load_from_rows(
    artifact: Artifact, rows: Mapping[bytes, bytes], dialects: Mapping[str, MessageParser], shared: bool
) -> tuple[LoadedArtifact | None, list[tuple[bytes, int, ToolCall]]]:
    """Loads an artifact from its rows.

    Where it belongs to another agent (`shared`), its calls are returned too: they decide whether the reader may see it.
    """
    held = load_artifact(artifact, rows, dialects)
    return held, find_calls(artifact, rows, dialects) if shared and held is not None else []


def _unknown_artifact(name: str) -> _CallRefused:
    return _CallRefused(
        f"Nothing that may be read here has the id {name}. Ids stand in this conversation where something was "
        "moved out of it; they must be given exactly as they stand there."
    )


# -- rendering answers: pure functions, may be slow ------------------------------------------------------------------


def _render_answer(
    held: LoadedArtifact, wish: ReadRequest, other: LoadedArtifact | None, reading: ReadContext, room: int
) -> str:
    """Returns the answer: a line that describes it, and the requested part, within `room` tokens."""
    head = f"{wish.id}: archived {held.what}"
    tokens = _max_answer_tokens(reading, room)
    most = int(tokens / _tokens_per_character(held.artifact) * _SAFETY)
    if not (wish.offset or wish.limit or wish.pattern or wish.path or other) and _is_oversized(held, reading):
        return _describe_structure(held, head, min(most, _BEGINNING))
    text, path = resolve_path(held, wish.path)
    wish = replace(wish, path=path)
    while True:
        part = read(text, wish, most, other.text if other is not None else None)
        more = f" For more: the same with offset={part.next}." if part.next else ""
        answer = f"[{head}; {part.shown}.{more}]\n{part.text}"
        if not _may_not_fit(held, len(answer), room) or most < _LEAST:
            return answer
        counted = reading.count(answer)
        if counted <= room:
            return answer
        most = int(most * min(0.9, 0.9 * room / counted))


def _describe_structure(held: LoadedArtifact, head: str, most: int) -> str:
    """Describes an artifact that is too large to return whole, with its beginning."""
    part = read_page(held.text, 0, 0, most)
    found = "".join(f"\n- {finding}" for finding in held.artifact.findings)
    return (
        f"[{head}; about {held.artifact.tokens:,} tokens, too much to be handed over whole; {part.shown} below.]\n"
        f"{outline(held.text)} Read it in parts: by `pattern`, by `path` where it is JSON, or by `offset` and `limit`."
        + (f"\nFound in it earlier:{found}" if found else "")
        + f"\n\n{part.text}"
    )


def _select_path(held: LoadedArtifact, path: str) -> str:
    text, path = resolve_path(held, path)
    return value_at(text, path) if path else text


def _max_answer_tokens(reading: ReadContext, room: int) -> int:
    """Returns the most tokens of an answer.

    It is half of the available tokens at most, so that the agent can continue. Raises _CallRefused where too few
    remain.
    """
    most = min(TOKENS_MOST, room // 2)
    if reading.window:
        most = min(most, int(SHARE * reading.window))
    if most < _LEAST:
        raise _CallRefused(
            "There is no room left in the window to read it. Finish with what is there, or ask for it later."
        )
    return most - _HEAD


def _tokens_per_character(artifact: Artifact) -> float:
    """Returns the artifact's tokens per character, between 0.2 and 1."""
    known = artifact.tokens / artifact.characters if artifact.characters and artifact.tokens else 0.3
    return min(1.0, max(0.2, known))


def _is_oversized(held: LoadedArtifact, reading: ReadContext) -> bool:
    return 0 < SHARE * reading.window < held.artifact.tokens


def _may_not_fit(held: LoadedArtifact, characters: int, room: int) -> bool:
    """Whether an answer may exceed `room` tokens. Only then are its tokens counted, which is slow."""
    return _DOUBT * _tokens_per_character(held.artifact) * characters > room


def _encodable(text: str) -> str:
    """Returns the text with characters replaced that UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
