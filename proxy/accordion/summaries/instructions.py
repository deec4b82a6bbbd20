"""Standing instructions: what users ruled, asked for, preferred, corrected or stated, verbatim, first in every summary.

A rule does not age: it holds until the user changes it. So these sentences are picked by their form, never by how old
they are, and no model may leave one out or reword it: the section is written by rules, whoever writes the rest.

Form tells a rule apart from a remark: modal verbs, negation, words such as "only" and "instead", imperative openings,
corrections. A sentence that states particulars (an amount, a date, a name, an address) ranks below a rule. The words
are those of English, German, French, Spanish, Portuguese, Italian, Dutch, Russian, Chinese, Japanese and Korean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from accordion.core.values import dataclass

TITLE: Final = "Standing instructions of the user"

RULE: Final = 2
"""The rank of a sentence that governs what follows."""
STATEMENT: Final = 1
"""The rank of a sentence that states particulars."""

_LONGEST: Final = 600
"""Characters of a sentence. A longer one is a document, not an instruction."""
_SHORT_LINE: Final = 240
"""Characters up to which a line stays whole, since its sentences explain each other."""
_EDGE: Final = 12
"""Lines at the beginning and at the end of a long text that are read: what is between them is pasted material."""
_MOST: Final = 48
"""Instructions of one message."""
_NAMED: Final = 3
"""Earlier messages that a note on an instruction names."""
_LISTED: Final = 8
"""Messages that the line about omitted instructions names."""

_MODALS: Final = (
    # English
    r"never|always|must(?:n['’]t)?|shall|should(?:n['’]t)?|do(?:es)? not|do(?:es)?n['’]t|cannot|can['’]t|may not|"
    r"needs? to|have to|has to|only|avoid|ensure|make sure|insist|requires?|required|prefer(?:s|red|ably)?|wants?|"
    r"would like|rather than|instead|no longer|from now on|going forward|at (?:most|least)|up to|until|unless|without|"
    r"no (?:more|less|later|sooner|earlier|fewer) than|limit(?:ed)?|cap(?:ped)?|budget|deadline|due|(?:not )?allowed|"
    r"forbidden|prohibited|permitted|off[- ]limits|mandatory|exclud(?:e|ing)|except|approv(?:al|ed?)|consent|please|"
    r"remember|important|correction|actually|scratch that|changed? (?:to|my mind)|decided|decision|agreed|"
    r"let['’]s (?:use|go|keep|stick)|next step|waiting (?:for|on)|awaiting|blocked|open question|to-?do|"
    # German
    r"nie(?:mals)?|immer|muss|müssen|musst|darf|dürfen|darfst|soll(?:te|ten|en|st)?|nicht|kein(?:e|en|em|er)?|nur|"
    r"bitte|statt(?:dessen)?|ab (?:jetzt|sofort)|höchstens|mindestens|bevorzug\w*|lieber|ohne|verboten|erlaubt|"
    # French
    r"jamais|toujours|doi(?:t|s|vent)|devez|devons|ne\b.{1,40}?\bpas|il faut|interdit|uniquement|seulement|"
    r"préfèr\w*|préférer?|au plus|au moins|désormais|plutôt|au lieu|sans|veuillez|s['’]il (?:te|vous) plaît|"
    # Spanish and Portuguese
    r"nunca|siempre|sempre|debe(?:n|s|mos)?|deve(?:m|mos)?|solo|sólo|solamente|apenas|somente|prohibid\w*|"
    r"proibid\w*|prefier\w*|prefir\w*|en (?:lugar|vez)|em vez|a partir de (?:ahora|agora|hoy|hoje)|(?:como|no) máximo|"
    r"(?:al|ao|pelo) menos|não|sin|sem|por favor|"
    # Italian and Dutch
    r"mai|devono|devi|non|soltanto|vietat\w*|preferisc\w*|invece|d['’]ora in poi|al massimo|almeno|per favore|"
    r"nooit|altijd|moet(?:en)?|mag niet|mogen niet|geen|alleen|liever|voortaan|in plaats van|hoogstens|minstens|graag|"
    # Russian
    r"никогда|всегда|нельзя|долж\w+|не|только|предпочита\w*|вместо|отныне|запрещ\w*|пожалуйста|обязательно"
)
_FORM = re.compile(rf"(?<!\w)(?:{_MODALS})(?!\w)", re.IGNORECASE)
_FORM_EAST_ASIA = re.compile(
    "不要|不得|必须|必須|禁止|永远|始终|只能|不能|不可|务必|请|优先|優先|改为|改成|从现在起|以后|"
    "ないで|ください|べき|必ず|決して|常に|だけ|今後|しない|ではなく|"
    "하지 ?마|반드시|금지|절대|항상|해야|하세요|해 ?주세요|앞으로|대신"
)
_IMPERATIVES: Final = frozenset(
    {
        *("use", "run", "write", "add", "remove", "delete", "fix", "report", "send", "ask", "tell", "check"),
        *("include", "leave", "make", "put", "set", "show", "name", "call", "create", "update", "change"),
        *("replace", "rename", "move", "install", "test", "verify", "read", "open", "close", "start", "begin"),
        *("end", "follow", "give", "take", "treat", "assume", "answer", "reply", "respond", "return", "format"),
        *("print", "log", "store", "save", "commit", "push", "merge", "revert", "deploy", "escalate", "notify"),
        *("confirm", "wait", "skip", "ignore", "focus", "limit", "exclude", "prioritize", "document", "list"),
        *("explain", "keep", "stop", "no", "not"),
    }
)
_CHANGE = re.compile(
    r"(?<!\w)(?:instead|no longer|from now on|going forward|changed?|moved|raised|lowered|extended|updated?|correction|"
    r"actually|scratch that|rather|now|stattdessen|statt|ab (?:jetzt|sofort)|nicht mehr|désormais|plutôt|au lieu|"
    r"en (?:lugar|vez)|em vez|a partir de (?:ahora|agora)|invece|d['’]ora in poi|voortaan|in plaats van|вместо|отныне|"
    r"теперь)(?!\w)|改为|改成|从现在起|今後|ではなく|앞으로|대신|"
    r"^(?:no|wait|sorry|nein|non|нет)\b[,.:;–— ]|^(?:不|いいえ|아니)",
    re.IGNORECASE,
)
_FIGURE = re.compile(r"[$€£¥]\s?\d[\d.,]*|\d{4}-\d\d-\d\d|\d[\d.,:]*\s?%?")
_PARTICULAR = re.compile(
    r"[$€£¥]\s?\d|\d\s?[%€$]|\d{2,}|\d\.\d|https?://|(?<=[a-z,;:] )[A-Z][\w-]+|\b[A-Z]{2,}[\w-]*\d|"
    r"\b\w+[-_/.]\w*\d|[\"“`«][^\"”`»\n]{2,60}[\"”`»]"
)
_COPULA = re.compile(
    r"\s(?:is|are|was|will be|ist|sind|est|sont|es|son|é|são|è|sono|—|=)\s|: |是|は|은 |는 ", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”')\]]?\s+(?=[^\W\d_a-z]|[\"“(¿¡])|(?<=[。！？])\s*")
_BULLET = re.compile(r"^(?:[-*•+]|\d{1,3}[.)])\s+")
_WORD = re.compile(r"[^\W_]+")
_NOT_PROSE = re.compile(
    r"^(?:[<>|$#{}\[\]]|//|/\*|\w+\s*=\s|(?:def|class|import|from|return|if|for)\s.*[:;({]?$)|[;{}]$|\t|  {4,}"
)
_COMMON: Final = frozenset(
    {
        *("a", "an", "the", "and", "or", "for", "to", "of", "in", "on", "at", "by", "with", "that", "this", "it"),
        *("there", "he", "she", "they", "we", "i", "is", "are", "be", "this", "from", "was", "has", "have", "had"),
        *("not", "but", "you", "your", "our", "its", "all", "any", "use", "used", "using", "please", "must"),
        *("should", "shall", "will", "would", "can", "never", "always", "only", "when", "then", "than", "into"),
        *("onto", "over", "under", "also", "now", "new", "who", "what", "which", "s", "t"),
    }
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A sentence of a user, verbatim. `rank` is RULE or STATEMENT; `words` name what it is about, figures left out;
    `subject` is what stands before "is"; `is_change`: it says that something is different from now on."""

    text: str
    rank: int
    words: frozenset[str]
    subject: frozenset[str]
    is_change: bool

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, roughly."""
        return 400 + 80 * len(self.words)


@dataclass(frozen=True, slots=True)
class Cited:
    """An instruction, the client's index of its message, and the indexes of the messages that it replaces or may
    contradict."""

    index: int
    instruction: Instruction
    replaces: tuple[int, ...] = ()
    newer_than: tuple[int, ...] = ()

    def __str__(self) -> str:
        notes = [
            f"({word} {', '.join(f'[{index}]' for index in indexes[-_NAMED:])})"
            for word, indexes in (("replaces", self.replaces), ("newer than", self.newer_than))
            if indexes
        ]
        return " ".join([f"[{self.index}] {self.instruction.text}", *notes])


def instructions_of(text: str) -> tuple[Instruction, ...]:
    """The instructions and statements of one text of a user's, in order."""
    found: list[Instruction] = []
    for sentence in _sentences(text):
        if rank := max(map(_rank, _SENTENCE_END.split(sentence)), default=0):
            found.append(_instruction(sentence, rank))
            if len(found) == _MOST:
                break
    return tuple(found)


def standing(stated: Iterable[tuple[int, Instruction]], visible: Callable[[str], bool]) -> list[Cited]:
    """The instructions in force, in the order in which they were given, each once.

    An instruction on the same subject replaces the earlier one. Where it only may, both stand and the newer says so.
    `visible` tells whether a text stands in the messages that are kept anyway.
    """
    found: list[Cited] = []
    for index, instruction in stated:
        same = [each for each in found if replaces(instruction, each.instruction)]
        near = [
            each
            for each in found
            if each not in same and instruction.is_change and _are_near(instruction, each.instruction)
        ]
        found = [each for each in found if each not in same]
        replaced = sorted({each.index for each in same if each.instruction.text != instruction.text})
        found.append(Cited(index, instruction, tuple(replaced), tuple(each.index for each in near)))
    return [each for each in found if not visible(each.instruction.text)]


def render(found: Sequence[Cited], budget: int, count: Callable[[str], int]) -> tuple[str, frozenset[str]]:
    """The section with the instructions that fit into `budget` tokens of `count`, and the texts that it holds.

    Rules go before statements, newer ones before older ones, so that an old instruction never stands without the newer
    one that may contradict it. A last line names the messages of what is left out.
    """
    if not found or budget <= 0:
        return "", frozenset()
    low, high = 0, len(found)
    order = sorted(found, key=lambda each: (-each.instruction.rank, -each.index))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(_section(found, order[:middle])) <= budget else (low, middle - 1)
    chosen = order[:low]
    return (
        (_section(found, chosen), frozenset(each.instruction.text for each in chosen)) if chosen else ("", frozenset())
    )


def replaces(later: Instruction, earlier: Instruction) -> bool:
    """Whether `later` says what `earlier` says with other particulars."""
    if later.text == earlier.text:
        return True
    if later.subject and later.subject == earlier.subject:
        return True
    return len(later.words) > 2 and later.words == earlier.words


def _section(found: Sequence[Cited], chosen: Sequence[Cited]) -> str:
    lines = [f"## {TITLE}", *map(str, sorted(chosen, key=lambda each: each.index))]
    left = sorted({each.index for each in found} - {each.index for each in chosen})
    if left:
        named = ", ".join(map(str, left[-_LISTED:]))
        more = f"{len(left) - _LISTED} older ones and " if len(left) > _LISTED else ""
        lines.append(f"(There was no room for those in messages {more}{named}; read_artifact has them.)")
    return "\n".join(lines)


def _are_near(one: Instruction, other: Instruction) -> bool:
    common = len(one.words & other.words)
    return common >= 2 and common * 2 >= min(len(one.words), len(other.words))


def _sentences(text: str) -> Iterator[str]:
    for line in _prose(text):
        if len(line) <= _SHORT_LINE:
            yield line
        else:
            yield from (part for each in _SENTENCE_END.split(line) if 8 <= len(part := each.strip()) <= _LONGEST)


def _prose(text: str) -> Iterator[str]:
    lines = text.split("\n")
    if len(lines) > 4 * _EDGE:
        lines = [*lines[:_EDGE], *lines[-_EDGE:]]
    fenced = False
    for line in lines:
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        elif not fenced and len(bare) >= 8 and not _NOT_PROSE.search(bare) and not _is_indented(line, bare):
            yield bare


def _is_indented(line: str, bare: str) -> bool:
    """Whether a line is indented like code: a point of a list may be."""
    return (
        line[:1] in " \t"
        and not _BULLET.match(bare)
        and len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip()) >= 4
    )


def _rank(sentence: str) -> int:
    bare = _BULLET.sub("", sentence)
    first = _WORD.search(bare)
    if first is not None and first.group().lower() in _IMPERATIVES:
        return RULE
    if _FORM.search(bare) or _FORM_EAST_ASIA.search(bare) or _CHANGE.search(bare):
        return RULE
    return STATEMENT if _PARTICULAR.search(bare) else 0


def _instruction(sentence: str, rank: int) -> Instruction:
    copula = _COPULA.search(sentence)
    # Up to the last colon in front of "is" stands a heading such as "Note:".
    while copula is not None and copula.group().strip() == ":" and (after := _COPULA.search(sentence, copula.end())):
        copula = after
    before = sentence[: copula.start()] if copula is not None and copula.group().strip() != ":" else ""
    return Instruction(sentence, rank, _words(sentence), _words(before), _CHANGE.search(sentence) is not None)


def _words(text: str) -> frozenset[str]:
    found = map(str.lower, _WORD.findall(_FIGURE.sub(" ", text)))
    return frozenset(found) - _COMMON
