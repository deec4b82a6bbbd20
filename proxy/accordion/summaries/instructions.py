"""Standing instructions: what users ruled, asked for, preferred, corrected or stated, verbatim, first in every summary.

A rule does not age: it holds until the user changes it. So these sentences are picked by their form, never by how old
they are, and no model may leave one out or reword it: the section is written by rules, whoever writes the rest.

Form tells a rule apart from a remark: modal verbs, negation, words such as "only" and "instead", imperative openings,
corrections. A rule that is to last ranks above what somebody asks for now, and this above a sentence that only states
particulars (an amount, a date, a name, an address). The words
are those of English, German, French, Spanish, Portuguese, Italian, Dutch, Russian, Chinese, Japanese and Korean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from accordion.core.subjects import EAST_ASIA, words_of
from accordion.core.values import dataclass, replace
from accordion.summaries.schema import citations

TITLE: Final = "Standing instructions of the user"
OPENING: Final = "[Record of message"
"""What every summary begins with."""

RULE: Final = 4
"""The rank of a sentence that governs what follows: it says never, always, only, at most, from now on, decided."""
FACT: Final = 3
"""The rank of a short sentence that says what something is."""
REQUEST: Final = 2
"""The rank of a sentence that asks for something now."""
STATEMENT: Final = 1
"""The rank of a sentence that states other particulars, and of a question."""
_CORRECTION: Final = 5
"""The priority of a correction of what stands elsewhere in the window."""

_LONGEST: Final = 600
"""Characters of a sentence. A longer one is a document, not an instruction."""
WHOLE: Final = 240
"""Characters up to which a line stays whole, since its sentences explain each other."""
_EDGE: Final = 12
"""Lines at the beginning and at the end of a long text that are read: what is between them is pasted material."""
_BRIEF: Final = 120
"""Characters of a short sentence."""
_MOST: Final = 48
"""Instructions of one message."""
_NAMED: Final = 3
"""Earlier messages that a note on an instruction names."""
_RUNS: Final = 12
"""Runs of messages that the line about omitted instructions names; of more it names the first and the last message."""
_NARROW: Final = 160
"""Tokens of a section in which no artifacts are named."""
_ARTIFACTS: Final = 6
"""Artifacts that it names."""

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
_LASTING = re.compile(
    r"(?<!\w)(?:never|always|must(?:n['’]t)?|shall|only|prefer(?:s|red|ably)?|from now on|going forward|no longer|"
    r"at (?:most|least)|up to|(?:no|not) (?:more|less|later|sooner|earlier|fewer) than|limit(?:ed)?|cap(?:ped)?|budget|"
    r"deadline|forbidden|prohibited|(?:not )?allowed|off[- ]limits|mandatory|insist|every|each time|unless|without|"
    r"decided|decision|agreed|do(?:es)? not|do(?:es)?n['’]t (?=\w+ (?:the|any|to|me|us|it|this|that))|"
    r"nie(?:mals)?|immer|muss|müssen|darf|dürfen|nur|ab (?:jetzt|sofort)|höchstens|mindestens|bevorzug\w*|lieber|"
    r"jede[mnrs]?|verboten|erlaubt|entschieden|beschlossen|stattdessen|keinesfalls|"
    r"jamais|toujours|doi(?:t|vent)|il (?:ne )?faut|interdit|uniquement|seulement|préfèr\w*|préférer?|"
    r"au (?:plus|moins)|désormais|dorénavant|décidé|chaque|"
    r"nunca|siempre|sempre|debe(?:n|mos)?|deve(?:m|mos)?|s[oó]lo|solamente|apenas|somente|prohibid\w*|proibid\w*|"
    r"prefier\w*|prefir\w*|a partir de (?:ahora|agora|hoy|hoje)|(?:como|no) máximo|(?:al|ao|pelo) menos|decidido|cada|"
    r"sin permiso|no (?:envíes|uses|toques|borres|cambies)|"
    r"mai|devono|soltanto|vietat\w*|preferisc\w*|d['’]ora in poi|al massimo|almeno|deciso|"
    r"nooit|altijd|moet(?:en)?|mag niet|mogen niet|alleen|liever|voortaan|hoogstens|minstens|besloten|"
    r"никогда|всегда|нельзя|долж\w+|только|предпочита\w*|отныне|запрещ\w*|обязательно|решили)(?!\w)|"
    "不要|不得|必须|必須|禁止|永远|始终|只能|不可|务必|优先|優先|改为|改成|从现在起|以后|最多|最少|决定|決定|"
    "ないで|べき|必ず|決して|常に|だけ|今後|ではなく|하지 ?마|지 ?마|반드시|금지|절대|항상|앞으로|결정",
    re.IGNORECASE,
)
"""What a rule is told by that is to last, beside what asks for something now."""
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
    r"(?<!\w)(?:instead|no longer|not any ?more|from now on|going forward|changed?|moved|raised|lowered|extended|"
    r"updated?|correction|actually|scratch that|rather|now|change of plans?|"
    r"stattdessen|statt|ab (?:jetzt|sofort)|nicht mehr|doch|korrektur|geändert|nun|jetzt|"
    r"désormais|dorénavant|plutôt|au lieu|à la place|finalement|en fait|maintenant|"
    r"en (?:lugar|vez)|em vez|a partir de (?:ahora|agora)|ya no|mejor|corrección|en realidad|ahora|agora|na verdade|"
    r"invece|d['’]ora in poi|anzi|voortaan|in plaats van|toch|вместо|отныне|теперь|лучше)(?!\w)|"
    r"改为|改成|改用|换成|不再|而不是|更正|其实|从现在起|现在|今後|ではなく|代わりに|訂正|앞으로|대신|정정|"
    r"^(?:no|wait|sorry|nein|moment|non|нет)\b[,.:;–— ]|^(?:不[对是]?|いいえ|아니요?)",
    re.IGNORECASE,
)
_CORRECTS = re.compile(
    r"(?<!\w)(?:correction|scratch that|change of plans?|i was wrong|my mistake|instead|stattdessen|korrektur|au lieu|"
    r"plutôt|à la place|en lugar|en vez|mejor|corrección|em vez|correção|invece|anzi|"
    r"in plaats|вместо|исправление)(?!\w)|"
    r"更正|改为|改成|改用|换成|而不是|訂正|代わりに|ではなく|정정|대신|"
    r"^(?:no|wait|actually|nein|doch|moment|non|en fait|en realidad|нет)\b[,.:;–— ]|^(?:不对|不是|いいえ|아니)",
    re.IGNORECASE,
)
"""What corrects something, whether or not it names it."""
_FIGURE = re.compile(r"[$€£¥]\s?\d[\d.,]*|\d{4}-\d\d-\d\d|\d[\d.,:]*\s?%?")
_VALUE_SIGN = re.compile(r"[$€£¥%:]|\d[.,]\d|\d{4}-\d\d-\d\d")
_UNIT = re.compile(
    r"\s?(?:(?:euros?|eur|usd|dollars?|dollari|francs?|pounds?|percent|prozent|pour ?cent|por ?ciento|ms|"
    r"mil(?:l?i)?se[ckg]\w*|se[ckg]\w*|min\w*|hours?|stunden?|heures?|horas?|ore|uur|days?|tagen?|tage|jours?|d[ií]as|"
    r"giorni|dagen|weeks?|wochen?|semaines?|semanas|months?|monate?|mois|mes(?:es)?|words?|wörter|mots|palabras|lines?|"
    r"zeilen|lignes|l[ií]neas|sentences?|sätze|phrases|frases|tokens?|retries|[kmgt]i?b|people|personen|руб\w*|дн\w*|"
    r"час\w*)(?!\w)|欧元|美元|[元万円원]|毫秒|秒|分钟|分|小时|時間|시간|天|日|일|行|字|句|人|명)",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"(?<!\w)(?:at (?:most|least)|up to|within|exceed|(?:no|not) (?:more|less|later|fewer) than|cap|limit|budget|"
    r"deadline|maximum|minimum|höchstens|mindestens|maximal|au (?:plus|moins)|máximo|menos|al massimo|almeno|"
    r"hoogstens|minstens|не более|не менее)(?: (?:is|of|to|at|von|de|der|las|les))*\s*$|"
    "(?:不得?超过|最多|最少|至少|上限[是为]?|최대|最大)\\s*$",
    re.IGNORECASE,
)
"""What a figure that is a value stands behind."""
_NEARBY: Final = 40
_NEGATION = re.compile(
    r"(?<!\w)(?:never|not|no|don['’]t|doesn['’]t|mustn['’]t|can['’]t|cannot|without|avoid|forbidden|prohibited|"
    r"nie|niemals|nicht|keine?[mnrs]?|ohne|verboten|jamais|pas|sans|interdit|nunca|no|sin|prohibid\w*|não|sem|"
    r"non|mai|senza|vietat\w*|nooit|niet|geen|никогда|не|нельзя)(?!\w)|不|禁止|勿|ない|で?すな|금지|마세요|지 ?마",
    re.IGNORECASE,
)
_PARTICULAR = re.compile(
    r"[$€£¥]\s?\d|\d\s?[%€$]|\d{2,}|\d\.\d|https?://|(?<=[a-z,;:] )[A-Z][\w-]+|"
    rf"[{EAST_ASIA}] ?[A-Z][A-Za-z]{{2,}}|"
    r"\b[A-Z]{2,}[\w-]*\d|"
    r"\b\w+[-_/.]\w*\d|[\"“`«][^\"”`»\n]{2,60}[\"”`»]"
)
_COPULA = re.compile(
    r"\s(?:is|are|was|will be|ist|sind|heißt|lautet|est|sont|es|son|é|são|è|sono|—|=)\s|: |是|は|은 |는 ",
    re.IGNORECASE,
)
_VALUE = re.compile(r"\d|[\"“`«]|(?:^|\s)[A-Z]|^[^\W_a-z]{1,12}[。.]?$")
"""What names something, behind "is": a figure, a name, a quotation."""
_VALUE_WORDS: Final = 8
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”')\]]?\s+(?=[^\W\d_a-z]|[\"“(¿¡])|(?<=[。！？])\s*")
_REFERENCE = re.compile(r"^\[\d+-\d+\] whole as art_\w+.*$", re.MULTILINE)
_INDEX = re.compile(r"^\[\d+\] ")
_NOTES = re.compile(r"(?: \((?:replaces|newer than|older than) \[\d+\](?:, \[\d+\])*\))+$")
_BULLET = re.compile(r"^(?:[-*•+]|\d{1,3}[.)])\s+")
_WORD = re.compile(r"[^\W_]+")
_EAST_ASIA = re.compile(f"[{EAST_ASIA}]+")
_NOT_PROSE = re.compile(
    r"^(?:[<>|$#{}\[\]]|//|/\*|\w+\s*=\s|(?:def|class|import|from|return|if|for)\s.*[:;({]?$)|[;{}]$|\t|  {4,}"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one sentence is about, for comparing it with others.

    `words` leave figures out; `figures` are in order, each with whether it is a value (an amount, a limit, a date).
    `subject` is what stands before "is", and `has_value` tells whether a value stands behind it. `stem` is all but the
    last word.
    """

    words: frozenset[str]
    figures: tuple[tuple[str, bool], ...]
    subject: frozenset[str]
    has_value: bool
    stem: frozenset[str]
    is_negative: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """A line or a sentence of a user, verbatim. `rank` is RULE or STATEMENT; `claims` has one for each sentence;
    `is_change`: it says that something is different from now on, and `is_correction` that something was wrong."""

    text: str
    rank: int
    claims: tuple[Claim, ...]
    is_change: bool
    is_correction: bool

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, roughly."""
        return 400 + sum(600 + 80 * (2 * len(each.words) + len(each.figures)) for each in self.claims)

    @property
    def words(self) -> frozenset[str]:
        """The words that tell what it is about."""
        return frozenset().union(*(claim.words for claim in self.claims))


@dataclass(frozen=True, slots=True)
class Cited:
    """An instruction, the client's index of its message, and the indexes of the messages that it replaces or may
    contradict. `older_than` names those of them that are newer and stand elsewhere in the window. What has the highest
    `priority` is listed first where room is short."""

    index: int
    instruction: Instruction
    replaces: tuple[int, ...] = ()
    newer_than: tuple[int, ...] = ()
    older_than: tuple[int, ...] = ()
    priority: int = 0

    def __str__(self) -> str:
        notes = [
            f"({word} {', '.join(f'[{index}]' for index in indexes[-_NAMED:])})"
            for word, indexes in (
                ("replaces", self.replaces),
                ("newer than", self.newer_than),
                ("older than", self.older_than),
            )
            if indexes
        ]
        return " ".join([f"[{self.index}] {self.instruction.text}", *notes])


Outdated = tuple[tuple[int, Instruction], ...]
"""Instructions with the indexes of their messages."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The instructions to be listed, in the order in which they were given, and those that a newer one replaces or may
    contradict, with the indexes of their messages: nothing else may tell of these."""

    cited: tuple[Cited, ...] = ()
    outdated: Outdated = ()


def instructions_of(text: str) -> tuple[Instruction, ...]:
    """The instructions and statements of one text of a user's, in order; those that a summary in it lists included."""
    found: list[Instruction] = []
    before, listed, behind = _parted(text)
    for sentence in chain(_sentences(before), listed, _sentences(behind)):
        rank = max(map(_rank, _SENTENCE_END.split(sentence)), default=0)
        if rank or sentence in listed:
            found.append(_instruction(sentence, rank or STATEMENT))
            if len(found) >= _MOST + len(listed):
                break
    return tuple(found)


def standing(stated: Iterable[tuple[int, Instruction]], is_listed: Callable[[int, str], bool]) -> Standing:
    """The instructions in force, each once, as far as `is_listed` says so of the index of a message and a text.

    An instruction on the same subject replaces the earlier one. Where it only may, both stand and the newer says so.
    Those that are not listed stand elsewhere in the window, and count like the others.
    """
    register, found = _Register(), dict[int, Cited]()
    outdated: dict[int, tuple[int, Instruction]] = {}
    for place, (index, instruction) in enumerate(stated):
        listed = is_listed(index, instruction.text)
        # Of long ones few would fit.
        priority = instruction.rank - (len(instruction.text) > _BRIEF)
        replaced, newer_than = set[int](), set[int]()
        for at in register.related(instruction):
            each = found.get(at)
            if each is None:
                continue
            if replaces(instruction, each.instruction):
                del found[at]
                targets = replaced
            elif may_replace(instruction, each.instruction):
                targets = newer_than
                if not listed:
                    found[at] = replace(each, older_than=(*each.older_than, index))
            else:
                continue
            if each.instruction.text != instruction.text:
                targets.add(each.index)
                outdated[at] = (each.index, each.instruction)
                priority = max(priority, each.priority)
                if not is_listed(each.index, each.instruction.text):
                    priority = _CORRECTION
        found[place] = Cited(index, instruction, tuple(sorted(replaced)), tuple(sorted(newer_than)), priority=priority)
        register.add(place, instruction)
    in_force = {each.instruction.text for place, each in found.items() if place not in outdated}
    cited = tuple(each for each in found.values() if is_listed(each.index, each.instruction.text))
    return Standing(cited, tuple(pair for pair in outdated.values() if pair[1].text not in in_force))


def render(
    found: Sequence[Cited], budget: int, count: Callable[[str], int], artifact: Callable[[int], str] | None = None
) -> tuple[str, frozenset[str]]:
    """The section with the instructions that fit into `budget` tokens of `count`, and the texts that it holds.

    Corrections of what stands elsewhere in the window go first, then rules, then statements, newer ones before older
    ones, so that an old instruction never stands without the newer one that may contradict it. A last line names the
    messages of what is left out, and the artifacts that hold them: `artifact` tells the one of a message, if any.
    """
    if not found or budget <= 0:
        return "", frozenset()
    if budget < _NARROW:
        # What the archive holds is listed below in any case, and a correction is worth more than its name.
        artifact = None
    order = [found[at] for at in sorted(range(len(found)), key=lambda at: (-found[at].priority, -at))]
    low, high = -1, len(found)
    while low < high:
        middle = (low + high + 1) // 2
        fits = count(_section(found, order[:middle], artifact)) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    if low < 0:
        return "", frozenset()
    chosen = order[:low]
    return _section(found, chosen, artifact), frozenset(each.instruction.text for each in chosen)


def replaces(later: Instruction, earlier: Instruction) -> bool:
    """Whether `later` says what `earlier` says with another value, for certain."""
    if later.text == earlier.text:
        return True
    # Of several sentences only one would be replaced.
    return len(earlier.claims) == 1 and any(_replaces(claim, earlier.claims[0]) for claim in later.claims)


def may_replace(later: Instruction, earlier: Instruction) -> bool:
    """Whether the two may contradict each other."""
    return any(
        _may_replace(claim, other, later.is_change and (later.rank == RULE or later.is_correction))
        for claim in later.claims
        for other in earlier.claims
    )


def states(text: str, instruction: Instruction, *, reversed: bool = False) -> bool:
    """Whether a text says what an instruction of one sentence says, in other words; `reversed`: with a negation where
    that has none, or without the one that it has."""
    if len(instruction.claims) != 1:
        return False
    said, stated = _claim(text), instruction.claims[0]
    is_reversed = said.is_negative != stated.is_negative
    return (
        len(stated.words) > 1
        and stated.words <= said.words
        and {figure for figure, _ in stated.figures} <= {figure for figure, _ in said.figures}
        and is_reversed == reversed
    )


class _Register:
    """Finds the instructions that one may be related to, by their places, without comparing it with all."""

    def __init__(self) -> None:
        self._by_key: dict[object, list[int]] = {}
        self._by_word: dict[str, list[int]] = {}

    def add(self, place: int, instruction: Instruction) -> None:
        for key in self._keys(instruction):
            self._by_key.setdefault(key, []).append(place)
        for word in instruction.words:
            self._by_word.setdefault(word, []).append(place)

    def related(self, instruction: Instruction) -> list[int]:
        found = {place for key in self._keys(instruction) for place in self._by_key.get(key, ())}
        if instruction.is_change:
            shared = Counter(place for word in instruction.words for place in self._by_word.get(word, ()))
            found.update(place for place, number in shared.items() if number > 1)
        return sorted(found)

    @staticmethod
    def _keys(instruction: Instruction) -> Iterator[object]:
        yield instruction.text
        for claim in instruction.claims:
            named = enumerate((claim.subject, claim.words, claim.stem))
            yield from ((number, words) for number, words in named if words)


def _section(found: Sequence[Cited], chosen: Sequence[Cited], artifact: Callable[[int], str] | None) -> str:
    shown = set(map(id, chosen))
    lines = [f"## {TITLE}", *(str(each) for each in found if id(each) in shown)]
    left = [each.index for each in found if id(each) not in shown]
    if left:
        where = citations(sorted(set(left)))
        if where.count(",") >= _RUNS:
            where = f"[{min(left)}-{max(left)}]"
        names = list(dict.fromkeys(filter(None, map(artifact, sorted(set(left)))))) if artifact else []
        read = f"read_artifact has {'it' if len(left) == 1 else 'them'}"
        if names:
            more = " and those listed below" if len(names) > _ARTIFACTS else ""
            read = f"kept in {', '.join(names[-_ARTIFACTS:])}{more}, for read_artifact"
        lines.append(f"(No room for {len(left)} more, of {where}; {read}.)")
    return "\n".join(lines)


def _replaces(later: Claim, earlier: Claim) -> bool:
    if later.subject and later.subject == earlier.subject:
        return later.has_value and earlier.has_value
    return len(later.words) > 1 and later.words == earlier.words and _differ_in_values(later, earlier)


def _may_replace(later: Claim, earlier: Claim, is_change: bool) -> bool:
    if later.subject and later.subject == earlier.subject:
        return True
    if is_change:
        common = len(later.words & earlier.words)
        if common >= 2 and common * 2 >= min(len(later.words), len(earlier.words)):
            return True
    if len(later.words) > 1 and later.words == earlier.words:
        # Prohibitions of different things add up, and what is the same but for its form needs no mark.
        return later.is_negative != earlier.is_negative or (not later.is_negative and later.figures != earlier.figures)
    return not later.is_negative and len(later.stem) > 1 and later.stem == earlier.stem


def _differ_in_values(one: Claim, other: Claim) -> bool:
    """Whether all figures that differ are values."""
    if len(one.figures) != len(other.figures):
        return False
    different = [pair for pair in zip(one.figures, other.figures, strict=True) if pair[0][0] != pair[1][0]]
    return bool(different) and all(first[1] and second[1] for first, second in different)


def _parted(text: str) -> tuple[str, list[str], str]:
    """What a user said before a summary of ours, the instructions that it lists, and what the user said behind it. All
    else in it was written by others. Clients may send what they got."""
    start = text.find(OPENING)
    section = text.find(f"## {TITLE}\n", start) if start >= 0 else -1
    if section < 0 or (start and text[start - 1] != "\n"):
        return text, [], ""
    ends = [found.end() for found in _REFERENCE.finditer(text, section)]
    lines = text[section:].partition("\n\n")[0].split("\n")[1:]
    listed = [_NOTES.sub("", _INDEX.sub("", line, count=1)) for line in lines]
    return text[:start], listed, text[ends[-1] :] if ends else ""


def _sentences(text: str) -> Iterator[str]:
    for line in _prose(text):
        if len(line) <= WHOLE:
            yield line
        else:
            yield from (
                part
                for each in _SENTENCE_END.split(line)
                if _is_long_enough(part := each.strip()) and len(part) <= _LONGEST
            )


def _prose(text: str) -> Iterator[str]:
    lines = text.split("\n")
    if len(lines) > 4 * _EDGE:
        lines = [*lines[:_EDGE], *lines[-_EDGE:]]
    fenced = False
    for line in lines:
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        elif not fenced and _is_long_enough(bare) and not _NOT_PROSE.search(bare) and not _is_indented(line, bare):
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
    is_particular = _PARTICULAR.search(bare) is not None
    is_request = _asks(bare)
    if bare[-1:] in "?？":
        return STATEMENT if is_particular or is_request else 0
    if _LASTING.search(bare) or (is_particular and _CORRECTS.search(bare)):
        return RULE
    if is_particular and len(bare) <= _BRIEF and _claim(bare).has_value:
        return FACT
    return REQUEST if is_request else STATEMENT if is_particular else 0


def _asks(bare: str) -> bool:
    first = _WORD.search(bare)
    if first is not None and first.group().lower() in _IMPERATIVES:
        return True
    return any(form.search(bare) for form in (_FORM, _FORM_EAST_ASIA, _CHANGE))


def _is_long_enough(text: str) -> bool:
    return len(text) >= 8 or len(_EAST_ASIA.sub("", text)) <= len(text) - 4


def _instruction(sentence: str, rank: int) -> Instruction:
    bare = _BULLET.sub("", sentence)
    claims = tuple(_claim(part) for each in _SENTENCE_END.split(bare) if (part := each.strip()))
    return Instruction(sentence, rank, claims, _CHANGE.search(bare) is not None, _CORRECTS.search(bare) is not None)


def _claim(sentence: str) -> Claim:
    copula = _COPULA.search(sentence)
    # Up to the last colon in front of "is" stands a heading such as "Note:".
    start = 0
    while copula is not None and copula.group().strip() == ":":
        start, copula = copula.end(), _COPULA.search(sentence, copula.end())
    subject, has_value = frozenset[str](), False
    if copula is not None:
        value = sentence[copula.end() :].strip()
        subject = words_of(_CHANGE.sub(" ", sentence[start : copula.start()].strip()))
        has_value = len(value.split()) <= _VALUE_WORDS and _VALUE.search(value) is not None
    figures = tuple((match.group().strip(" ."), _is_value(sentence, match)) for match in _FIGURE.finditer(sentence))
    plain = _FIGURE.sub(" ", sentence)
    stem = words_of(plain.rstrip(" .!。！").rpartition(" ")[0])
    return Claim(words_of(plain), figures, subject, has_value, stem, _NEGATION.search(sentence) is not None)


def _is_value(sentence: str, figure: re.Match[str]) -> bool:
    text = figure.group()
    return (
        _VALUE_SIGN.search(text) is not None
        or _UNIT.match(sentence, figure.end()) is not None
        or _BOUND.search(sentence[max(0, figure.start() - _NEARBY) : figure.start()]) is not None
    )
