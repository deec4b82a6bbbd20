"""The services that the memory operations use."""

from __future__ import annotations

import msgspec

from accordion.archive.archive_reader import ArchiveReader
from accordion.memory.add import MemoryWriter
from accordion.memory.compact import ConversationCompactor
from accordion.memory.consolidation import Consolidator
from accordion.memory.draft import DraftWriter
from accordion.memory.message_ranges import RecordedTranscripts
from accordion.memory.reader import MemoryReader
from accordion.memory.search import MemorySearch
from accordion.memory.session_memory import SessionMemories
from accordion.model.errors import BadRequest
from accordion.model.memories import MemoryStore
from accordion.model.ports import Clock

EVERY_PROJECT = "*"


class MemoryServices(msgspec.Struct, frozen=True):
    """The services that the memory operations use. `project` is the default project, empty for none."""

    memories: MemoryStore
    writer: MemoryWriter
    search: MemorySearch
    reader: MemoryReader
    compactions: ConversationCompactor
    consolidation: Consolidator
    drafts: DraftWriter
    core: SessionMemories
    transcripts: RecordedTranscripts
    artifacts: ArchiveReader
    clock: Clock
    project: str = ""

    def target_project(self, project: str | None) -> str:
        """Returns the project of a new memory. Raises BadRequest for "all projects"."""
        if project == EVERY_PROJECT:
            raise BadRequest("Name one project, or none.", code="invalid_project", param="project")
        return self.project if project is None else project

    def search_project(self, project: str | None) -> str | None:
        """Returns the project to search; None for all."""
        if project == EVERY_PROJECT:
            return None
        return (self.project or None) if project is None else project
