"""Words of texts in many languages: those that carry a text's subject, and the characters that words consist of."""

from __future__ import annotations

import re
from typing import Final

EAST_ASIA: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Chinese, Japanese and Korean characters, in the syntax of a character class."""

# Latin, Greek and Cyrillic letters stay, so that no word is cut in the middle; any other character ends a word.
LETTERS = "\u00c0-\u024f\u0370-\u04ff"
"""Letters outside ASCII, in the syntax of a character class."""
_LETTER = re.compile(f"[{LETTERS}]")
_FOREIGN = re.compile(f"[^\x00-\x7f{LETTERS}]+")
_ASCII = bytes(range(128))

_WORD = re.compile(r"[^\W_]+")
_EAST_ASIAN_RUN = re.compile(f"[{EAST_ASIA}]+")
_STEM: Final = 4
"""The number of letters by which words are compared without their endings."""
_STOP_WORDS: Final = frozenset(
    {
        *("a", "an", "the", "and", "or", "for", "to", "of", "in", "on", "at", "by", "with", "that", "this", "it"),
        *("there", "he", "she", "they", "we", "i", "is", "are", "be", "this", "from", "was", "has", "have", "had"),
        *("not", "but", "you", "your", "our", "its", "all", "any", "use", "used", "using", "please", "must"),
        *("should", "shall", "will", "would", "can", "never", "always", "only", "when", "then", "than", "into"),
        *(
            "onto",
            "over",
            "under",
            "also",
            "now",
            "new",
            "who",
            "what",
            "which",
            "s",
            "t",
            "d",
            "m",
            "ll",
            "re",
            "ve",
            "do",
            "does",
            "don",
            "no",
        ),
        *(
            "me",
            "my",
            "if",
            "as",
            "so",
            "go",
            "ahead",
            "yes",
            "sure",
            "like",
            "need",
            "want",
            "thank",
            "thanks",
            "help",
        ),
        *("no", "if", "how", "much", "that", "these", "those", "them", "there", "here", "ok", "okay", "just", "get"),
        *("der", "die", "das", "den", "dem", "ein", "eine", "einen", "und", "oder", "für", "von", "zu", "im", "am"),
        *("mit", "ist", "sind", "wir", "ich", "du", "es", "auf", "nicht", "nie", "niemals", "kein", "keine", "bitte"),
        *("le", "la", "les", "un", "une", "des", "du", "de", "et", "ou", "pour", "dans", "en", "sur", "avec", "est"),
        *("ne", "pas", "il", "jamais", "el", "los", "las", "una", "y", "o", "por", "para", "con", "es", "son", "del"),
        *("al", "nunca", "siempre", "sin", "que", "se", "os", "um", "uma", "não", "e", "di", "il", "non", "het", "een"),
        *("не", "и", "в", "на", "для", "不要", "必须", "禁止", "请使", "使用", "不能", "只能"),
    }
)


def words_of(text: str) -> frozenset[str]:
    """Returns the words of a text in lower case, without stop words.

    Chinese, Japanese and Korean text is split into pairs of characters.
    """
    if text.isascii():
        return frozenset(_WORD.findall(text.lower())) - _STOP_WORDS
    words: set[str] = set()
    for word in map(str.lower, _WORD.findall(text)):
        if word.isascii():
            words.add(word)
            continue
        for run in _EAST_ASIAN_RUN.findall(word):
            words.update(run[start : start + 2] for start in range(max(1, len(run) - 1)))
        words.update(_WORD.findall(_EAST_ASIAN_RUN.sub(" ", word)))
    return frozenset(words) - _STOP_WORDS


def stems_of(text: str) -> frozenset[str]:
    """Returns the words without endings: the first letters of each word; words with digits stay whole."""
    return frozenset(word[:_STEM] if word.isalpha() else word for word in words_of(text))


def mask_symbols(text: str) -> str:
    """Replaces each character that is neither ASCII nor one of `LETTERS` by a question mark."""
    if text.isascii():
        return text
    # Besides ASCII, most texts have only dashes and quotation marks. That is found without a search of the whole text.
    other_characters = text.encode("utf-8", "replace").translate(None, _ASCII).decode()
    if _LETTER.search(other_characters) is None:
        return text.encode("ascii", "replace").decode()
    return _FOREIGN.sub("?", text)
