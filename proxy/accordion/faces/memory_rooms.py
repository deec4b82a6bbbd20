"""The rooms that calls about memories go to."""

from __future__ import annotations

from accordion.archive.reading_room import ReadingRoom
from accordion.core.errors import BadRequest
from accordion.core.memories import Memories
from accordion.core.ports import Clock
from accordion.core.values import dataclass
from accordion.memory.adding import Adding
from accordion.memory.compact import Compactions
from accordion.memory.consolidate import Consolidation
from accordion.memory.core_memory import CoreMemory
from accordion.memory.drafting import Drafting
from accordion.memory.reading import Reader
from accordion.memory.search import Search
from accordion.memory.stretches import Recordings

EVERY_PROJECT = "*"


@dataclass(frozen=True, slots=True)
class Rooms:
    """The rooms that calls go to. `project` is the one that is meant where none is named, empty for none."""

    memories: Memories
    adding: Adding
    search: Search
    reader: Reader
    compactions: Compactions
    consolidation: Consolidation
    drafting: Drafting
    core: CoreMemory
    recordings: Recordings
    artifacts: ReadingRoom
    clock: Clock
    project: str = ""

    def written_to(self, project: str | None) -> str:
        """The project that something new belongs to. Raises BadRequest."""
        if project == EVERY_PROJECT:
            raise BadRequest("Name one project, or none.", code="invalid_project", param="project")
        return self.project if project is None else project

    def meant(self, project: str | None) -> str | None:
        """The project that is looked into; None for all."""
        if project == EVERY_PROJECT:
            return None
        return (self.project or None) if project is None else project
