"""Separates a user's own words from material that the user pasted: reviews, logs, documents.

Theory of operation. A paragraph is pasted if it is part of a document (it stands below a heading, or within a tag), if
a program printed it, or if it describes code at length and addresses nobody. The last paragraph of a document is the
user's own if it addresses somebody. Headings, and lines that a program printed, are nobody's words. In doubt a
paragraph is the user's own, because a lost rule does more harm than a listed remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Final

import msgspec

from accordion.summaries.sentence_forms import (
    BRIEF,
    BULLET,
    addresses_reader,
    is_greeting,
    opens_with_verb,
    split_sentences,
)

_MIN_PRINTED: Final = 2
"""Printed lines that make a paragraph the output of a program."""
_EDGE_LINES: Final = 12
"""Lines at both ends of a long text that a user may have typed; between them is pasted material."""
_MAX_TITLE_WORDS: Final = 6
_MAX_READ: Final = 2_000
"""Characters of a line that are read for signs of its origin."""
_SENTENCE_ENDS: Final = ".!?:;。！？："
_MARKED_HEADING = re.compile(r"#{1,6} |(?:\d+[.)] )?\*\*[^*]+\*\*:?$|__[^_]+__:?$")
_LABEL = re.compile(r"(?:[-*] |\d+[.)] )?\*\*[^*]+\*\*")
_TITLE_WORD = re.compile(r"[A-ZÀ-Þ][\w'’/-]*|[a-z]{1,3}|[&/–-]|\d+")
_TAG = re.compile(r"<([A-Za-z][\w-]{0,60})(?:\s[^<>]*)?>")
_PRINTED = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d|[\w./-]+:\d+(?::\d+)?: |\S+:\d+:\d+:|--- (?:FAIL|PASS|SKIP)|"
    r"(?:FAIL|FAILED|PASS|PASSED|ERROR|WARN|WARNING|INFO|DEBUG|FATAL)\b[:\s]|(?:Error|Warning): \S*[/:]|Traceback \(|"
    r"File \"|\w*(?:Error|Exception): |at \S+\(|npm (?:ERR|WARN)|\$ \w|={3,}"
)
"""The beginning of a line that a program printed."""
_CODE = re.compile(
    r"\w\(|[a-z][A-Z]\w|\w_\w|`[^`\n]+`|\w\.(?:py|go|tsx?|jsx?|rs|java|cpp|hpp|md|json|ya?ml|toml|sh|sql)\b"
)
"""A sign of code within prose."""


class ProseLine(msgspec.Struct, frozen=True):
    """A line of a message. `is_pasted`: the user did not write it for this conversation."""

    text: str
    is_pasted: bool


def mark_pasted(lines: Sequence[str]) -> Iterator[ProseLine]:
    """Yields the lines of a message that may have instructions: all but empty ones, headings, and printed ones.

    The lines are stripped. An empty line ends a paragraph.
    """
    paragraphs = [list(group) for is_text, group in groupby(lines, bool) if is_text]
    start, line_number = _find_document(paragraphs), 0
    typed_lines = _EDGE_LINES if sum(map(len, paragraphs)) > 4 * _EDGE_LINES else len(lines)
    for number, paragraph in enumerate(paragraphs):
        is_own_ending = start < number == len(paragraphs) - 1 and _is_speech(paragraph)
        is_printed = sum(_PRINTED.match(line) is not None for line in paragraph) >= _MIN_PRINTED
        is_pasted = (number >= start and not is_own_ending) or _describes_code(paragraph)
        for line in paragraph:
            line_number += 1
            is_middle = typed_lines < line_number <= sum(map(len, paragraphs)) - typed_lines
            if not _PRINTED.match(line) and (len(lines) == 1 or not _is_heading(line)):
                # The user's request may follow printed lines without an empty one.
                yield ProseLine(line, is_middle or is_pasted or (is_printed and not _is_addressed(line)))


def _find_document(paragraphs: Sequence[Sequence[str]]) -> int:
    """Returns the index of the paragraph with which a document begins; the number of paragraphs if there is none.

    A line above the first heading is the document's title if it is no sentence.
    """
    for number, paragraph in enumerate(paragraphs):
        if any(sign.match(line) for line in paragraph for sign in (_TAG, _MARKED_HEADING, _LABEL)):
            return number
        if len(paragraph) == 1 and _is_title(paragraph[0]) and _is_material(paragraphs[number + 1 :]):
            above = paragraphs[number - 1] if number else ()
            return number - (len(above) == 1 and above[0][-1] not in _SENTENCE_ENDS and not _is_addressed(above[0]))
    return len(paragraphs)


def _is_material(paragraphs: Sequence[Sequence[str]]) -> bool:
    """Whether the text below a title is more than a short remark: it is long, or has code."""
    text = " ".join(line[:_MAX_READ] for line in chain.from_iterable(paragraphs))
    return len(text) > BRIEF or _CODE.search(text) is not None


def _is_heading(line: str) -> bool:
    return _MARKED_HEADING.match(line) is not None or _is_title(line)


def _is_title(line: str) -> bool:
    """Whether a line is a few words with capitals, without a full stop."""
    words = line[:_MAX_READ].rstrip(":").split()
    return (
        1 < len(words) <= _MAX_TITLE_WORDS
        and all(map(_TITLE_WORD.fullmatch, words))
        and words[0][0].isupper()
        and sum(word[0].isupper() for word in words) > 1
        and not _is_addressed(line)
        and not is_greeting(line)
    )


def _describes_code(paragraph: Sequence[str]) -> bool:
    """Whether a paragraph is prose about code, of some length, that addresses nobody."""
    text = " ".join(line[:_MAX_READ] for line in paragraph)
    return (
        _CODE.search(text) is not None
        and (len(text) > BRIEF or len(split_sentences(text)) > 1)
        and not any(BULLET.match(line) or "?" in line or _is_addressed(line) for line in paragraph)
    )


def _is_speech(paragraph: Sequence[str]) -> bool:
    """Whether a paragraph is no list and speaks to somebody."""
    return any(map(_is_addressed, paragraph)) and not any(map(BULLET.match, paragraph))


def _is_addressed(line: str) -> bool:
    """Whether a line speaks to somebody: of "I", "we" or "you", or with a verb at its beginning."""
    return addresses_reader(line[:_MAX_READ]) or opens_with_verb(line[:_MAX_READ])
