"""Applies the patches of `apply_patch` to a text, where that is exact."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (\S[^\n\r]*)", re.MULTILINE)
_END: Final = "*** End Patch"


class PatchResult(msgspec.Struct, frozen=True):
    """The result of a patch for one file.

    `text` is None where the patch cannot be applied exactly; `piece` is the file's part of the patch.
    """

    text: str | None
    piece: str
    is_deleted: bool = False


def apply_patch(patch: str, path: str, text: str | None) -> PatchResult:
    """Applies a patch to one file. `text` is the file's previous text, None where it is unknown."""
    headers, pieces, is_deleted = list(_FILE.finditer(patch)), list[str](), False
    for index, header in enumerate(headers):
        if header[2].strip() != path:
            continue
        end = headers[index + 1].start() if index + 1 < len(headers) else len(patch)
        piece = patch[header.start() : end].split(_END, maxsplit=1)[0].rstrip("\n")
        pieces.append(piece)
        body, is_deleted = piece.split("\n")[1:], header[1] == "Delete"
        if is_deleted:
            text = None
        elif header[1] == "Add":
            text = "".join(f"{line[1:]}\n" for line in body if line.startswith("+"))
        elif text is not None:
            text = _apply_hunks(text, body)
    return PatchResult(text, "\n".join(pieces), is_deleted) if pieces else PatchResult(None, patch)


def _apply_hunks(text: str, body: list[str]) -> str | None:
    """Applies all hunks; returns None where one does not match at exactly one place after the previous one."""
    lines, result, end = text.split("\n"), list[str](), 0
    for hint, hunk in _split_hunks(body):
        old = [line[1:] for line in hunk if line[:1] in (" ", "-", "")]
        new = [line[1:] for line in hunk if line[:1] in (" ", "+", "")]
        start = end
        if hint:
            start = next((n for n in range(end, len(lines)) if lines[n].strip() == hint), -1)
            if start < 0:
                return None
        positions = (
            [n for n in range(start, len(lines) - len(old) + 1) if lines[n : n + len(old)] == old] if old else []
        )
        if not old:
            # A hunk without old lines is appended, before the last line end.
            positions = [len(lines) - 1 if lines[-1:] == [""] else len(lines)]
        if not positions or (len(positions) > 1 and not hint):
            return None
        result += [*lines[end : positions[0]], *new]
        end = positions[0] + len(old)
    return "\n".join([*result, *lines[end:]])


def _split_hunks(body: list[str]) -> list[tuple[str, list[str]]]:
    """Splits a patch into hunks, each with the line after which it is searched for (empty for none)."""
    hunks: list[tuple[str, list[str]]] = []
    for line in body:
        if line.startswith("@@"):
            hunks.append((line[2:].strip(), []))
        elif line.startswith("*** "):
            continue
        else:
            if not hunks:
                hunks.append(("", []))
            hunks[-1][1].append(line)
    return [(hint, hunk) for hint, hunk in hunks if hunk]
