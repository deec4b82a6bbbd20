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
_INSIDE = r'\{(?:[^"{}\[\]\\]++|"(?:[^"\\]++|\\.)*+")*+'
_COMPLETE = re.compile(_INSIDE + r"\}", re.DOTALL)
_INCOMPLETE = re.compile(_INSIDE + r'(?:"(?:[^"\\]++|\\.)*+\\?)?\Z', re.DOTALL)
# The next position that matters: outside of a JSON string, and within one.
_OUTSIDE = re.compile(r'["{]')
_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_MARKS = re.compile(r'["{\\]')


class PlaceholderScanner:
    """Finds placeholders in the arguments of one client call: JSON text in pieces of any size.

    The text passes, except a value of the form `{"$artifact": "art_…", "path": "$.x"}` (the key first, `path`
    optional): it is kept back, with all text after it, until `resolve` gets its text. The beginning of a possible
    placeholder is kept back until it is complete or is none. A brace within a JSON string begins no placeholder. The
    arguments as a whole are never a placeholder, since they are an object.
    """

    __slots__ = ("_began", "_escape", "_inside", "_rest", "_waiting", "resolved")

    def __init__(self) -> None:
        self._began = False
        # Whether the text so far ends within a string, and within an escape there.
        self._inside = self._escape = False
        # Text and placeholders that wait for `resolve`; it begins with a placeholder or is empty.
        self._waiting: list[str | tuple[ArtifactPlaceholder, str]] = []
        # The beginning of a possible placeholder.
        self._rest = ""
        self.resolved = False
        """Whether a placeholder was replaced by a text."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is kept back, so that text without a quote, a brace or a backslash passes as it is."""
        return self._began and not (self._rest or self._waiting or self._escape)

    @property
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The placeholders that wait for their texts, in order."""
        if not self._waiting:
            return ()
        return tuple(piece[0] for piece in self._waiting if type(piece) is tuple)

    def feed(self, text: str) -> str:
        """Takes a piece; returns the text that passes now."""
        if not text or (self.is_idle and _MARKS.search(text) is None):
            return text
        return self._scan(self._rest + text)

    def resolve(self, texts: Sequence[str | None]) -> str:
        """Replaces the pending placeholders, in order (None leaves one as it is); returns the text that passes now."""
        out, remaining = [], iter(texts)
        for piece in self._waiting:
            if type(piece) is tuple:
                text = next(remaining, None)
                self.resolved = self.resolved or text is not None
                out.append(piece[1] if text is None else json_text(text))
            else:
                out.append(str(piece))
        self._waiting.clear()
        return "".join(out)

    def finish(self) -> str:
        """Returns the text that is still kept back, at the end of the arguments. Nothing may be pending any more."""
        out, self._rest = self.resolve(()) + self._rest, ""
        return out

    def _scan(self, text: str) -> str:
        out: list[str] = []
        done = at = 0
        self._rest = ""
        while (start := self._find_brace(text, at)) >= 0:
            at = start + 1
            if not self._began and not text[:start].strip():
                self._began = True
                continue
            match = _COMPLETE.match(text, start) if _BEGINNING.match(text, start) else None
            placeholder = (
                None if match is None or len(match.group()) > _MAX_LENGTH else _parse_placeholder(match.group())
            )
            if match is not None and placeholder is not None:
                self._pass(text[done:start], out)
                self._waiting.append((placeholder, match.group()))
                done = at = match.end()
            elif match is None and _may_begin_placeholder(text, start):
                self._rest = text[start:]
                break
        self._pass(text[done : len(text) - len(self._rest)], out)
        return "".join(out)

    def _find_brace(self, text: str, at: int) -> int:
        """Returns the position of the next opening brace outside of a string, from `at` on; -1 where there is none."""
        at += self._escape
        self._escape = False
        while at < len(text):
            if self._inside:
                at = _STRING.match(text, at).end()  # type: ignore[union-attr]  # it always matches
                self._inside = not text.startswith('"', at)
                self._escape = text.startswith("\\", at)
            else:
                match = _OUTSIDE.search(text, at)
                if match is None:
                    return -1
                at = match.start()
                if text[at] == "{":
                    return at
                self._inside = True
            at += 1
        return -1

    def _pass(self, text: str, out: list[str]) -> None:
        self._began = self._began or bool(text.strip())
        if self._waiting and text:
            self._waiting.append(text)
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
    at = 0
    for call in calls:
        count = len(find_placeholders(call["arguments"]))
        if count:
            call["arguments"] = replace_placeholders(call["arguments"], texts[at : at + count])
            at += count
    return any(text is not None for text in texts[:at])


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
