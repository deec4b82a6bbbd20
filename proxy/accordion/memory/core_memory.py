"""`core_memory`: session memories are imported, exported, listed and searched (docs/memory.md).

A session memory is saved whole or not at all, under an id that no other has: the second in which it was saved, with a
number behind it where that is taken.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from accordion.core.errors import BadRequest, NotFound, StoreUnavailable
from accordion.core.memories import Change, Conflict, Filter, Memories, Memory
from accordion.core.ports import Clock, Tasks
from accordion.core.values import dataclass, replace
from accordion.memory.core_answers import Exported, Found, Imported, Listed, shown, written_at
from accordion.memory.entries import finished, names
from accordion.memory.recovery import latest_plan, session_text
from accordion.memory.search import RESULTS, Query, Search
from accordion.memory.sections import NONE, parsed
from accordion.memory.stretches import Conversations, Stretch

MOST, FOUND_MOST = 100, RESULTS
"""Memories that are listed at once, and found."""
_DESCRIPTION: Final = 500
_AT_ONCE: Final = 32
_IN_A_SECOND: Final = 10_000
_ID: Final = re.compile(r"CMEM-\d{8}-\d{6}(?:-\d{1,5})?")
_SESSIONS: Final = ("session",)
_KEPT_WHOLE: Final = frozenset({"workflow", "todo"})

Confirm = Callable[[str], Awaitable[bool]]
"""Shows somebody what is about to be saved, and asks."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a session memory is saved. `force` saves without asking first."""

    description: str = ""
    tags: tuple[str, ...] = ()
    force: bool = False
    project: str = ""
    author: str = ""


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """The four operations. Every one is of one tenant (`space` is its key): what another has is as if it were not."""

    memories: Memories
    conversations: Conversations
    searching: Search
    tasks: Tasks
    clock: Clock

    async def import_(
        self,
        space: bytes,
        *,
        text: str = "",
        conversation: str = "",
        options: Options | None = None,
        confirm: Confirm | None = None,
    ) -> Imported:
        """Saves a session memory: the given text, or what the recording of a conversation gives; with both, the text,
        which must hold the conversation's plan word for word.

        Where there is somebody to ask (`confirm`) and `force` is not set, nothing is saved without their word. Raises
        BadRequest, NotFound and StoreUnavailable; nothing is written then.
        """
        options = checked(options or Options())
        stretch = await self._recorded(space, conversation) if conversation else None
        text = await self._text(text, stretch)
        if all(content.strip() == NONE for content in parsed(text).values()):
            raise BadRequest("There is nothing to save: all fourteen sections are empty.", code="nothing_to_save")
        memory = self._memory(text, stretch, options)
        if confirm is not None and not options.force and not await confirm(memory.content):
            return Imported("", "Nothing was saved.")
        saved = await self._saved(space, memory)
        return Imported(saved.id, f"Created memory: {saved.id}")

    async def export(self, space: bytes, name: str) -> Exported:
        """A session memory by its id, in whatever case. Raises BadRequest, NotFound and StoreUnavailable."""
        memory = await self.find(space, name)
        if memory is None:
            raise NotFound(
                f"There is no session memory {name_of(name)}. `list` shows the saved ones.", code="memory_not_found"
            )
        return Exported(
            memory.id,
            f"Memory {memory.id}, saved {written_at(memory)}",
            memory.content,
            memory.description,
            list(memory.tags),
            written_at(memory),
            memory.conversation,
        )

    async def find(self, space: bytes, name: str) -> Memory | None:
        """A session memory by its id; None where this tenant has none of it. Raises BadRequest for what is no id, and
        StoreUnavailable."""
        (memory,) = await self.memories.get(space, [name_of(name)])
        return memory if memory is not None and memory.type == "session" else None

    async def list_(
        self,
        space: bytes,
        *,
        tags: Sequence[str] = (),
        project: str | None = None,
        after: str = "",
        limit: int = 20,
    ) -> Listed:
        """Session memories, newest first, each with a preview; those with the tags, where some are named. `after` is
        what `next` of another page says. Raises BadRequest and StoreUnavailable."""
        _check_limit(limit, MOST)
        wanted = Filter(types=_SESSIONS, tags=_tags(tags), project=project)
        page = await self.memories.listed(space, wanted, after=after, limit=limit)
        count = len(page.memories)
        told = f"{count} of the memories saved" if page.next else f"{_so_many(count)} saved"
        return Listed(told, shown(page.memories), page.next)

    async def search(
        self, space: bytes, query: str, *, tags: Sequence[str] = (), project: str | None = None, limit: int = 10
    ) -> Found:
        """Session memories by what they say, best first. Raises BadRequest and StoreUnavailable."""
        _check_limit(limit, FOUND_MOST)
        wanted = Filter(types=_SESSIONS, tags=_tags(tags), project=project)
        results = await self.searching.search(space, Query(query, wanted, limit=limit))
        found = [each.memory for each in results.results]
        return Found(query, f"{_so_many(len(found))} found", shown(found))

    # -- saving -------------------------------------------------------------------

    async def _recorded(self, space: bytes, conversation: str) -> Stretch:
        """All that is recorded of a conversation. What is not kept any more of it is left out."""
        end = len(await self.conversations.known(space, conversation)) - 1
        return await self.conversations.stretch(space, conversation, end, end)

    async def _text(self, text: str, stretch: Stretch | None) -> str:
        if stretch is None:
            if not text.strip():
                raise BadRequest(
                    "Give `text` (a session memory of fourteen sections) or `conversation_id` (a recorded conversation "
                    "to make one from).",
                    code="nothing_to_save",
                    param="text",
                )
            return text.replace("\r\n", "\n")
        if not text.strip():
            return await self.tasks.offload(session_text, stretch.conversation)
        plan = await self.tasks.offload(latest_plan, stretch.conversation)
        text = text.replace("\r\n", "\n")
        if plan is not None and plan.source in _KEPT_WHOLE and plan.text.replace("\r\n", "\n") not in text:
            raise BadRequest(
                f"The plan of this conversation ({plan.label}) must be in the text, complete and word for word. "
                "Copy the plan unchanged, or leave out `text` to have it written.",
                code="plan_not_verbatim",
                param="text",
            )
        return text

    def _memory(self, text: str, stretch: Stretch | None, options: Options) -> Memory:
        """The memory as it is to be saved, but for its id. Raises BadRequest."""
        made = Memory(
            id="",
            type="session",
            content=text,
            project=options.project,
            source="session" if stretch is not None else "import",
            conversation=stretch.session if stretch is not None else "",
            first=0 if stretch is not None else -1,
            last=stretch.last if stretch is not None else -1,
            author=options.author,
            tags=options.tags,
            description=options.description,
        )
        return finished(made, now=self.clock.now())

    async def _saved(self, space: bytes, memory: Memory) -> Memory:
        """Writes a memory under the first free id of this second. Two that write at once get two ids."""
        stem, number = f"CMEM-{datetime.fromtimestamp(memory.created, UTC):%Y%m%d-%H%M%S}", 1
        while number < _IN_A_SECOND:
            named = replace(memory, id=_numbered(stem, number))
            try:
                await self.memories.write(space, Change(put=(named,), require=((named.id, ""),)))
            except Conflict:
                number = await self._free(space, stem, number + 1)
                continue
            return named
        raise StoreUnavailable("too many memories were saved within one second; try again")

    async def _free(self, space: bytes, stem: str, number: int) -> int:
        """The first number from here on under which nothing was saved when it was looked."""
        while number < _IN_A_SECOND:
            ids = [_numbered(stem, each) for each in range(number, number + _AT_ONCE)]
            for at, held in enumerate(await self.memories.get(space, ids)):
                if held is None:
                    return number + at
            number += _AT_ONCE
        return number


def name_of(given: str) -> str:
    """The id that somebody gave, in its own spelling. Raises BadRequest for what is none."""
    name = given.strip().strip("\"'`<>").upper()
    if _ID.fullmatch(name) is None:
        wrong = f"{given[:80]!r} is not the id of a session memory. An id looks like CMEM-20260131-142500."
        raise BadRequest(wrong, code="invalid_memory_id", param="id")
    return name


def checked(options: Options) -> Options:
    """Options with their tags made even. Raises BadRequest for what is too long or too many."""
    description = " ".join(options.description.split())
    if len(description) > _DESCRIPTION:
        wrong = f"A description has at most {_DESCRIPTION} characters; this one has {len(description)}."
        raise BadRequest(wrong, code="description_too_long", param="description")
    return replace(options, description=description, tags=_tags(options.tags))


def _tags(given: Sequence[str]) -> tuple[str, ...]:
    """Tags in small letters, each once; one text may hold several, divided by commas."""
    each = [piece for tag in ([given] if isinstance(given, str) else given) for piece in tag.split(",")]
    return names(each, lower=True)


def _check_limit(limit: Any, most: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise BadRequest(f"`limit` must be a whole number from 1 to {most}.", code="bad_limit", param="limit")


def _so_many(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"


def _numbered(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}-{number}"
