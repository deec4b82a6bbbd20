"""What a memory is about, in a few words: topics asked for, what it names, what its conversation keeps coming to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from accordion.core.memories import Entity
from accordion.memory.entries import NAME_MOST
from accordion.memory.standing import about, content

MOST: Final = 6
_COMMON: Final = 14
_FOLDERS: Final = (
    "src lib libs test tests app apps cmd pkg internal packages package main index init docs doc home users usr var "
    "tmp opt etc bin mnt data workspace workspaces work dev code repo project projects dist build node_modules "
    "components utils common core site-packages python readme"
)
_GENERIC: Final = frozenset(_FOLDERS.split())
_NAMED: Final = frozenset({"package", "service", "tool", "project", "organisation"})


def common_words(texts: Iterable[str]) -> tuple[str, ...]:
    """The words that several texts of a conversation are about, the most frequent first."""
    counted = Counter(word for text in texts for word in set(content(text)) if len(word) > 3 and word not in _GENERIC)
    return tuple(word for word, times in counted.most_common(_COMMON) if times > 1)


def topics_of(text: str, entities: Sequence[Entity], focus: Sequence[str], common: Sequence[str]) -> tuple[str, ...]:
    """At most six topics in small letters; at least one where the text has a word that says something."""
    found = [topic for topic in focus if about(text, topic)]
    words = [word for word in content(text) if len(word) <= NAME_MOST]
    found += [word for word in common if word in words][:3]
    for entity in entities:
        if entity.type == "file":
            found += _of_path(entity.name)
        elif entity.type in _NAMED:
            found.append(entity.name)
    if not found:
        found = sorted(words, key=len, reverse=True)[:1]
    return tuple(dict.fromkeys(topic.lower() for topic in found))[:MOST]


def _of_path(path: str) -> list[str]:
    """The folder and the name of a file, where they say something."""
    pieces = [piece for piece in path.replace("\\", "/").split("/") if piece]
    name = pieces[-1].lstrip(".").split(".", 1)[0]
    folder = pieces[-2] if len(pieces) > 1 else ""
    return [each for each in (folder, name) if len(each) > 2 and each.lower() not in _GENERIC]
