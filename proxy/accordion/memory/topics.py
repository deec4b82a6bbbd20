"""Finds a memory's topics: requested topics, names in it, and frequent words of its conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from accordion.memory.entries import NAME_MOST
from accordion.memory.self_contained import content_words, is_about
from accordion.model.memories import Entity

MOST: Final = 6
_COMMON: Final = 14
_FOLDERS: Final = (
    "src lib libs test tests app apps cmd pkg internal packages package main index init docs doc home users usr var "
    "tmp opt etc bin mnt data workspace workspaces work dev code repo project projects dist build node_modules "
    "components utils common core site-packages python readme"
)
_GENERIC_FOLDERS: Final = frozenset(_FOLDERS.split())
_NAMED_TYPES: Final = frozenset({"package", "service", "tool", "project", "organisation"})


def common_words(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the subject words that several texts share, the most frequent first."""
    counts = Counter(
        word for text in texts for word in set(content_words(text)) if len(word) > 3 and word not in _GENERIC_FOLDERS
    )
    return tuple(word for word, times in counts.most_common(_COMMON) if times > 1)


def find_topics(
    text: str, entities: Sequence[Entity], focus: Sequence[str], frequent_words: Sequence[str]
) -> tuple[str, ...]:
    """Returns at most six topics in lower case; at least one, if the text has a subject word."""
    topics = [topic for topic in focus if is_about(text, topic)]
    words = [word for word in content_words(text) if len(word) <= NAME_MOST]
    topics += [word for word in frequent_words if word in words][:3]
    for entity in entities:
        if entity.type == "file":
            topics += _path_topics(entity.name)
        elif entity.type in _NAMED_TYPES:
            topics.append(entity.name)
    if not topics:
        topics = sorted(words, key=len, reverse=True)[:1]
    return tuple(dict.fromkeys(topic.lower() for topic in topics))[:MOST]


def _path_topics(path: str) -> list[str]:
    """Returns the folder and the name of a file, without generic names."""
    names = [piece for piece in path.replace("\\", "/").split("/") if piece]
    name = names[-1].lstrip(".").split(".", 1)[0]
    folder = names[-2] if len(names) > 1 else ""
    return [part for part in (folder, name) if len(part) > 2 and part.lower() not in _GENERIC_FOLDERS]
