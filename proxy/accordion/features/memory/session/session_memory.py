"""`core_memory`: imports, exports, lists and searches session memories (docs/memory.md).

A session memory is saved as a whole or not at all. Its id is the second of its creation, followed by a number if
another memory has that id.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from accordion.features.memory.conversation.message_ranges import MessageRange, RecordedConversations
from accordion.features.memory.entries import clean_names, finish_memory, format_time, preview
from accordion.features.memory.memories import Conflict, Memory, MemoryChange, MemoryFilter, MemoryStore
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery
from accordion.features.memory.session.session_text import NONE, find_latest_plan, parse_sections, write_session_text
from accordion.model.errors import BadRequest, NotFound, StoreUnavailable
from accordion.model.ports import Clock, Tasks
from accordion.model.tenant import TenantScope

_PREVIEW_LENGTH: Final = 100
_BOX_WIDTH: Final = 76
MOST = 100
"""Memories of one list."""
_IN_A_SECOND: Final = 10_000
_ID: Final = re.compile(r"CMEM-\d{8}-\d{6}(?:-\d{1,5})?")
_SESSIONS: Final = ("session",)
_VERBATIM_SOURCES: Final = frozenset({"workflow", "todo"})

Confirm = Callable[[str], Awaitable[bool]]
"""Shows the user the text and asks for confirmation."""


class ImportResponse(msgspec.Struct, frozen=True):
    """The response of an import. An empty `id` means that the user declined to save."""

    id: str
    message: str
    operation: Literal["import"] = "import"


class ExportResponse(msgspec.Struct, frozen=True):
    """A memory with its complete text."""

    id: str
    message: str
    text: str
    description: str
    tags: list[str]
    created_at: str
    conversation_id: str
    operation: Literal["export"] = "export"


class ListedMemory(msgspec.Struct, frozen=True):
    """A memory in a list."""

    id: str
    preview: str
    description: str
    tags: list[str]
    created_at: str


class ListResponse(msgspec.Struct, frozen=True):
    """Memories, newest first. `next` is the cursor of the next page; empty if there is none."""

    message: str
    memories: list[ListedMemory]
    next: str = ""
    operation: Literal["list"] = "list"


class SearchResponse(msgspec.Struct, frozen=True):
    """The results of a search, best first."""

    query: str
    message: str
    memories: list[ListedMemory]
    operation: Literal["search"] = "search"


def _list_entries(memories: Iterable[Memory]) -> list[ListedMemory]:
    """Returns memories as entries of a list."""
    return [
        ListedMemory(
            each.id, session_preview(each.content), each.description, list(each.tags), format_time(each.created)
        )
        for each in memories
    ]


def session_preview(text: str) -> str:
    """Returns a session's objective in a hundred characters, or the first line with content if it has none."""
    lines = [line.strip() for line in text.split("\n")]
    objective = lines[lines.index("## Objective") + 1 :][:1] if "## Objective" in lines else []
    candidates = [line for line in (*objective, *lines) if line and line != NONE and not line.startswith("#")]
    return preview(candidates[0] if candidates else "", _PREVIEW_LENGTH)


def render_box(memory_id: str) -> str:
    """Renders the box with a saved memory's id and how to restore it."""
    lines = (
        "✓ Session Memory Saved",
        "",
        f"Recovery ID: {memory_id}",
        "",
        f'To restore: "Please import memory {memory_id}"',
        "(MCP: core_memory export | CLI: accordion memory export --id <ID>)",
    )
    rows = [f"║  {line:<{_BOX_WIDTH - 2}}║" for line in lines]
    return "\n".join([f"╔{'═' * _BOX_WIDTH}╗", *rows, f"╚{'═' * _BOX_WIDTH}╝"])


# -- operations -------------------------------------------------------------------------------------------------------


class SaveOptions(msgspec.Struct, frozen=True):
    """Options of saving a session memory. `force` saves without confirmation."""

    description: str = ""
    tags: tuple[str, ...] = ()
    force: bool = False
    project: str = ""
    author: str = ""


class SessionMemories(msgspec.Struct, frozen=True):
    """The four operations of `core_memory`, each within one tenant."""

    memories: MemoryStore
    conversations: RecordedConversations
    searching: MemorySearch
    tasks: Tasks
    clock: Clock

    async def import_session(
        self,
        tenant: TenantScope,
        *,
        text: str = "",
        conversation: str = "",
        options: SaveOptions | None = None,
        confirm: Confirm | None = None,
    ) -> ImportResponse:
        """Saves a session memory, from `text` or from the recording of `conversation`.

        With both, the text is saved, and it must contain the conversation's plan word for word. With `confirm` and
        without `force`, nothing is saved unless the user confirms. Raises BadRequest, NotFound and StoreUnavailable;
        nothing is written then.
        """
        options = options or SaveOptions()
        recording = await self._load_recording(tenant, conversation) if conversation else None
        text = await self._make_text(text, recording)
        if all(content.strip() == NONE for content in parse_sections(text).values()):
            raise BadRequest("There is nothing to save: all fourteen sections are empty.", code="nothing_to_save")
        memory = self._memory(text, recording, options)
        if confirm is not None and not options.force and not await confirm(memory.content):
            return ImportResponse("", "Nothing was saved.")
        saved = await self._save(tenant, memory)
        return ImportResponse(saved.id, f"Created memory: {saved.id}")

    async def export(self, tenant: TenantScope, memory_id: str) -> ExportResponse:
        """Returns a session memory by its id, in any case. Raises BadRequest, NotFound and StoreUnavailable."""
        memory = await self.find(tenant, memory_id)
        if memory is None:
            raise NotFound(
                f"There is no session memory {normalize_id(memory_id)}. `list` shows the saved ones.",
                code="memory_not_found",
            )
        return ExportResponse(
            memory.id,
            f"Memory {memory.id}, saved {format_time(memory.created)}",
            memory.content,
            memory.description,
            list(memory.tags),
            format_time(memory.created),
            memory.conversation,
        )

    async def find(self, tenant: TenantScope, memory_id: str) -> Memory | None:
        """Returns a session memory by its id, or None. Raises BadRequest for an invalid id, and StoreUnavailable."""
        (memory,) = await self.memories.get(tenant, [normalize_id(memory_id)])
        return memory if memory is not None and memory.type == "session" else None

    async def list_sessions(
        self,
        tenant: TenantScope,
        *,
        tags: Sequence[str] = (),
        project: str | None = None,
        after: str = "",
        limit: int = 20,
    ) -> ListResponse:
        """Lists session memories that have all `tags`, newest first.

        `after` is the `next` cursor of another page. Raises BadRequest and StoreUnavailable.
        """
        memory_filter = MemoryFilter(types=_SESSIONS, tags=_tags(tags), project=project)
        page = await self.memories.list_memories(tenant, memory_filter, after=after, limit=limit)
        count = len(page.memories)
        message = f"{count} of the memories saved" if page.next else f"{_count_memories(count)} saved"
        return ListResponse(message, _list_entries(page.memories), page.next)

    async def search(
        self, tenant: TenantScope, query: str, *, tags: Sequence[str] = (), project: str | None = None, limit: int = 10
    ) -> SearchResponse:
        """Searches session memories; returns the best first. Raises BadRequest and StoreUnavailable."""
        memory_filter = MemoryFilter(types=_SESSIONS, tags=_tags(tags), project=project)
        results = await self.searching.search(tenant, SearchQuery(query, memory_filter, limit=limit, everything=True))
        memories = [result.memory for result in results.results]
        return SearchResponse(query, f"{_count_memories(len(memories))} found", _list_entries(memories))

    # -- saving -------------------------------------------------------------------

    async def _load_recording(self, tenant: TenantScope, conversation: str) -> MessageRange:
        """Loads a conversation's recording, without messages that are no longer stored."""
        end = len(await self.conversations.find_transcript(tenant, conversation)) - 1
        return await self.conversations.load_range(tenant, conversation, end, end)

    async def _make_text(self, text: str, recording: MessageRange | None) -> str:
        if recording is None:
            if not text.strip():
                raise BadRequest(
                    "Give `text` (a session memory of fourteen sections) or `conversation_id` (a recorded conversation "
                    "to make one from).",
                    code="nothing_to_save",
                    param="text",
                )
            return text.replace("\r\n", "\n")
        if not text.strip():
            return await self.tasks.offload(write_session_text, recording.conversation)
        plan = await self.tasks.offload(find_latest_plan, recording.conversation)
        text = text.replace("\r\n", "\n")
        if plan is not None and plan.source in _VERBATIM_SOURCES and plan.text.replace("\r\n", "\n") not in text:
            raise BadRequest(
                f"The plan of this conversation ({plan.label}) must be in the text, complete and word for word. "
                "Copy the plan unchanged, or leave out `text` to have it written.",
                code="plan_not_verbatim",
                param="text",
            )
        return text

    def _memory(self, text: str, recording: MessageRange | None, options: SaveOptions) -> Memory:
        """Builds the memory without its id. Raises BadRequest."""
        memory = Memory(
            id="",
            type="session",
            content=text,
            project=options.project,
            source="session" if recording is not None else "import",
            conversation=recording.session if recording is not None else "",
            first=0 if recording is not None else -1,
            last=recording.last if recording is not None else -1,
            author=options.author,
            tags=_tags(options.tags),
            description=" ".join(options.description.split()),
        )
        return finish_memory(memory, now=self.clock.now())

    async def _save(self, tenant: TenantScope, memory: Memory) -> Memory:
        """Writes a memory under the first free id of its second. Concurrent writers get different ids."""
        second = f"CMEM-{datetime.fromtimestamp(memory.created, UTC):%Y%m%d-%H%M%S}"
        for number in range(1, _IN_A_SECOND):
            with_id = replace(memory, id=second if number == 1 else f"{second}-{number}")
            if await self.memories.get(tenant, [with_id.id]) != [None]:
                continue
            with suppress(Conflict):
                await self.memories.write(tenant, MemoryChange(put=(with_id,), require=((with_id.id, None),)))
                return with_id
        raise StoreUnavailable("too many memories were saved within one second; try again")


def normalize_id(text: str) -> str:
    """Returns the canonical spelling of an id. Raises BadRequest for an invalid one."""
    memory_id = text.strip().strip("\"'`<>").upper()
    if _ID.fullmatch(memory_id) is None:
        message = f"{text[:80]!r} is not the id of a session memory. An id looks like CMEM-20260131-142500."
        raise BadRequest(message, code="invalid_memory_id", param="id")
    return memory_id


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Returns tags in lower case without duplicates. One text may hold several tags, separated by commas."""
    names = [name for text in ([tags] if isinstance(tags, str) else tags) for name in text.split(",")]
    return clean_names(names, lower=True)


def _count_memories(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"
