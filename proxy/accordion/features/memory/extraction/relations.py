"""Finds entities and relations in the text of memories, only if the text states them.

An entity is recognised by the word beside it (`the X service`, `pip install X`, `written by X`) or by its form (a
file's path, `name()`, `#12`). A relation is recognised by the verb between two entities of one sentence. Other names of
an entity are found where a text states them: `Kubernetes (also k8s)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final

import msgspec

from accordion.features.memory.conversation.self_contained import EMPTY
from accordion.features.memory.entries import NAME_MOST
from accordion.summaries.facts import WordClassifier

_NAME: Final = r"[`\"']?([A-Za-z@][\w@./+-]{1,60})[`\"']?"
_PROPER: Final = r"[`\"']?([A-Z][\w.+-]{1,40}|[a-z]\w*(?:[-_.]\w+)+|(?<=[`\"'])[\w.+-]{2,40})[`\"']?"
_FULL: Final = r"([A-Z][a-zà-ÿ]+(?:[ -][A-Z][a-zà-ÿ]+){1,2})"
_PERSON: Final = r"([A-Z][a-zà-ÿ]+(?:[ -][A-Z][a-zà-ÿ]+){0,2})"
_RULES: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("person", rf"\b(?:my name is|[Nn]ame is|named after|I am called) {_PERSON}"),
        ("person", rf"\b(?:written|reviewed|created|owned|maintained|reported|approved|requested|authored|led|managed|"
                   rf"assigned) (?:by|to) {_FULL}"),
        ("person", rf"{_FULL} (?:wrote|reviewed|manages|joined|owns|approved|reviews)\b"),
        ("person", rf"{_PERSON} (?:works on|work on|maintains|leads)\b"),
        ("organisation", r"\b((?:[A-Z][\w&.-]+ ){0,3}[A-Z][\w&.-]+,? (?:Inc|GmbH|Ltd|LLC|Corp|Corporation|Foundation|"
                         r"University|Labs))\b"),
        ("organisation", r"\b(?:company|customer|vendor|organi[sz]ation) (?:called |named )?([A-Z][\w&-]+)"),
        ("package", r"\b(?:pip3?|uv|npm|pnpm|yarn|cargo|go|gem|brew|apt|apt-get|poetry) (?:install|add|get) "
                    r"(?:-\S+ )*[`\"']?([A-Za-z@][\w@./-]{1,60})"),
        ("package", rf"{_PROPER} (?:package|library|dependency|crate|gem)\b"),
        ("package", rf"\b(?:package|library|dependency|crate) {_PROPER}"),
        ("service", rf"{_PROPER} (?:service|server|API|database|cluster|queue|broker)\b"),
        ("service", rf"\b(?:service|server|database|cluster) {_PROPER}"),
        ("tool", rf"{_PROPER} (?:CLI|tool|linter|compiler|formatter|framework|editor)\b"),
        ("tool", rf"\b(?:tool|linter|framework) {_PROPER}"),
        ("project", rf"\b(?:project|repo|repository|codebase) {_PROPER}"),
        ("project", r"\b(?:project|repo|repository|codebase) [`\"']?([\w.-]+/[\w.-]*\w)"),
        ("project", rf"{_PROPER} (?:project|repo|repository|codebase)\b"),
        ("project", r"\bgithub\.com/([\w.-]+/[\w.-]*\w)"),
        ("service", r"\b(?:[Tt]he|[Oo]ur|[Mm]y) ((?!(?:same|new|old|whole|other|current|main|right|first|last|chosen|"
                    r"existing|remote|local|default|entire|given|specific|separate|external|internal) )[a-z]"
                    r"[\w-]{2,30} (?:service|server|database|cluster|queue|API))\b"),
        ("package", rf"\bdepends? on (?:the )?{_PROPER}"),
        ("technology", r"\b(?:uses?|using|runs on|built (?:on|with)|relies on) (?:the )?([A-Z][\w.+-]{2,40})"),
        ("function", r"`([A-Za-z_][\w.]{2,60})(?:\(\))?` (?:function|method|class|helper)\b"),
        ("function", r"\b([A-Za-z_][\w.]{2,60})\(\)"),
        ("issue", r"(?<!\w)(#\d{1,5})\b"),
        ("issue", r"\b((?!UTF-|SHA-|ISO-|RFC-|HTTP-|AES-|GPT-|CVE-|TLS-|UTC-|MD-)[A-Z]{2,9}-\d{1,6})\b"),
    )
)  # fmt: skip
_FILE: Final = re.compile(r"(?:.*[/\\])?(?:[\w.@+-]*\w\.[A-Za-z]\w{0,7}|Makefile|Dockerfile|\.[a-z][\w.-]+)")
_BARE: Final = re.compile(r"(?<![\w/.@-])([\w-]{2,60}\.(?:py|ts|tsx|js|jsx|go|rs|java|rb|c|h|cpp|cs|md|json|toml|ya?ml|"
                          r"sql|sh|css|html|txt|cfg|ini|lock|proto|kt|swift|php|vue))(?![\w/])")  # fmt: skip
_LIBRARY: Final = re.compile(r"[A-Z]\w*\.js")
"""Node.js is no file."""
_VERBS: Final = tuple(
    (kind, re.compile(rf"[`\"'()\s,]*(?:\w+\s+){{0,3}}?(?:{verb})\s+(?:(?:the|a|an|our|its|on|in|for|file|package|"
                      r"service|project|library|tool|function|issue|bug|[\w-]+ing|[\w-]+ed)\s+){0,3}[`\"'(@]*"))
    for kind, verb in (
        ("works_on", r"works? on|is working on|maintains|leads|manages"),
        ("owns", r"owns"),
        ("depends_on", r"depends? on|requires?|needs?|imports?"),
        ("uses", r"uses?|is using|calls?|relies on|rely on|runs on|is built (?:on|with)|talks to|connects to"),
        ("fixes", r"fix(?:es|ed)?|closes?|closed|resolves?|resolved|solves?|solved"),
        ("located_in", r"(?:is|are|lives?|sits?)(?: located| defined| found| stored| declared| implemented)? "
                       r"(?:in|at|under|inside)|defined in|located in|declared in|implemented in"),
        ("part_of", r"(?:is )?(?:a )?part of|belongs? to"),
        ("contains", r"contains?|defines?|includes?"),
        ("replaces", r"replaces?|replaced|supersedes?"),
        ("created_by", r"(?:was |is |were )?(?:written|created|authored|made) by"),
        ("reviewed_by", r"(?:was |is |were )?(?:reviewed|approved) by"),
        ("tests", r"tests|covers"),
    )
)  # fmt: skip
_NEGATED: Final = re.compile(
    r"\b(?:not|no longer|never|without|if|would|could|might|may|should|unless|instead of|rather than|whether)\b|"
    r"n['’]t\b",
    re.IGNORECASE,
)
_OTHER_CLAUSE: Final = re.compile(r"[.;!?]\s|^\W*(?:and|but|or|which|that|while)\b", re.IGNORECASE)
_NOT_NAMES_TEXT: Final = (
    "The This That These Those It He She We They You I A An And But Or If When Then What Why How Which Who Your My "
    "Our Now Also After Before Added Fixed Created Updated Done New All Each Every Any Some No Not Use Using Only REST "
    "HTTP HTTPS JSON SQL CLI API URL Web Main Test Tests Local Remote Public Private Next First Last Let See Please "
    "Make Rate Build Full Total Single Multi Dev Prod Production Backend Frontend Read Write"
)
_NOT_NAMES: Final = frozenset(_NOT_NAMES_TEXT.split())
"""Words that match the pattern of a name and are none."""
_CAPITALIZED_TYPES: Final = frozenset({"person", "tool", "package", "technology"})
"""Types whose names are not written in upper case."""
_SHORT_NAME: Final = r"[`\"']?([\w.+#-]*\w)[`\"']?"
_LONG_NAME: Final = r"[`\"']?((?:[A-Z][\w.+-]* ){0,3}[\w.+#-]*\w)[`\"']?"
_ALSO: Final = r"(?:also (?:called|known as)|also|aka|a\.k\.a\.)"
_OTHER_NAMES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_LONG_NAME} \({_ALSO} ([^()\n]{{1,80}})\)",
        rf"{_LONG_NAME},? (?:also (?:called|known as)|aka|a\.k\.a\.) {_SHORT_NAME}",
        rf"{_SHORT_NAME},? (?:is )?short for (?:the )?[`\"']?([A-Z][\w.+-]*\w(?: [A-Z][\w.+-]*\w){{0,3}}|[\w.+#-]*\w)",
    )
)
_ENTITY_WITH_NAMES: Final = re.compile(rf"([^()]+) \({_ALSO} ([^()]+)\)")
_SEPARATOR: Final = re.compile(r",? (?:and|or) |, ?")
_MAX_DISTANCE: Final = 70
_MAX_ENTITIES: Final = 24


class Entity(msgspec.Struct, frozen=True):
    """A person or thing that a text names."""

    name: str
    type: str


RelationTriple = tuple[str, str, str]
"""From, to, type."""


class EntitiesAndRelations(msgspec.Struct, frozen=True):
    """The entities of texts in order, and the relations between them."""

    entities: tuple[Entity, ...]
    relations: tuple[RelationTriple, ...]


def names_of(entity: str) -> tuple[str, ...]:
    """Returns the names of an entity that is written as `Kubernetes (also k8s)`; else it alone."""
    match = _ENTITY_WITH_NAMES.fullmatch(entity)
    return (match[1], *_SEPARATOR.split(match[2])) if match is not None else (entity,)


def find_names(text: str, entities: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the names of each person or thing that a text, or an entity, gives more than one name."""
    found = [names_of(entity) for entity in entities]
    for pattern in _OTHER_NAMES:
        for match in pattern.finditer(text):
            first, _, rest = match[1].partition(" ")
            name = rest if rest and first in _NOT_NAMES else match[1]
            names = (name, *_SEPARATOR.split(match[2]))
            found += [names] if all(map(_is_name, names)) else []
    return [names for names in dict.fromkeys(found) if len(names) > 1]


def _is_name(text: str) -> bool:
    """Returns whether a text is one word, or several with capitals."""
    words = text.split()
    return 2 <= len(text) <= NAME_MOST and text.lower() not in EMPTY and (len(words) == 1 or text[0].isupper())


def find_relations(text: str, classifier: WordClassifier) -> EntitiesAndRelations:
    """Finds the entities and relations of a text."""
    mentions = _find_mentions(text, classifier)
    entities = tuple(dict.fromkeys(entity for _, _, entity in mentions))
    relations: dict[tuple[str, str, str], None] = {}
    if not text.endswith("?"):
        for first, second in combinations(mentions, 2):
            if (relation := _find_relation(text, first, second)) is not None:
                relations[relation] = None
    return EntitiesAndRelations(entities[:_MAX_ENTITIES], tuple(relations)[:_MAX_ENTITIES])


def merge_relations(parts: Iterable[EntitiesAndRelations]) -> EntitiesAndRelations:
    """Merges the entities and relations of several texts; names are compared without case."""
    entities: dict[tuple[str, str], Entity] = {}
    relations: dict[RelationTriple, RelationTriple] = {}
    for part in parts:
        for entity in part.entities:
            entities.setdefault((entity.name.lower(), entity.type), entity)
        for start, end, kind in part.relations:
            relations.setdefault((start.lower(), end.lower(), kind), (start, end, kind))
    return EntitiesAndRelations(tuple(entities.values()), tuple(relations.values()))


_Mention = tuple[int, int, Entity]
"""The start and the end of an entity's name in a text, and the entity."""


def _find_mentions(text: str, classifier: WordClassifier) -> list[_Mention]:
    """Returns the entities by position. Of two that overlap, the one of the earlier rule is taken."""
    mentions: list[_Mention] = []
    for start, end, entity in (*_find_files(text, classifier), *_find_named(text)):
        if all(end <= other[0] or start >= other[1] for other in mentions):
            mentions.append((start, end, entity))
    return sorted(mentions, key=lambda mention: mention[:2])


def _find_files(text: str, classifier: WordClassifier) -> Iterator[_Mention]:
    words = classifier.find_words(text)
    paths = [path for path in (*words.paths, *words.names) if "/" in path and _FILE.fullmatch(path)]
    links = " ".join(words.links)
    paths += [match.group(1) for match in _BARE.finditer(text)]
    for path in dict.fromkeys(paths):
        position = text.find(path)
        if position >= 0 and path not in links and not _LIBRARY.fullmatch(path):
            yield position, position + len(path), Entity(path, "file")


def _find_named(text: str) -> Iterator[_Mention]:
    for kind, pattern in _RULES:
        for match in pattern.finditer(text):
            start, end = match.span(1)
            name = text[start:end].rstrip(".,;:-/")
            first = name.split(" ", 1)[0]
            if (
                not 2 <= len(name) <= NAME_MOST
                or first in _NOT_NAMES
                or name.lower() in EMPTY
                or (name.isupper() and len(name) > 5 and kind in _CAPITALIZED_TYPES)
            ):
                continue
            yield start, start + len(name), Entity(name, kind)


def _find_relation(text: str, first: _Mention, second: _Mention) -> tuple[str, str, str] | None:
    text_between = text[first[1] : second[0]]
    # After an `and` the verb belongs to another subject.
    if len(text_between) > _MAX_DISTANCE or _OTHER_CLAUSE.search(text_between) or _NEGATED.search(text_between):
        return None
    if _NEGATED.search(text[max(0, first[0] - 30) : first[0]]):
        return None
    if (first[2].type, second[2].type) == ("function", "file") and text_between.strip("`() ") in {"in", "of", "from"}:
        return first[2].name, second[2].name, "located_in"
    for kind, pattern in _VERBS:
        if pattern.fullmatch(text_between):
            return first[2].name, second[2].name, kind
    return None
