"""The patches of `apply_patch`, applied to a text where that can be done exactly."""

from __future__ import annotations

import re
from typing import Final

from accordion.core.values import dataclass

_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (\S[^\n\r]*)", re.MULTILINE)
_END: Final = "*** End Patch"


@dataclass(frozen=True, slots=True)
class Patched:
    """What a patch makes of a file: its text, None where it cannot be applied exactly; the piece of the patch that is
    about the file; whether the file is gone."""

    text: str | None
    piece: str
    gone: bool = False


def patched(patch: str, path: str, text: str | None) -> Patched:
    """Applies what a patch says of one file. `text` is the file's text before, None where that is not known."""
    heads, pieces, gone = list(_FILE.finditer(patch)), list[str](), False
    for at, head in enumerate(heads):
        if head[2].strip() != path:
            continue
        end = heads[at + 1].start() if at + 1 < len(heads) else len(patch)
        piece = patch[head.start() : end].split(_END, maxsplit=1)[0].rstrip("\n")
        pieces.append(piece)
        body, gone = piece.split("\n")[1:], head[1] == "Delete"
        if gone:
            text = None
        elif head[1] == "Add":
            text = "".join(f"{line[1:]}\n" for line in body if line.startswith("+"))
        elif text is not None:
            text = _updated(text, body)
    return Patched(text, "\n".join(pieces), gone) if pieces else Patched(None, patch)


def _updated(text: str, body: list[str]) -> str | None:
    """The text with all hunks applied; None where one does not fit at exactly one place behind the one before it."""
    lines, out, at = text.split("\n"), list[str](), 0
    for hint, hunk in _hunks(body):
        old = [line[1:] for line in hunk if line[:1] in (" ", "-", "")]
        new = [line[1:] for line in hunk if line[:1] in (" ", "+", "")]
        start = at
        if hint:
            start = next((n for n in range(at, len(lines)) if lines[n].strip() == hint), -1)
            if start < 0:
                return None
        places = [n for n in range(start, len(lines) - len(old) + 1) if lines[n : n + len(old)] == old] if old else []
        if not old:
            # Nothing but new lines: they go to the end, in front of the last line end.
            places = [len(lines) - 1 if lines[-1:] == [""] else len(lines)]
        if not places or (len(places) > 1 and not hint):
            return None
        out += [*lines[at : places[0]], *new]
        at = places[0] + len(old)
    return "\n".join([*out, *lines[at:]])


def _hunks(body: list[str]) -> list[tuple[str, list[str]]]:
    """The hunks of a patch with the line after which each is to be looked for, empty for none."""
    out: list[tuple[str, list[str]]] = []
    for line in body:
        if line.startswith("@@"):
            out.append((line[2:].strip(), []))
        elif line.startswith("*** "):
            continue
        else:
            if not out:
                out.append(("", []))
            out[-1][1].append(line)
    return [(hint, hunk) for hint, hunk in out if hunk]
