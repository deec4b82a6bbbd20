"""Placeholders for artifacts in the arguments of a client call: `{"$artifact": "art_…"}` instead of a quotation.

All protocols share this module: in each, arguments are JSON text, streamed in pieces of any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from accordion.protocols.json_values import encode
from accordion.protocols.message_keys import decode_json
from accordion.protocols.tool_loop import ArtifactPlaceholder

PLACEHOLDER_KEY = '"$artifact"'
"""The key of a placeholder, as JSON."""
# Limit of a placeholder, in characters; longer text passes unchanged.
_MAX_LENGTH = 1024
_BEGINNING = re.compile(r'\{\s*"\$artifact"')
_OBJECT_START = r'\{(?:[^"{}\[\]\\]++|"(?:[^"\\]++|\\.)*+")*+'
_COMPLETE = re.compile(_OBJECT_START + r"\}", re.DOTALL)
_INCOMPLETE = re.compile(_OBJECT_START + r'(?:"(?:[^"\\]++|\\.)*+\\?)?\Z', re.DOTALL)
# The next position that matters: outside of a JSON string, and within one.
_QUOTE_OR_BRACE = re.compile(r'["{]')
_STRING_CONTENT = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SPECIAL_CHARACTERS = re.compile(r'["{\\]')


class PlaceholderScanner:
    """Finds placeholders in the arguments of one client call: JSON text in pieces of any size.

    The text passes, except a value of the form `{"$artifact": "art_…", "path": "$.x"}` (the key first, `path`
    optional): it is kept back, with all text after it, until `resolve` gets its text. The beginning of a possible
    placeholder is kept back until it is complete or is none. A brace within a JSON string begins no placeholder. The
    arguments as a whole are never a placeholder, since they are an object.
    """

    __slots__ = ("_has_begun", "_is_in_escape", "_is_in_string", "_pending_pieces", "_unfinished", "resolved")

    def __init__(self) -> None:
        self._has_begun = False
        # Whether the text so far ends within a string, and within an escape there.
        self._is_in_string = self._is_in_escape = False
        # Text and placeholders that wait for `resolve`; it begins with a placeholder or is empty.
        self._pending_pieces: list[str | tuple[ArtifactPlaceholder, str]] = []
        # The beginning of a possible placeholder.
        self._unfinished = ""
        self.resolved = False
        """Whether a placeholder was replaced by a text."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is kept back, so that text without a quote, a brace or a backslash passes as it is."""
        return self._has_begun and not (self._unfinished or self._pending_pieces or self._is_in_escape)

    @property
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The placeholders that wait for their texts, in order."""
        if not self._pending_pieces:
            return ()
        return tuple(piece[0] for piece in self._pending_pieces if type(piece) is tuple)

    def feed(self, text: str) -> str:
        """Takes a piece; returns the text that passes now."""
        if not text or (self.is_idle and _SPECIAL_CHARACTERS.search(text) is None):
            return text
        return self._scan(self._unfinished + text)

    def resolve(self, texts: Sequence[str | None]) -> str:
        """Replaces the pending placeholders, in order (None leaves one as it is); returns the text that passes now."""
        out, remaining = [], iter(texts)
        for piece in self._pending_pieces:
            if type(piece) is tuple:
                text = next(remaining, None)
                self.resolved = self.resolved or text is not None
                out.append(piece[1] if text is None else json_text(text))
            else:
                out.append(str(piece))
        self._pending_pieces.clear()
        return "".join(out)

    def finish(self) -> str:
        """Returns the text that is still kept back, at the end of the arguments. Nothing may be pending any more."""
        out, self._unfinished = self.resolve(()) + self._unfinished, ""
        return out

    def _scan(self, text: str) -> str:
        out: list[str] = []
        forwarded_end = position = 0
        self._unfinished = ""
        while (start := self._find_brace(text, position)) >= 0:
            position = start + 1
            if not self._has_begun and not text[:start].strip():
                self._has_begun = True
                continue
            match = _COMPLETE.match(text, start) if _BEGINNING.match(text, start) else None
            placeholder = (
                None if match is None or len(match.group()) > _MAX_LENGTH else _parse_placeholder(match.group())
            )
            if match is not None and placeholder is not None:
                self._forward(text[forwarded_end:start], out)
                self._pending_pieces.append((placeholder, match.group()))
                forwarded_end = position = match.end()
            elif match is None and _may_begin_placeholder(text, start):
                self._unfinished = text[start:]
                break
        self._forward(text[forwarded_end : len(text) - len(self._unfinished)], out)
        return "".join(out)

    def _find_brace(self, text: str, position: int) -> int:
        """Returns the position of the first opening brace from `position` on outside of a string; -1 without one."""
        position += self._is_in_escape
        self._is_in_escape = False
        while position < len(text):
            if self._is_in_string:
                position = _STRING_CONTENT.match(text, position).end()  # type: ignore[union-attr]  # it always matches
                self._is_in_string = not text.startswith('"', position)
                self._is_in_escape = text.startswith("\\", position)
            else:
                match = _QUOTE_OR_BRACE.search(text, position)
                if match is None:
                    return -1
                position = match.start()
                if text[position] == "{":
                    return position
                self._is_in_string = True
            position += 1
        return -1

    def _forward(self, text: str, out: list[str]) -> None:
        self._has_begun = self._has_begun or bool(text.strip())
        if self._pending_pieces and text:
            self._pending_pieces.append(text)
        else:
            out.append(text)


def find_placeholders(text: str) -> tuple[ArtifactPlaceholder, ...]:
    """Returns the placeholders in the complete arguments of a call, in order."""
    if PLACEHOLDER_KEY not in text:
        return ()
    scanner = PlaceholderScanner()
    scanner.feed(text)
    return scanner.pending_placeholders


def replace_placeholders(text: str, texts: Sequence[str | None]) -> str:
    """Returns the complete arguments of a call with these texts in place of its placeholders."""
    scanner = PlaceholderScanner()
    out = scanner.feed(text)
    return out + scanner.resolve(texts) + scanner.finish()


def find_placeholders_in_calls(calls: Iterable[dict[str, Any]]) -> tuple[ArtifactPlaceholder, ...]:
    """Returns the placeholders in several calls, whose `arguments` are text, in order."""
    return tuple(placeholder for call in calls for placeholder in find_placeholders(call["arguments"]))


def replace_placeholders_in_calls(calls: Iterable[dict[str, Any]], texts: Sequence[str | None]) -> bool:
    """Replaces the placeholders in several calls by these texts; whether any was replaced."""
    position = 0
    for call in calls:
        count = len(find_placeholders(call["arguments"]))
        if count:
            call["arguments"] = replace_placeholders(call["arguments"], texts[position : position + count])
            position += count
    return any(text is not None for text in texts[:position])


def json_text(text: str) -> str:
    """Encodes a text as a JSON string; lone surrogates become question marks."""
    return encode(text.encode(errors="replace").decode()).decode()


def _may_begin_placeholder(text: str, start: int) -> bool:
    """Whether the unclosed object that begins at `start` may become a placeholder."""
    if len(text) - start > _MAX_LENGTH:
        return False
    if PLACEHOLDER_KEY.startswith(text[start + 1 :].lstrip()):
        return True
    return _BEGINNING.match(text, start) is not None and _INCOMPLETE.match(text, start) is not None


def _parse_placeholder(raw: str) -> ArtifactPlaceholder | None:
    try:
        value = decode_json(raw)
    except ValueError:
        return None
    if type(value) is not dict or not value.keys() <= {"$artifact", "path"}:
        return None
    artifact, path = value.get("$artifact"), value.get("path")
    if type(artifact) is not str or not artifact or not (path is None or type(path) is str):
        return None
    return ArtifactPlaceholder(artifact, path or "")
