"""Finds the users' standing instructions, and lists them verbatim at the start of every summary.

An instruction is a rule, a request, a preference, a correction or a stated fact. A rule holds until the user changes
it. So sentences are chosen by their form, never by their age, and no model can omit or reword one: this section is
written by code in every summary.

The form distinguishes a rule from a remark: modal verbs, negation, words such as "only" and "instead", imperatives,
corrections. A lasting rule ranks above a present request, and this above a sentence that only states particulars (an
amount, a date, a name, an address). The words are English, German, French, Spanish, Portuguese, Italian, Dutch,
Russian, Chinese, Japanese and Korean.

Flow: `find_instructions` extracts the instructions of one message, `select_standing` removes replaced ones,
`render_instructions` writes the section within a budget. `states` compares a summary line with an instruction, for
checks.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.model.subjects import EAST_ASIA, words_of
from accordion.summaries.schema import format_citations

TITLE: Final = "Standing instructions of the user"
OPENING: Final = "[Record of message"
"""The beginning of every summary."""

RULE: Final = 4
"""The rank of a lasting rule: it says never, always, only, at most, from now on, decided."""
FACT: Final = 3
"""The rank of a short definition: something is something."""
REQUEST: Final = 2
"""The rank of a request for something now."""
STATEMENT: Final = 1
"""The rank of a sentence with other particulars, and of a question."""
_CORRECTION: Final = 5
"""The priority of a correction of an instruction elsewhere in the window."""

_MAX_SENTENCE_LENGTH: Final = 600
"""Characters. A longer sentence is a document, not an instruction."""
WHOLE: Final = 240
"""Characters up to which a line is not split, since its sentences explain each other."""
_EDGE_LINES: Final = 12
"""Lines to read at both ends of a long text; between them is pasted material."""
_BRIEF: Final = 120
"""Characters of a short sentence."""
_MAX_INSTRUCTIONS: Final = 48
"""The largest number of instructions from one message."""
_MAX_NAMED_EARLIER: Final = 3
"""The largest number of earlier messages in the note on an instruction."""
_MAX_RUNS: Final = 12
"""Runs of messages in the line about omitted instructions; beyond that it names the first and the last message."""
_NARROW: Final = 160
"""Tokens of a section below which it names no artifacts."""
_MAX_ARTIFACTS: Final = 6
"""The largest number of artifacts in the line about omitted instructions."""

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
"""The signs of a lasting rule, as opposed to a present request."""
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
"""The signs of a correction."""
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
"""The words before a figure that make it a limit."""
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
"""The signs of a value after "is": a figure, a name, a quotation."""
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


class Claim(msgspec.Struct, frozen=True):
    """The content of one sentence, for comparison with others.

    `words` leave out figures; `figures` come in order, each with whether it is a value (an amount, a limit, a date).
    `subject` are the words before "is", `has_value` says whether a value follows it. `stem` is all but the last word.
    """

    words: frozenset[str]
    figures: tuple[tuple[str, bool], ...]
    subject: frozenset[str]
    has_value: bool
    stem: frozenset[str]
    is_negative: bool


class Instruction(msgspec.Struct, frozen=True):
    """A line or sentence of a user, verbatim.

    `rank` is from STATEMENT to RULE; `claims` has one entry for each sentence. `is_change`: something is different from
    now on. `is_correction`: something was wrong.
    """

    text: str
    rank: int
    claims: tuple[Claim, ...]
    is_change: bool
    is_correction: bool

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 400 + sum(600 + 80 * (2 * len(each.words) + len(each.figures)) for each in self.claims)

    @property
    def words(self) -> frozenset[str]:
        """The words of all its claims."""
        return frozenset().union(*(claim.words for claim in self.claims))


class CitedInstruction(msgspec.Struct, frozen=True):
    """An instruction with the client's index of its message.

    It replaces the instructions of the messages `replaces`, and may contradict those of `newer_than` and `older_than`;
    the latter are newer, and elsewhere in the window. The highest `priority` is listed first if space is short.
    """

    index: int
    instruction: Instruction
    replaces: tuple[int, ...] = ()
    newer_than: tuple[int, ...] = ()
    older_than: tuple[int, ...] = ()
    priority: int = 0

    def __str__(self) -> str:
        notes = [
            f"({word} {', '.join(f'[{index}]' for index in indexes[-_MAX_NAMED_EARLIER:])})"
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


class StandingInstructions(msgspec.Struct, frozen=True):
    """The instructions to list, in order, and the outdated ones, which nothing else may repeat.

    A newer instruction replaces or may contradict an outdated one.
    """

    cited: tuple[CitedInstruction, ...] = ()
    outdated: Outdated = ()


def find_instructions(text: str) -> tuple[Instruction, ...]:
    """Finds the instructions and statements in a user's text, in order, with those that a summary in it lists."""
    instructions: list[Instruction] = []
    before, listed, after = _split_at_summary(text)
    for sentence in chain(_split_sentences(before), listed, _split_sentences(after)):
        rank = max(map(_rank_sentence, _SENTENCE_END.split(sentence)), default=0)
        if rank or sentence in listed:
            instructions.append(_build_instruction(sentence, rank or STATEMENT))
            if len(instructions) >= _MAX_INSTRUCTIONS + len(listed):
                break
    return tuple(instructions)


def select_standing(
    instructions: Iterable[tuple[int, Instruction]], is_listed: Callable[[int, str], bool]
) -> StandingInstructions:
    """Selects the instructions in force, each once, of those for which `is_listed(message index, text)` is true.

    An instruction on the same subject replaces the earlier one. If the two only may contradict each other, both stay,
    and the newer one has a note. Instructions that are not listed occur elsewhere in the window, and count like others.
    """
    instruction_index, in_force_by_place = _InstructionIndex(), dict[int, CitedInstruction]()
    outdated: dict[int, tuple[int, Instruction]] = {}
    for place, (index, instruction) in enumerate(instructions):
        listed = is_listed(index, instruction.text)
        # Few long ones would fit.
        priority = instruction.rank - (len(instruction.text) > _BRIEF)
        replaced, newer_than = set[int](), set[int]()
        for at in instruction_index.related(instruction):
            each = in_force_by_place.get(at)
            if each is None:
                continue
            if is_replacement(instruction, each.instruction):
                del in_force_by_place[at]
                targets = replaced
            elif may_replace(instruction, each.instruction):
                targets = newer_than
                if not listed:
                    in_force_by_place[at] = replace(each, older_than=(*each.older_than, index))
            else:
                continue
            if each.instruction.text != instruction.text:
                targets.add(each.index)
                outdated[at] = (each.index, each.instruction)
                priority = max(priority, each.priority)
                if not is_listed(each.index, each.instruction.text):
                    priority = _CORRECTION
        in_force_by_place[place] = CitedInstruction(
            index, instruction, tuple(sorted(replaced)), tuple(sorted(newer_than)), priority=priority
        )
        instruction_index.add(place, instruction)
    in_force = {each.instruction.text for place, each in in_force_by_place.items() if place not in outdated}
    cited = tuple(each for each in in_force_by_place.values() if is_listed(each.index, each.instruction.text))
    return StandingInstructions(cited, tuple(pair for pair in outdated.values() if pair[1].text not in in_force))


def render_instructions(
    instructions: Sequence[CitedInstruction],
    budget: int,
    count: Callable[[str], int],
    artifact: Callable[[int], str] | None = None,
) -> tuple[str, frozenset[str]]:
    """Renders the section with the instructions that fit into `budget` tokens of `count`. Also returns their texts.

    Corrections of instructions elsewhere in the window come first, then rules, then statements, and newer ones before
    older ones, so that an old instruction never appears without the newer one that may contradict it. A last line names
    the messages of omitted instructions, and their artifacts: `artifact` returns the id for a message, or "".
    """
    if not instructions or budget <= 0:
        return "", frozenset()
    if budget < _NARROW:
        # The references list the artifacts in any case, and a correction is worth more than an artifact's name.
        artifact = None
    order = [
        instructions[at] for at in sorted(range(len(instructions)), key=lambda at: (-instructions[at].priority, -at))
    ]
    low, high = -1, len(instructions)
    while low < high:
        middle = (low + high + 1) // 2
        fits = count(_render_section(instructions, order[:middle], artifact)) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    if low < 0:
        return "", frozenset()
    chosen = order[:low]
    return _render_section(instructions, chosen, artifact), frozenset(each.instruction.text for each in chosen)


def is_replacement(later: Instruction, earlier: Instruction) -> bool:
    """Whether `later` certainly repeats `earlier` with another value."""
    if later.text == earlier.text:
        return True
    # Only one of several sentences would be replaced.
    return len(earlier.claims) == 1 and any(_replaces(claim, earlier.claims[0]) for claim in later.claims)


def may_replace(later: Instruction, earlier: Instruction) -> bool:
    """Whether the two may contradict each other."""
    return any(
        _may_replace(claim, other, later.is_change and (later.rank == RULE or later.is_correction))
        for claim in later.claims
        for other in earlier.claims
    )


def states(text: str, instruction: Instruction, *, reversed: bool = False) -> bool:
    """Whether a text states the same as an instruction of one sentence. `reversed`: with the opposite negation."""
    if len(instruction.claims) != 1:
        return False
    text_claim, claim = _claim(text), instruction.claims[0]
    is_reversed = text_claim.is_negative != claim.is_negative
    return (
        len(claim.words) > 1
        and claim.words <= text_claim.words
        and {figure for figure, _ in claim.figures} <= {figure for figure, _ in text_claim.figures}
        and is_reversed == reversed
    )


class _InstructionIndex:
    """Finds the earlier instructions that may be related to one, without comparing it with all."""

    def __init__(self) -> None:
        self._by_key: dict[object, list[int]] = {}
        self._by_word: dict[str, list[int]] = {}

    def add(self, place: int, instruction: Instruction) -> None:
        for key in self._keys(instruction):
            self._by_key.setdefault(key, []).append(place)
        for word in instruction.words:
            self._by_word.setdefault(word, []).append(place)

    def related(self, instruction: Instruction) -> list[int]:
        places = {place for key in self._keys(instruction) for place in self._by_key.get(key, ())}
        if instruction.is_change:
            shared_words = Counter(place for word in instruction.words for place in self._by_word.get(word, ()))
            places.update(place for place, number in shared_words.items() if number > 1)
        return sorted(places)

    @staticmethod
    def _keys(instruction: Instruction) -> Iterator[object]:
        yield instruction.text
        for claim in instruction.claims:
            word_sets = enumerate((claim.subject, claim.words, claim.stem))
            yield from ((number, words) for number, words in word_sets if words)


def _render_section(
    instructions: Sequence[CitedInstruction],
    selection: Sequence[CitedInstruction],
    artifact: Callable[[int], str] | None,
) -> str:
    selected = set(map(id, selection))
    lines = [f"## {TITLE}", *(str(each) for each in instructions if id(each) in selected)]
    omitted = [each.index for each in instructions if id(each) not in selected]
    if omitted:
        citations = format_citations(sorted(set(omitted)))
        if citations.count(",") >= _MAX_RUNS:
            citations = f"[{min(omitted)}-{max(omitted)}]"
        names = list(dict.fromkeys(filter(None, map(artifact, sorted(set(omitted)))))) if artifact else []
        read = f"read_artifact has {'it' if len(omitted) == 1 else 'them'}"
        if names:
            more = " and those listed below" if len(names) > _MAX_ARTIFACTS else ""
            read = f"kept in {', '.join(names[-_MAX_ARTIFACTS:])}{more}, for read_artifact"
        lines.append(f"(No room for {len(omitted)} more, of {citations}; {read}.)")
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
        # Prohibitions of different things add up, and an instruction in another form needs no note.
        return later.is_negative != earlier.is_negative or (not later.is_negative and later.figures != earlier.figures)
    return not later.is_negative and len(later.stem) > 1 and later.stem == earlier.stem


def _differ_in_values(one: Claim, other: Claim) -> bool:
    """Whether all figures that differ are values."""
    if len(one.figures) != len(other.figures):
        return False
    different = [pair for pair in zip(one.figures, other.figures, strict=True) if pair[0][0] != pair[1][0]]
    return bool(different) and all(first[1] and second[1] for first, second in different)


def _split_at_summary(text: str) -> tuple[str, list[str], str]:
    """Returns a user's text before a summary of this proxy, the summary's listed instructions, and the text after it.

    A client may send back a summary. Apart from the listed instructions, nothing in it is the user's text.
    """
    start = text.find(OPENING)
    section = text.find(f"## {TITLE}\n", start) if start >= 0 else -1
    if section < 0 or (start and text[start - 1] != "\n"):
        return text, [], ""
    ends = [match.end() for match in _REFERENCE.finditer(text, section)]
    lines = text[section:].partition("\n\n")[0].split("\n")[1:]
    listed = [_NOTES.sub("", _INDEX.sub("", line, count=1)) for line in lines]
    return text[:start], listed, text[ends[-1] :] if ends else ""


def _split_sentences(text: str) -> Iterator[str]:
    for line in _prose_lines(text):
        if len(line) <= WHOLE:
            yield line
        else:
            yield from (
                part
                for each in _SENTENCE_END.split(line)
                if _is_long_enough(part := each.strip()) and len(part) <= _MAX_SENTENCE_LENGTH
            )


def _prose_lines(text: str) -> Iterator[str]:
    lines = text.split("\n")
    if len(lines) > 4 * _EDGE_LINES:
        lines = [*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]]
    is_fenced = False
    for line in lines:
        bare = line.strip()
        if bare.startswith("```"):
            is_fenced = not is_fenced
        elif (
            not is_fenced and _is_long_enough(bare) and not _NOT_PROSE.search(bare) and not _looks_like_code(line, bare)
        ):
            yield bare


def _looks_like_code(line: str, bare: str) -> bool:
    """Whether a line is indented like code; a list item may be indented."""
    return (
        line[:1] in " \t"
        and not _BULLET.match(bare)
        and len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip()) >= 4
    )


def _rank_sentence(sentence: str) -> int:
    bare = _BULLET.sub("", sentence)
    is_particular = _PARTICULAR.search(bare) is not None
    is_request = _is_request(bare)
    if bare[-1:] in "?？":
        return STATEMENT if is_particular or is_request else 0
    if _LASTING.search(bare) or (is_particular and _CORRECTS.search(bare)):
        return RULE
    if is_particular and len(bare) <= _BRIEF and _claim(bare).has_value:
        return FACT
    return REQUEST if is_request else STATEMENT if is_particular else 0


def _is_request(bare: str) -> bool:
    first = _WORD.search(bare)
    if first is not None and first.group().lower() in _IMPERATIVES:
        return True
    return any(form.search(bare) for form in (_FORM, _FORM_EAST_ASIA, _CHANGE))


def _is_long_enough(text: str) -> bool:
    return len(text) >= 8 or len(_EAST_ASIA.sub("", text)) <= len(text) - 4


def _build_instruction(sentence: str, rank: int) -> Instruction:
    bare = _BULLET.sub("", sentence)
    claims = tuple(_claim(part) for each in _SENTENCE_END.split(bare) if (part := each.strip()))
    return Instruction(sentence, rank, claims, _CHANGE.search(bare) is not None, _CORRECTS.search(bare) is not None)


def _claim(sentence: str) -> Claim:
    copula = _COPULA.search(sentence)
    # The text up to the last colon before "is" is a heading such as "Note:".
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
