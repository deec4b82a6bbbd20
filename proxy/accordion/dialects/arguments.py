"""Artifacts that a model names in the arguments of a client's call instead of quoting them: `{"$artifact": "art_…"}`.

Common to the dialects: arguments are JSON text in all of them, streamed in pieces of any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from accordion.dialects.keys import read
from accordion.dialects.shared import encode
from accordion.dialects.splice import Wanted

NAMED = '"$artifact"'
"""What stands in arguments that name an artifact."""
# So long may a name and its path be; what is longer is no name, and goes on.
_LONGEST = 1024
_NAMED = re.compile(r'\{\s*"\$artifact"')
_INSIDE = r'\{(?:[^"{}\[\]\\]++|"(?:[^"\\]++|\\.)*+")*+'
_FLAT = re.compile(_INSIDE + r"\}", re.DOTALL)
_OPEN = re.compile(_INSIDE + r'(?:"(?:[^"\\]++|\\.)*+\\?)?\Z', re.DOTALL)
# The next place that matters: outside of a JSON string, and within one.
_OUTSIDE = re.compile(r'["{]')
_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_MARKS = re.compile(r'["{\\]')


class Arguments:
    """The arguments of one of the client's calls, as the JSON text that they are, in pieces of any size.

    Lets the text through, except a value of the form `{"$artifact": "art_…", "path": "$.x"}` (the name first, `path` as
    one likes): that waits, with all that follows it, until its text is given. What only begins like one waits until it
    is known; a brace within a JSON string begins nothing. The whole of the arguments is never such a value, since
    arguments are an object.
    """

    __slots__ = ("_began", "_escape", "_held", "_inside", "_rest", "resolved")

    def __init__(self) -> None:
        self._began = False
        # Whether the text so far ends within a string, and there within an escape.
        self._inside = self._escape = False
        # Text and names that wait for `give`; it begins with a name or is empty.
        self._held: list[str | tuple[Wanted, str]] = []
        # What may become a name.
        self._rest = ""
        self.resolved = False
        """Whether a text was put in the place of a name."""

    @property
    def idle(self) -> bool:
        """Whether nothing is held back, so that text without a quote, a brace or a backslash passes as it is."""
        return self._began and not (self._rest or self._held or self._escape)

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """The artifacts that are waited for, in order."""
        if not self._held:
            return ()
        return tuple(held[0] for held in self._held if type(held) is tuple)

    def feed(self, text: str) -> str:
        """Takes a piece; returns what may go on now."""
        if not text or (self.idle and _MARKS.search(text) is None):
            return text
        return self._scan(self._rest + text)

    def give(self, texts: Sequence[str | None]) -> str:
        """The texts of what is `wanted`, in its order (None: the name stays as it stands); returns what may go on."""
        out, given = [], iter(texts)
        for held in self._held:
            if type(held) is tuple:
                text = next(given, None)
                self.resolved = self.resolved or text is not None
                out.append(held[1] if text is None else json_text(text))
            else:
                out.append(str(held))
        self._held.clear()
        return "".join(out)

    def end(self) -> str:
        """The arguments are over: what only began like a name. To be asked when nothing is `wanted` any more."""
        out, self._rest = self.give(()) + self._rest, ""
        return out

    def _scan(self, text: str) -> str:
        out: list[str] = []
        done = at = 0
        self._rest = ""
        while (start := self._brace(text, at)) >= 0:
            at = start + 1
            if not self._began and not text[:start].strip():
                self._began = True
                continue
            flat = _FLAT.match(text, start) if _NAMED.match(text, start) else None
            wanted = None if flat is None or len(flat.group()) > _LONGEST else _wanted(flat.group())
            if flat is not None and wanted is not None:
                self._pass(text[done:start], out)
                self._held.append((wanted, flat.group()))
                done = at = flat.end()
            elif flat is None and _begins(text, start):
                self._rest = text[start:]
                break
        self._pass(text[done : len(text) - len(self._rest)], out)
        return "".join(out)

    def _brace(self, text: str, at: int) -> int:
        """Where the next brace opens outside of a string, from `at` on; -1 where none does."""
        at += self._escape
        self._escape = False
        while at < len(text):
            if self._inside:
                at = _STRING.match(text, at).end()  # type: ignore[union-attr]  # it always matches
                self._inside = not text.startswith('"', at)
                self._escape = text.startswith("\\", at)
            else:
                found = _OUTSIDE.search(text, at)
                if found is None:
                    return -1
                at = found.start()
                if text[at] == "{":
                    return at
                self._inside = True
            at += 1
        return -1

    def _pass(self, text: str, out: list[str]) -> None:
        self._began = self._began or bool(text.strip())
        if self._held and text:
            self._held.append(text)
        else:
            out.append(text)


def wanted_in(text: str) -> tuple[Wanted, ...]:
    """The artifacts that are named in the whole arguments of a call, in order."""
    if NAMED not in text:
        return ()
    arguments = Arguments()
    arguments.feed(text)
    return arguments.wanted


def given_in(text: str, texts: Sequence[str | None]) -> str:
    """The whole arguments of a call with the texts of what is `wanted_in` them put in its place."""
    arguments = Arguments()
    out = arguments.feed(text)
    return out + arguments.give(texts) + arguments.end()


def wanted_by(calls: Iterable[dict[str, Any]]) -> tuple[Wanted, ...]:
    """The artifacts that are named in the `arguments` of several calls, in order. They are text in each."""
    return tuple(wanted for call in calls for wanted in wanted_in(call["arguments"]))


def give_to(calls: Iterable[dict[str, Any]], texts: Sequence[str | None]) -> bool:
    """Puts the texts of what is `wanted_by` the calls into their arguments; whether any was put."""
    at = 0
    for call in calls:
        named = len(wanted_in(call["arguments"]))
        if named:
            call["arguments"] = given_in(call["arguments"], texts[at : at + named])
            at += named
    return any(text is not None for text in texts[:at])


def json_text(text: str) -> str:
    """A text as a JSON string; half characters that no encoding knows become question marks."""
    return encode(text.encode(errors="replace").decode()).decode()


def _begins(text: str, start: int) -> bool:
    """Whether what opens at `start` and does not close may become a name."""
    if len(text) - start > _LONGEST:
        return False
    if NAMED.startswith(text[start + 1 :].lstrip()):
        return True
    return _NAMED.match(text, start) is not None and _OPEN.match(text, start) is not None


def _wanted(raw: str) -> Wanted | None:
    try:
        value = read(raw)
    except ValueError:
        return None
    if type(value) is not dict or not value.keys() <= {"$artifact", "path"}:
        return None
    artifact, path = value.get("$artifact"), value.get("path")
    if type(artifact) is not str or not artifact or not (path is None or type(path) is str):
        return None
    return Wanted(artifact, path or "")
