"""What can be done with memories: one function for each call, whoever asks (REST, MCP, the command line).

Every call is of one tenant. What another has is answered as what there never was. What is refused is refused with an
AccordionError that says what to do, and nothing is written then.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from accordion.archive.paths import BadPath
from accordion.archive.reader import BadRequest as Unanswerable
from accordion.archive.reader import Part, Wish
from accordion.core.errors import BadRequest, NotFound
from accordion.core.memories import Change, Memory
from accordion.core.values import replace
from accordion.faces import memory_asked as asked
from accordion.faces import memory_told as told
from accordion.faces.memory_rooms import Rooms
from accordion.identity.tenants import Caller
from accordion.memory import compact, core_answers
from accordion.memory.answers import Compacted, Done
from accordion.memory.core_memory import Options
from accordion.memory.search import Query

ARTIFACT_MOST = 40_000
"""Characters of an artifact that one call gives; the rest is had by offset."""
ORIGINALS_MOST = 400_000
"""Bytes of messages that one reading gives."""


async def add(rooms: Rooms, caller: Caller, given: asked.Add) -> told.Added:
    """Remembers one thing."""
    memory = Memory(
        id="",
        type=given.type or "fact",
        content=given.content,
        topics=tuple(given.topics),
        macro_topics=tuple(given.macro_topics),
        entities=tuple(given.entities),
        tags=tuple(given.tags),
        project=rooms.written_to(given.project),
        author=given.author,
    )
    if given.replace_id is None:
        made, new = await rooms.adding.add(caller.space, memory)
    else:
        made, new = await rooms.adding.reword(caller.space, given.replace_id, memory, given.type), False
    return told.Added(id=made.id, is_new=new, revision=made.revision)


async def search(rooms: Rooms, caller: Caller, given: asked.Search) -> told.Results:
    """Searches; of one conversation, says what of it is compacted too."""
    done = None
    if given.conversation_id is not None:
        done = await rooms.compactions.search(caller.space, given.conversation_id)
        if not given.query.strip():
            return await _of_conversation(rooms, caller, given, done)
    found = await _searched(rooms, caller, given, deep=False)
    return msgspec.structs.replace(found, compactions=done)


async def deep_search(rooms: Rooms, caller: Caller, given: asked.DeepSearch) -> told.Results:
    """Searches a larger pool."""
    return await _searched(rooms, caller, given, deep=True)


async def read(rooms: Rooms, caller: Caller, given: asked.Read) -> told.Reading:
    """Reads in full."""
    found = await rooms.reader.read(caller.space, given.ids, given.proof)
    out, room = [], ORIGINALS_MOST
    warnings = await rooms.search.warnings(caller.space, found.memories)
    for memory, warning in zip(found.memories, warnings, strict=True):
        wires = await _originals(rooms, caller, memory) if given.originals else None
        room -= sum(map(len, wires or ()))
        if room < 0:
            raise BadRequest(
                f"The messages of these memories have more than {ORIGINALS_MOST:,} bytes. Read fewer "
                "memories at once, or leave out `originals`.",
                code="originals_too_long",
                param="ids",
            )
        out.append(told.told_whole(memory, warning, wires))
    return told.Reading(memories=out, missing=list(found.missing), proof=found.token)


async def list_(rooms: Rooms, caller: Caller, given: asked.List) -> told.Page:
    """Lists, newest first."""
    wanted = asked.filter_of(given, rooms.meant(given.project))
    page = await rooms.memories.listed(caller.space, wanted, after=given.after or "", limit=given.limit)
    return told.Page(
        memories=[told.told_preview(memory) for memory in page.memories],
        total=await rooms.memories.count(caller.space, wanted),
        next=page.next or None,
    )


async def delete(rooms: Rooms, caller: Caller, given: asked.Delete) -> told.Deleted:
    """Deletes for good."""
    ids = list(dict.fromkeys(given.ids))
    held = await rooms.memories.get(caller.space, ids)
    there = [name for name, memory in zip(ids, held, strict=True) if memory is not None]
    if there:
        await rooms.memories.write(caller.space, Change(delete=tuple(there)))
    return told.Deleted(deleted=there, missing=[name for name in ids if name not in there])


async def compact_conversation(rooms: Rooms, caller: Caller, given: asked.Compact) -> Compacted:
    """Makes memories of recorded messages."""
    # A model's own key is for whom the proxy knows, as everywhere.
    who = compact.Caller(project=rooms.written_to(given.project), asks=caller.keyed or caller.local)
    return await rooms.compactions.compact(
        caller.space, given.conversation_id, given.start_index, given.end_index, given.focus_topics, who
    )


async def consolidate(rooms: Rooms, caller: Caller, given: asked.Consolidate) -> told.Summary:
    """Writes a topic's summary."""
    made = await rooms.consolidation.consolidate(
        caller.space, given.topic, given.content, given.proof, project=rooms.meant(given.project), author=given.author
    )
    summary = made.summary
    return told.Summary(
        id=summary.id,
        topic=summary.topics[0],
        tokens=made.tokens,
        memories=summary.counted,
        sources=len(summary.sources),
        archived=made.archived,
    )


async def consolidate_draft(rooms: Rooms, caller: Caller, given: asked.Draft) -> told.Drafted:
    """Drafts a topic's summary from all of its memories."""
    made = await rooms.drafting.draft(caller.space, given.topic, project=rooms.meant(given.project))
    return told.Drafted(
        topic=made.topic,
        text=made.text,
        tokens=made.tokens,
        memories=made.count,
        sources=list(made.sources),
        summary=made.summary,
    )


CoreAnswer = core_answers.Imported | core_answers.Exported | core_answers.Listed | core_answers.Found


async def core_memory(rooms: Rooms, caller: Caller, given: asked.Core) -> CoreAnswer:
    """Saves, gives back, lists or searches session memories."""
    _check_core(given)
    space, project = caller.space, rooms.meant(given.project)
    if given.operation == "export":
        return await rooms.core.export(space, given.id or "")
    if given.operation == "list":
        return await rooms.core.list_(
            space, tags=given.tags, project=project, after=given.after or "", limit=given.limit
        )
    if given.operation == "search":
        return await rooms.core.search(space, given.query, tags=given.tags, project=project, limit=given.limit)
    options = Options(
        description=given.description,
        tags=tuple(given.tags),
        force=given.force,
        project=rooms.written_to(given.project),
    )
    conversation = given.conversation_id or ""
    return await rooms.core.import_(space, text=given.text, conversation=conversation, options=options)


async def read_artifact(rooms: Rooms, caller: Caller, given: asked.Artifact) -> told.Lent:
    """Reads a part of what left a window."""
    wish = Wish(given.id, given.offset, given.limit, given.pattern, given.path)
    try:
        lent = await rooms.artifacts.read(caller.space, wish)
        if lent is not None and len(lent.part.text) > ARTIFACT_MOST:
            lent = await rooms.artifacts.read(caller.space, replace(wish, limit=_fitting(lent.part))) or lent
    except (Unanswerable, BadPath) as error:
        raise BadRequest(str(error), code="invalid_arguments") from error
    if lent is None:
        raise NotFound(
            "There is no such artifact. It may have expired or been erased.",
            code="artifact_not_found",
        )
    text, part = lent.part.text[:ARTIFACT_MOST], lent.part
    shown = part.shown if len(text) == len(part.text) else f"{part.shown}; its first {ARTIFACT_MOST:,} characters"
    return told.Lent(id=lent.artifact.id, what=lent.what, shown=shown, text=text, next=part.next or None)


# -- parts ------------------------------------------------------------------------------------------------------------


async def _searched(
    rooms: Rooms, caller: Caller, given: asked.Search | asked.DeepSearch, *, deep: bool
) -> told.Results:
    wanted = asked.filter_of(given, rooms.meant(given.project))
    query = Query(given.query, wanted, deep, given.limit, given.explain, given.proof)
    found = await rooms.search.search(caller.space, query)
    return told.Results(
        results=[told.told_result(each) for each in found.results], candidates=found.candidates, proof=found.token
    )


async def _of_conversation(rooms: Rooms, caller: Caller, given: asked.Search, done: list[Done]) -> told.Results:
    """What was made of a conversation, newest first, where nothing else is searched for."""
    wanted = asked.filter_of(given, rooms.meant(given.project))
    held = (await rooms.memories.listed(caller.space, wanted, limit=given.limit)).memories
    results = [told.Scored(**msgspec.structs.asdict(told.told_preview(each)), score=0.0) for each in held]
    return told.Results(results=results, candidates=len(held), proof=given.proof, compactions=done)


async def _originals(rooms: Rooms, caller: Caller, memory: Memory) -> list[bytes]:
    """The messages that a memory was made of, as JSON; null for one that is not kept any more."""
    if not memory.conversation or memory.first < 0:
        return []
    found = await rooms.recordings.read(caller.space, memory.conversation, memory.first, memory.last)
    return [wire if wire is not None else b"null" for wire in found]


_FIELDS: Mapping[str, str] = {"export": "id", "search": "query"}


def _check_core(given: asked.Core) -> None:
    """Raises BadRequest where an operation lacks what it is about."""
    field = _FIELDS.get(given.operation)
    if field is not None and not getattr(given, field):
        raise BadRequest(f"{given.operation} needs `{field}`.", code="missing_argument", param=field)


def _fitting(part: Part) -> int:
    """How much of a long part fits: lines, or characters where it is counted in them."""
    if "characters" in part.shown:
        return ARTIFACT_MOST
    return max(1, part.text.count("\n", 0, ARTIFACT_MOST))
