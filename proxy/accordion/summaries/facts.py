"""Extracts the facts of one message that may be needed again. Each fact is a verbatim piece of the message.

The words of a text that an agent may need again verbatim are facts too: paths, identifiers, ids, numbers, addresses.
One pass of a pattern finds the words that are not plain language; each distinct word is classified once and cached. No
pattern here can backtrack over more than one word, and a word has at most `_MAX_WORD_LENGTH` characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from accordion.archive.passage_index import list_scalars
from accordion.model.conversation import INSTRUCTION_ROLES, Media, Message, Opaque, ToolCall, ToolResult
from accordion.model.words import LETTERS
from accordion.summaries.instructions import Instruction, find_instructions, find_promises, find_system_rules

JsonField = tuple[str, str]
"""The key and the value of a scalar in JSON; key "" if there is none."""

_FOR_ONE_TURN: Final = b'"next_user_message"'
"""The value of `clear_at` (Messages) in a system message that holds for one turn."""
_MAX_JSON_LENGTH: Final = 1_000_000
_MAX_FIELDS: Final = 600
# A line of source code as file readers and grep print it, not an error message.
_GUTTER = re.compile(r"\d+\s*[→|:\t-]|[^\s:]+[:-]\d+[:-](?!\d+:)")
_NUMBERED = re.compile(r"(?:[^\n]{0,300}\n){0,4}? {0,8}\d{1,7}([→|:\t])")
_TAG = re.compile(r"</?[\w:-]{1,40}>")
TROUBLE_WORDS: Final = (
    "error",
    "fail",
    "exception",
    "traceback",
    "panic",
    "fatal",
    "not found",
    "no such",
    "denied",
    "cannot",
    "invalid",
)


class CallFacts(msgspec.Struct, frozen=True):
    """A tool call: its scalar arguments in order, and their words."""

    call_id: str
    name: str
    fields: tuple[JsonField, ...]
    words: ExtractedWords


class ResultFacts(msgspec.Struct, frozen=True):
    """A tool result. `trouble` are lines about errors, `outline` the numbered lines of source code that begin a block,
    `fields` the scalars of a JSON result."""

    call_id: str
    error: bool
    size: int
    lines: int
    first: str
    last: str
    trouble: tuple[str, ...]
    outline: tuple[str, ...]
    fields: tuple[JsonField, ...]
    words: ExtractedWords


class MessageFacts(msgspec.Struct, frozen=True):
    """A message: its author's text, its calls, its results, and its instructions or an assistant's promises."""

    role: str
    text: str
    words: ExtractedWords
    calls: tuple[CallFacts, ...]
    results: tuple[ResultFacts, ...]
    media: tuple[str, ...]
    instructions: tuple[Instruction, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size in bytes, without `text`, which is shared with the message."""
        content_size = sum(c.words.size + 150 * len(c.fields) for c in self.calls)
        content_size += sum(
            r.words.size + 400 + 150 * (len(r.fields) + len(r.trouble) + len(r.outline)) for r in self.results
        )
        content_size += sum(instruction.size for instruction in self.instructions)
        return 400 + self.words.size + content_size


def extract_facts(
    message: Message,
    classifier: WordClassifier,
    find_in_text: Callable[[str], tuple[Instruction, ...]] = find_instructions,
) -> MessageFacts:
    """Extracts the facts of a message, without reasoning. Never raises on odd content.

    `find_in_text` finds the instructions in a user's text.
    """
    text = message.text
    calls = tuple(_extract_call(p, classifier) for p in message.parts if isinstance(p, ToolCall))
    results = tuple(_extract_result(p, classifier) for p in message.parts if isinstance(p, ToolResult))
    media = tuple(_media_label(p) for p in message.parts if isinstance(p, Media | Opaque))
    words = classifier.find_words(text, numbers=True) if text else NO_EXTRACTED_WORDS
    stated: tuple[Instruction, ...] = ()
    if message.role == "user":
        stated = find_in_text(text)
    elif message.role in INSTRUCTION_ROLES and _FOR_ONE_TURN not in message.wire:
        stated = find_system_rules(text)
    elif message.role == "assistant" and not calls:
        # Text before a call announces that call, so it is no promise.
        stated = find_promises(text)
    return MessageFacts(message.role, text, words, calls, results, media, stated)


def _media_label(part: Media | Opaque) -> str:
    return part.kind if isinstance(part, Opaque) else part.media_type or part.kind


def _extract_call(part: ToolCall, classifier: WordClassifier) -> CallFacts:
    fields = _decode_scalars(part.arguments)
    if fields is None:
        fields = (("", part.arguments),) if part.arguments else ()
    return CallFacts(
        part.call_id, part.name, fields, classifier.find_words("\n".join(v for _, v in fields), numbers=True)
    )


def _extract_result(part: ToolResult, classifier: WordClassifier) -> ResultFacts:
    text = part.text
    fields = _decode_scalars(text, only_short=True) if text[:1] in "{[" else ()
    scanned_text = _clip_text(text)
    return ResultFacts(
        part.call_id,
        part.error,
        len(text),
        text.count("\n") + 1 if text else 0,
        _first_meaningful_line(iter(scanned_text[:2000].split("\n"))),
        _first_meaningful_line(reversed(scanned_text[-2000:].split("\n"))),
        () if fields else tuple(dict.fromkeys(find_trouble(scanned_text))),
        () if fields else find_outline(scanned_text),
        fields or (),
        classifier.find_words(scanned_text),
    )


def _first_meaningful_line(candidates: Iterator[str]) -> str:
    """Returns the first line with content: not empty, no lone tag, no ruler."""
    for line in islice(map(str.strip, candidates), 8):
        if 2 < len(line) <= 300 and any(map(str.isalnum, line)) and not _TAG.fullmatch(line):
            return line
    return ""


def _line_at(text: str, start: int, max_length: int = 300) -> str:
    end = text.find("\n", start)
    line = text[start:] if end < 0 else text[start:end]
    return line.strip() if len(line) <= max_length else ""


def find_trouble(text: str, max_lines: int = 6) -> Iterator[str]:
    """Yields up to `max_lines` lines about errors, last ones first, none longer than 300 characters."""
    lowercase_text = text.lower()
    if len(lowercase_text) != len(text):
        return
    hits: set[int] = set()
    for word in TROUBLE_WORDS:
        position = len(lowercase_text)
        for _ in range(8):
            position = lowercase_text.rfind(word, 0, position)
            if position < 0:
                break
            position = lowercase_text.rfind("\n", 0, position) + 1
            hits.add(position)
            if not position:
                break
    for start in sorted(hits, reverse=True)[:max_lines]:
        line = _line_at(text, start)
        if line and not _GUTTER.match(line):
            yield line


def find_outline(text: str, max_lines: int = 80) -> tuple[str, ...]:
    """Finds the unindented lines, and those after a gap, in source code with line numbers."""
    numbered = _NUMBERED.match(text)
    if numbered is None:
        return ()
    sign, rows, has_gap = numbered.group(1), [], False
    for line in text.split("\n"):
        number, separator, code = line.partition(sign)
        if not separator or len(number) > 12:
            continue
        if (has_gap or code[:1].isalpha()) and 8 <= len(code) <= 160 and number.strip().isdigit():
            rows.append(line.strip())
            if len(rows) == max_lines:
                break
        has_gap = not code or code.isspace()
    return tuple(rows)


def _decode_scalars(text: str, only_short: bool = False) -> tuple[JsonField, ...] | None:
    """Lists the scalars of a JSON text; None for other text. `only_short` leaves out long and multi-line strings."""
    if len(text) > _MAX_JSON_LENGTH:
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict | list):
        return None if only_short else (("", text),)
    scalars: list[JsonField] = []
    for field in list_scalars(value):
        if only_short and (len(field[1]) > 200 or "\n" in field[1]):
            continue
        scalars.append(field)
        if len(scalars) >= _MAX_FIELDS:
            break
    return tuple(scalars)


# -- words -------------------------------------------------------------------------------------------------------------

_MAX_WORD_LENGTH: Final = 200
"""Characters. Anything longer is encoded data, not a word."""
_WORD_CLASS_SIZE: Final = 200
"""Bytes of a cached word besides its letters."""
_PLAIN_WORD_SIZE: Final = 110
"""The same for a word that is plain language, which has no class of its own."""
_MAX_WORDS: Final = 4_000
_MAX_LINKS: Final = 500
_HEAD, _TAIL = 160_000, 80_000
"""The characters at the beginning and at the end of a text that are scanned."""

# The characters of words. A word with a letter outside ASCII or a backslash is left out as a whole.
_WORD_CHARACTERS = rf"{LETTERS}A-Za-z0-9_./@+~\\-"
# Most words are plain language: a match skips them up to a word that may be more. The match cannot fail; otherwise the
# engine would retry from each letter of the skipped words.
_NOT_PLAIN_WORD = re.compile(f"(?:[A-Z]?+[a-z]*+[.~+@/-]*+[^{_WORD_CHARACTERS}]++)*+([{_WORD_CHARACTERS}]*+)")
_URL = re.compile(r"https?://[^\s\"'<>()\[\]{}|\\^`\x00-\x1f]{4,400}")
_WINDOWS_PATH = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\[^\s\"'<>|*?:\x00-\x1f]{3,200}")
_IDENTIFIER = re.compile(
    r"_*+(?:[A-Za-z]++_[A-Za-z0-9_]{2,}+|[A-Za-z][a-z0-9]*+[A-Z][A-Za-z0-9]*+)|[0-9][a-z0-9]*+[A-Z][A-Za-z0-9]*+"
)
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_TWO_DIGITS = re.compile(r"[0-9][^0-9]*[0-9]")  # two digits
_CODE = re.compile(r"[A-Z0-9-]*(?:[A-Z][0-9]|[0-9][A-Z])[A-Z0-9-]*")  # capitals with a digit among them
_IDENTIFIER_SIGN = re.compile(r"_|[A-Za-z0-9][A-Z]")  # every identifier matches
_SEPARATOR = re.compile(r"[.~+@-]")
_GREP = re.compile(r"(.+\.[A-Za-z]\w{0,5})-\d+(?:-.*)?")  # a file with the line number of grep's context output
_RANGE = re.compile(r"\d+-(?:\d+|[A-Za-z_.]+)")
_FILE = re.compile(r"[\w-]{2,}\.[a-z][a-z0-9]{0,3}")
_COMMON_PATHS: Final = frozenset(
    {"/dev/null", "/dev/stderr", "/dev/stdout", "/bin/bash", "/bin/sh", "/usr/bin/env", "and/or"}
)

WordClass = tuple[str, tuple[str, ...]]
"""`path`, `id`, `name` or `number` with the word itself; or an empty kind with the identifiers within the word."""
_PLAIN_WORD: Final[WordClass] = ("", ())
_WordSet = dict[str, None]
"""Distinct words of one kind, in order."""


class ExtractedWords(msgspec.Struct, frozen=True):
    """The distinct words of a text, in the order of their first occurrence."""

    paths: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 200 + 70 * (len(self.paths) + len(self.ids) + len(self.names) + 2 * len(self.links))


NO_EXTRACTED_WORDS: Final = ExtractedWords()


def _clip_text(text: str) -> str:
    """Returns the part of a text that is scanned: head and tail of a huge one, cut at line ends if possible."""
    if len(text) <= _HEAD + _TAIL:
        return text
    head, tail = text[:_HEAD], text[-_TAIL:]
    return f"{head[: head.rfind(chr(10)) + 1] or ''}\n{tail[tail.find(chr(10)) + 1 :]}"


class WordClassifier(dict[str, WordClass]):
    """Classifies words, with a cache of `capacity` bytes. Equal words get equal results, so threads may race.

    It is a dict, cleared as a whole when it is full, because a summary looks up thousands of words: a hit must not call
    a method.
    """

    def __init__(self, capacity: int = 8 * 2**20) -> None:
        super().__init__()
        self._capacity, self._size = capacity, 0

    def __missing__(self, word: str) -> WordClass:
        if len(word) > _MAX_WORD_LENGTH:
            return _PLAIN_WORD
        word_class = _classify(word)
        size = _PLAIN_WORD_SIZE + len(word) if word_class is _PLAIN_WORD else _WORD_CLASS_SIZE + 2 * len(word)
        if self._size + size > self._capacity:
            self.clear()
            self._size = 0
        self[word] = word_class
        self._size += size
        return word_class

    def find_words(self, text: str, numbers: bool = False) -> ExtractedWords:
        """Finds the words of a text, up to some thousands of distinct ones.

        Numbers of four digits and words that end in a digit count only with `numbers`: in tool results most are line
        numbers and variables.
        """
        text = _clip_text(text)
        if not text:
            return NO_EXTRACTED_WORDS
        paths, ids, names, links = self._scan(text, numbers)
        return ExtractedWords(
            tuple(paths)[:_MAX_WORDS], tuple(ids)[:_MAX_WORDS], tuple(names)[:_MAX_WORDS], tuple(links)[:_MAX_LINKS]
        )

    def _scan(self, text: str, numbers: bool) -> tuple[_WordSet, _WordSet, _WordSet, _WordSet]:
        """Returns paths, ids, names and links."""
        paths: _WordSet = {}
        ids: _WordSet = {}
        names: _WordSet = {}
        words_by_kind = {"path": paths, "id": ids, "name": names, "number": ids if numbers else {}}
        # A closing tag is no path.
        for kind, words in map(self.__getitem__, dict.fromkeys(_NOT_PLAIN_WORD.findall(text.replace("</", "<")))):
            if kind:
                words_by_kind[kind][words[0]] = None
            else:
                for word in words:
                    names[word] = None
        return paths, ids, names, _find_links(text) if "://" in text or ":\\" in text else {}


def _find_links(text: str) -> _WordSet:
    links: _WordSet = {}
    if "://" in text:
        links.update((match.group().rstrip(".,;:!?*"), None) for match in _URL.finditer(text))
    if ":\\" in text:
        links.update((match.group().rstrip(".,;"), None) for match in _WINDOWS_PATH.finditer(text))
    return links


def _classify(raw: str) -> WordClass:
    if len(raw) < 4 or "\\" in raw or not raw.isascii():
        return _PLAIN_WORD
    word = raw.rstrip(".-+~@/").lstrip("+@")
    if len(word) < 4:
        return _PLAIN_WORD
    if "/" in word:
        return _classify_path(word)
    if _DIGIT.search(word) and (word_class := _classify_id(word)) is not None:
        return word_class
    if "@" in word:
        return ("id", (word,)) if "." in word else _PLAIN_WORD
    names = _find_identifiers(word)
    if not names:
        return _PLAIN_WORD
    return "", (word,) if "." in word and _FILE.fullmatch(word) else names


def _classify_path(word: str) -> WordClass:
    word = word.lstrip("-")
    if "-" in word and (context := _GREP.fullmatch(word)) is not None:
        word = context.group(1)
    if word in _COMMON_PATHS or "//" in word or len(word) < 5 or word == word.upper():
        return _PLAIN_WORD
    if word[0] in "/~." or "_" in word or word.count("/") >= 2 or "." in word.rsplit("/", 1)[-1]:
        return "path", (word,)
    return "name", (word,)


def _classify_id(word: str) -> WordClass | None:
    """Classifies a word with digits. An id mixes letters and digits, or is a long number, date or version."""
    core = word.strip("-._~+")
    if core.isdigit():
        return ("number" if len(core) < 5 else "id", (core,)) if 4 <= len(core) <= 40 else _PLAIN_WORD
    if _RANGE.fullmatch(core):
        return _PLAIN_WORD
    if len(core) < 6:
        return None
    if not _LETTER.search(core):
        return ("id", (core,)) if len(_DIGIT.findall(core)) >= 4 else _PLAIN_WORD
    if "." in core and "@" not in core and "-" not in core:
        return None
    if _TWO_DIGITS.search(core) or _CODE.fullmatch(core):
        return "id", (core,)
    return ("number", (core,)) if core.isalnum() else None


def _find_identifiers(word: str) -> tuple[str, ...]:
    if not _IDENTIFIER_SIGN.search(word):
        return ()
    parts = [part for part in _SEPARATOR.split(word) if len(part) >= 5 and not (part.isalpha() and part.isupper())]
    return tuple(filter(_IDENTIFIER.fullmatch, parts))
