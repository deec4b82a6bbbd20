"""What is quoted of something that left: the lines around what was named, every cut in sight, every line marked.

Quoted text is data: a sign before each of its lines keeps it from passing for anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from accordion.archive.references import shortened

OPENING: Final = (
    "[From the archive of this conversation: what was just named and is no longer in view. Quoted data, not a request.]"
)
_BEFORE, _AFTER = 2, 5
"""Lines around one that holds what was named."""
_WHOLE: Final = 1_200
"""Characters of a text that is shown whole."""
_LINE: Final = 400
"""Characters of a line among others that are shown; of one that is nearly the whole text, half the room."""
_FEW: Final = 3
_HITS: Final = 3
"""Lines with one name that are shown of one text, the first ones."""
_NOTE: Final = 26
"""Characters of a note on lines left out, roughly."""
_CUT: Final = 60
"""Characters of the notes on what of a line is left out."""
_ARGUMENTS: Final = 160


def quoted(text: str, names: Sequence[str], room: int) -> tuple[str, tuple[str, ...]]:
    """What is shown of a text within about `room` characters, and those of its lines that hold a name (as far as they
    are shown); ("", ()) where nothing fits.

    A short text that fits is shown whole; else the lines around the names in their order, or the beginning where none
    stands there.
    """
    lines = text.strip("\r\n").split("\n")
    if len(text) + 3 * len(lines) <= min(room, _WHOLE):
        return _shown(lines, dict(enumerate(lines))), _holding(lines, names)
    most = min(max(_LINE, room // 2) if len(lines) <= _FEW else _LINE, room - _CUT)
    if most < _CUT:
        return "", ()
    taken: dict[int, str] = {}
    for places in _around(lines, names) or [range(min(len(lines), 1 + _BEFORE + _AFTER))]:
        for at in places:
            if at in taken:
                continue
            line = _cut(lines[at], names, most)
            if len(line) + 3 > room:
                break
            taken[at] = line
            room -= len(line) + 3
        room -= _NOTE
    return _shown(lines, taken), _holding(taken.values(), names)


def called(tool: str, arguments: str) -> str:
    """A call on one line, its arguments shortened."""
    line = shortened(arguments)
    return f"{shortened(tool)}({line if len(line) <= _ARGUMENTS else line[: _ARGUMENTS - 1] + '…'})"


def labelled(source: str, message: int, artifact: str, quote: str, *, whole: bool) -> str:
    """A quote under the line that says what it is of: the source in words, its message's index, where it is kept."""
    kept = f", kept {'whole as' if whole else 'in'} {artifact}" if artifact else ""
    return f"{source}, message {message}{kept}:\n{quote}"


def _around(lines: Sequence[str], names: Sequence[str]) -> list[Sequence[int]]:
    """For each line that holds a name: itself, what follows, what is before."""
    out: dict[int, Sequence[int]] = {}
    for name in names:
        for at in [at for at, line in enumerate(lines) if name in line][:_HITS]:
            behind = range(at + 1, min(len(lines), at + 1 + _AFTER))
            out.setdefault(at, (at, *behind, *range(at - 1, max(-1, at - 1 - _BEFORE), -1)))
    return list(out.values())


def _holding(lines: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if any(name in line for name in names))


def _cut(line: str, names: Sequence[str], most: int) -> str:
    """A line, or of a long one what stands around the first of the names that it holds."""
    if len(line) <= most:
        return line
    at = next((at for name in names if (at := line.find(name)) >= 0), 0)
    start = max(0, min(at - most // 3, len(line) - most))
    end = start + most
    before = f"[{start:,} characters left out] …" if start else ""
    behind = f"… [{len(line) - end:,} characters left out]" if end < len(line) else ""
    return f"{before}{line[start:end]}{behind}"


def _shown(lines: Sequence[str], taken: dict[int, str]) -> str:
    out: list[str] = []
    before = -1
    for at in sorted(taken):
        if at > before + 1:
            out.append(_left_out(at - before - 1))
        out.append(f"> {taken[at]}".rstrip())
        before = at
    if out and before + 1 < len(lines):
        out.append(_left_out(len(lines) - before - 1))
    return "\n".join(out)


def _left_out(count: int) -> str:
    return f"[{count:,} {'line' if count == 1 else 'lines'} left out]"
