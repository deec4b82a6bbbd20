"""The memory operations behind REST, MCP and the command line: a function for each, and the table `CALLS` of them.

Each operation acts for one tenant; another tenant's data gets the answer of missing data. A refused operation raises an
AccordionError that says what to do, and writes nothing. An entry of the table names the function, its request type
(memory_requests.py) and its response types, whose JSON Schemas are made from them. The REST routes and the OpenAPI
document (memory_api.py), the MCP tools (mcp_server.py) and `accordion memory` are made from the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import replace

from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.reader import ReadRequest, TextPart, UnanswerableRequest
from accordion.features.memory import memory_requests as requests
from accordion.features.memory import memory_responses as responses
from accordion.features.memory.conversation.message_ranges import RecordedTranscripts
from accordion.features.memory.extraction import memory_extractor as compact
from accordion.features.memory.extraction.memory_extractor import CompactionResponse, CompletedRange, MemoryExtractor
from accordion.features.memory.memories import FactType, Memory, MemoryChange, MemoryStatus, MemoryStore, MemoryType
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery
from accordion.features.memory.session.session_memory import (
    ExportResponse,
    ImportResponse,
    ListResponse,
    SaveOptions,
    SearchResponse,
    SessionMemories,
)
from accordion.features.memory.store.consolidation import Consolidator
from accordion.features.memory.store.memory_writer import MemoryWriter
from accordion.model.errors import BadRequest, InvalidPath, NotFound
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Clock
from accordion.sessions.tenants import Caller

EVERY_PROJECT = "*"
MAX_ARTIFACT = 40_000
"""Characters of an artifact in one response; `offset` gives the rest."""
MAX_ORIGINALS = 400_000
"""Bytes of original messages in one response."""
Json = dict[str, Any]


class MemoryServices(msgspec.Struct, frozen=True):
    """The services that the memory operations use. `project` is the default project, empty for none."""

    memories: MemoryStore
    writer: MemoryWriter
    search: MemorySearch
    compactions: MemoryExtractor
    consolidation: Consolidator
    core: SessionMemories
    transcripts: RecordedTranscripts
    artifacts: ArchiveReader
    clock: Clock
    project: str = ""

    def target_project(self, project: str | None) -> str:
        """Returns the project of a new memory. Raises BadRequest for "all projects"."""
        if project == EVERY_PROJECT:
            raise BadRequest("Give the name of one project, or none.", code="invalid_project", param="project")
        return self.project if project is None else project

    def search_project(self, project: str | None) -> str | None:
        """Returns the project to search; None for all."""
        if project == EVERY_PROJECT:
            return None
        return (self.project or None) if project is None else project


async def add(services: MemoryServices, caller: Caller, request: requests.AddRequest) -> responses.AddResponse:
    """Adds a memory, or rewords one."""
    memory = Memory(
        id="",
        type=request.type or "fact",
        content=request.content,
        topics=tuple(request.topics),
        macro_topics=tuple(request.macro_topics),
        entities=tuple(request.entities),
        tags=tuple(request.tags),
        project=services.target_project(request.project),
        author=request.author,
    )
    if request.replace_id is None:
        stored, is_new = await services.writer.add(caller.tenant, memory)
    else:
        stored = await services.writer.reword(caller.tenant, request.replace_id, memory, request.type)
        is_new = False
    return responses.AddResponse(id=stored.id, is_new=is_new, revision=stored.revision)


async def search(
    services: MemoryServices, caller: Caller, request: requests.SearchMemoriesRequest
) -> responses.SearchMemoriesResponse:
    """Searches memories. For a conversation, also lists its compacted ranges."""
    compactions = None
    if request.conversation_id is not None:
        compactions = await services.compactions.find_completed(caller.tenant, request.conversation_id)
        if not request.query.strip():
            return await _list_conversation(services, caller, request, compactions)
    response = await _run_search(services, caller, request, deep=False)
    return msgspec.structs.replace(response, compactions=compactions)


async def deep_search(
    services: MemoryServices, caller: Caller, request: requests.DeepSearchRequest
) -> responses.SearchMemoriesResponse:
    """Searches a larger pool."""
    return await _run_search(services, caller, request, deep=True)


async def read(
    services: MemoryServices, caller: Caller, request: requests.ReadMemoriesRequest
) -> responses.ReadMemoriesResponse:
    """Reads memories in full, and their original messages on request."""
    ids = list(dict.fromkeys(request.ids))
    stored = [memory for memory in await services.memories.get(caller.tenant, ids) if memory is not None]
    memories, remaining_bytes = [], MAX_ORIGINALS
    warnings = await services.search.find_warnings(caller.tenant, stored)
    for memory, warning in zip(stored, warnings, strict=True):
        originals = await _load_originals(services, caller, memory) if request.originals else None
        remaining_bytes -= sum(map(len, originals or ()))
        if remaining_bytes < 0:
            raise BadRequest(
                f"The messages of these memories have more than {MAX_ORIGINALS:,} bytes. Read fewer "
                "memories at once, or leave out `originals`.",
                code="originals_too_long",
                param="ids",
            )
        memories.append(responses.full_memory(memory, warning, originals))
    existing_ids = {memory.id for memory in stored}
    missing = [memory_id for memory_id in ids if memory_id not in existing_ids]
    return responses.ReadMemoriesResponse(memories=memories, missing=missing)


async def list_(
    services: MemoryServices, caller: Caller, request: requests.ListMemoriesRequest
) -> responses.ListMemoriesResponse:
    """Lists memories, newest first."""
    memory_filter = requests.build_filter(request, services.search_project(request.project))
    page = await services.memories.list_memories(
        caller.tenant, memory_filter, after=request.after or "", limit=request.limit
    )
    return responses.ListMemoriesResponse(
        memories=[responses.memory_preview(memory) for memory in page.memories],
        total=await services.memories.count(caller.tenant, memory_filter),
        next=page.next or None,
    )


async def delete(services: MemoryServices, caller: Caller, request: requests.DeleteRequest) -> responses.DeleteResponse:
    """Deletes memories permanently."""
    ids = list(dict.fromkeys(request.ids))
    memories = await services.memories.get(caller.tenant, ids)
    existing_ids = [name for name, memory in zip(ids, memories, strict=True) if memory is not None]
    if existing_ids:
        await services.memories.write(caller.tenant, MemoryChange(delete=tuple(existing_ids)))
    return responses.DeleteResponse(deleted=existing_ids, missing=[name for name in ids if name not in existing_ids])


async def set_status(
    services: MemoryServices, caller: Caller, request: requests.SetStatusRequest
) -> responses.SetStatusResponse:
    """Sets the status of memories."""
    ids = list(dict.fromkeys(request.ids))
    existing_ids = {memory.id for memory in await services.writer.set_status(caller.tenant, ids, request.status)}
    return responses.SetStatusResponse(
        ids=[memory_id for memory_id in ids if memory_id in existing_ids],
        missing=[memory_id for memory_id in ids if memory_id not in existing_ids],
    )


async def compact_conversation(
    services: MemoryServices, caller: Caller, request: requests.CompactRequest
) -> CompactionResponse:
    """Compacts recorded messages into memories."""
    # Only callers with a proxy key, or on this machine, use the model that the operator pays for, as everywhere.
    compaction_caller = compact.CompactionCaller(
        project=services.target_project(request.project), may_ask_model=caller.can_use_configured_keys
    )
    return await services.compactions.compact(
        caller.tenant,
        request.conversation_id,
        request.start_index,
        request.end_index,
        request.focus_topics,
        compaction_caller,
    )


async def consolidate(
    services: MemoryServices, caller: Caller, request: requests.ConsolidateRequest
) -> responses.ConsolidateResponse:
    """Writes a topic's summary."""
    consolidation = await services.consolidation.consolidate(
        caller.tenant,
        request.topic,
        request.content,
        project=services.search_project(request.project),
        author=request.author,
    )
    summary = consolidation.summary
    return responses.ConsolidateResponse(
        id=summary.id,
        topic=summary.topics[0],
        memories=summary.counted,
        sources=len(summary.sources),
        archived=consolidation.archived,
    )


CoreAnswer = ImportResponse | ExportResponse | ListResponse | SearchResponse


async def core_memory(services: MemoryServices, caller: Caller, request: requests.CoreMemoryRequest) -> CoreAnswer:
    """Imports, exports, lists or searches session memories."""
    _check_core(request)
    tenant, project = caller.tenant, services.search_project(request.project)
    if request.operation == "export":
        return await services.core.export(tenant, request.id or "")
    if request.operation == "list":
        return await services.core.list_sessions(
            tenant, tags=request.tags, project=project, after=request.after or "", limit=request.limit
        )
    if request.operation == "search":
        return await services.core.search(
            tenant, request.query, tags=request.tags, project=project, limit=request.limit
        )
    options = SaveOptions(
        description=request.description,
        tags=tuple(request.tags),
        force=request.force,
        project=services.target_project(request.project),
    )
    conversation = request.conversation_id or ""
    return await services.core.import_session(tenant, text=request.text, conversation=conversation, options=options)


async def read_artifact(
    services: MemoryServices, caller: Caller, request: requests.ReadArtifactRequest
) -> responses.ReadArtifactResponse:
    """Reads a part of an artifact."""
    read_request = ReadRequest(request.id, request.offset, request.limit, request.pattern, request.path)
    try:
        excerpt = await services.artifacts.read(caller.tenant, read_request)
        if excerpt is not None and len(excerpt.part.text) > MAX_ARTIFACT:
            shorter = replace(read_request, limit=_fitting_limit(excerpt.part))
            excerpt = await services.artifacts.read(caller.tenant, shorter) or excerpt
    except (UnanswerableRequest, InvalidPath) as error:
        raise BadRequest(str(error), code="invalid_arguments") from error
    if excerpt is None:
        raise NotFound(
            "There is no such artifact. It may have expired or been erased.",
            code="artifact_not_found",
        )
    text, part = excerpt.part.text[:MAX_ARTIFACT], excerpt.part
    shown = part.shown if len(text) == len(part.text) else f"{part.shown}; its first {MAX_ARTIFACT:,} characters"
    return responses.ReadArtifactResponse(
        id=excerpt.artifact.id, what=excerpt.what, shown=shown, text=text, next=part.next or None
    )


# -- parts ------------------------------------------------------------------------------------------------------------


async def _run_search(
    services: MemoryServices,
    caller: Caller,
    request: requests.SearchMemoriesRequest | requests.DeepSearchRequest,
    *,
    deep: bool,
) -> responses.SearchMemoriesResponse:
    memory_filter = requests.build_filter(request, services.search_project(request.project))
    query = SearchQuery(
        request.query, memory_filter, deep, request.limit, request.explain, request.everything, request.inactive
    )
    result = await services.search.search(caller.tenant, query)
    return responses.SearchMemoriesResponse(
        results=[responses.scored_memory(each) for each in result.results], candidates=result.candidates
    )


async def _list_conversation(
    services: MemoryServices, caller: Caller, request: requests.SearchMemoriesRequest, compactions: list[CompletedRange]
) -> responses.SearchMemoriesResponse:
    """Lists the memories of a conversation, newest first: a search without a query."""
    memory_filter = requests.build_filter(request, services.search_project(request.project))
    memories = (await services.memories.list_memories(caller.tenant, memory_filter, limit=request.limit)).memories
    results = [
        responses.ScoredMemory(**msgspec.structs.asdict(responses.memory_preview(memory)), score=0.0)
        for memory in memories
    ]
    return responses.SearchMemoriesResponse(results=results, candidates=len(memories), compactions=compactions)


async def _load_originals(services: MemoryServices, caller: Caller, memory: Memory) -> list[bytes]:
    """Loads the messages that a memory was made of, as JSON; null for an expired one."""
    if not memory.conversation or memory.first < 0:
        return []
    messages = await services.transcripts.read(caller.tenant, memory.conversation, memory.first, memory.last)
    return [wire if wire is not None else b"null" for wire in messages]


_REQUIRED_FIELDS: Mapping[str, str] = {"export": "id", "search": "query"}


def _check_core(request: requests.CoreMemoryRequest) -> None:
    """Raises BadRequest if an operation lacks its required field."""
    field = _REQUIRED_FIELDS.get(request.operation)
    if field is not None and not getattr(request, field):
        raise BadRequest(f"{request.operation} needs `{field}`.", code="missing_argument", param=field)


def _fitting_limit(part: TextPart) -> int:
    """Returns the `limit` that fits `MAX_ARTIFACT`: lines, or characters if the part is counted in them."""
    if "characters" in part.shown:
        return MAX_ARTIFACT
    return max(1, part.text.count("\n", 0, MAX_ARTIFACT))


# -- the table --------------------------------------------------------------------------------------------------------


class MemoryOperation(StructWithHiddenFields, frozen=True):
    """A memory operation: its name as a tool, its types, and its path below `/accordion/memory/`.

    An empty `path` means no REST route; `tool` says whether it is an MCP tool.
    """

    hidden_fields = frozenset({"run"})

    name: str
    title: str
    description: str
    request_type: type[Any]
    response_types: tuple[type[Any], ...]
    run: Callable[[MemoryServices, Caller, Any], Awaitable[Any]]
    path: str = ""
    tool: bool = True
    reads_only: bool = False
    destroys: bool = False
    repeatable: bool = True

    async def __call__(self, services: MemoryServices, caller: Caller, arguments: object) -> Any:
        """Runs the operation with decoded JSON arguments. Raises AccordionError."""
        request = _convert_arguments(self.request_type, arguments)
        return await self.run(services, caller, request)


_TYPES = {"type": get_args(FactType), "type_filter": get_args(MemoryType), "status": get_args(MemoryStatus)}


def _convert_arguments(request_type: type[Any], arguments: object) -> Any:
    try:
        return msgspec.convert(arguments, request_type)
    except msgspec.ValidationError as error:
        reason, _, json_path = str(error).partition(" - at `$")
        field_name = json_path.strip("`.").split("[")[0].split(".")[0]
        missing = reason.partition("field `")[2].partition("`")[0]
        location = f" (at `{json_path.strip('`.')}`)" if json_path.strip("`.") else ""
        types = f" The types are: {', '.join(_TYPES[field_name])}." if field_name in _TYPES else ""
        raise BadRequest(
            f"{reason}{location}.{types} The arguments are: {', '.join(_field_names(request_type))}.",
            code="invalid_arguments",
            param=field_name or missing or None,
        ) from error


def _field_names(request_type: type[Any]) -> list[str]:
    return [
        each.name if not each.required else f"{each.name} (required)" for each in msgspec.structs.fields(request_type)
    ]


def input_schema(operation: MemoryOperation) -> Json:
    """Returns the JSON Schema of the request, with its definitions."""
    (ref,), parts = msgspec.json.schema_components([operation.request_type], ref_template="#/$defs/{name}")
    schema: Json = parts.pop(ref["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    schema.pop("description", None)
    return schema | ({"$defs": parts} if parts else {})


def output_schema(operation: MemoryOperation) -> Json:
    """Returns the JSON Schema of the response, with an object at its root."""
    refs, parts = msgspec.json.schema_components(operation.response_types, ref_template="#/$defs/{name}")
    if len(refs) == 1:
        schema: Json = dict(parts.pop(refs[0]["$ref"].rpartition("/")[2]))
        return schema | ({"$defs": parts} if parts else {})
    return {"type": "object", "anyOf": list(refs), "$defs": parts}


CALLS: Final[tuple[MemoryOperation, ...]] = (
    MemoryOperation(
        "memory_add",
        "Remember one thing",
        "Stores one fact, decision, preference, solution or open question beyond this conversation. Search first: do "
        "not add what is already known, and correct what is out of date with `replace_id`. The same words are stored "
        "only once. For a range of a conversation that the proxy recorded, use memory_compact_conversation instead.",
        requests.AddRequest,
        (responses.AddResponse,),
        add,
        "add",
    ),
    MemoryOperation(
        "memory_search",
        "Search memories",
        "Searches the memories. Returns up to 32 results, best first, as previews of 50 characters, and none if "
        "nothing fits. Read those that matter with memory_read before you rely on them. If a topic has a summary, it "
        "comes first; a `warning` says that it may be out of date. With `conversation_id`, the result also lists the "
        "ranges of that conversation that are already compacted; this call is required before "
        "memory_compact_conversation.",
        requests.SearchMemoriesRequest,
        (responses.SearchMemoriesResponse,),
        search,
        "search",
    ),
    MemoryOperation(
        "memory_deep_search",
        "Search memories thoroughly",
        "Searches four times as many candidates and returns up to 100 results. Use it for an overview of a whole "
        "topic, and before memory_consolidate.",
        requests.DeepSearchRequest,
        (responses.SearchMemoriesResponse,),
        deep_search,
        "deep_search",
        reads_only=True,
    ),
    MemoryOperation(
        "memory_read",
        "Read memories in full",
        "Returns memories in full by their ids, up to 100 at once. With `originals`, each memory comes with the "
        "messages it was made from.",
        requests.ReadMemoriesRequest,
        (responses.ReadMemoriesResponse,),
        read,
        "read",
        reads_only=True,
    ),
    MemoryOperation(
        "memory_list",
        "List memories",
        "Lists memories, newest first, page by page.",
        requests.ListMemoriesRequest,
        (responses.ListMemoriesResponse,),
        list_,
        "list",
        tool=False,
        reads_only=True,
    ),
    MemoryOperation(
        "memory_delete",
        "Delete memories",
        "Deletes memories permanently. Summaries that were made from them are then marked as out of date.",
        requests.DeleteRequest,
        (responses.DeleteResponse,),
        delete,
        "delete",
        tool=False,
        destroys=True,
    ),
    MemoryOperation(
        "memory_set_status",
        "Set the status of memories",
        "Makes memories superseded (something newer holds), resolved (an open question is answered), or active again. "
        "They are kept, and searches leave out what is not active. To correct a memory, use memory_add with "
        "`replace_id`.",
        requests.SetStatusRequest,
        (responses.SetStatusResponse,),
        set_status,
        "set_status",
    ),
    MemoryOperation(
        "memory_compact_conversation",
        "Compact messages into memories",
        "Turns a range of messages of a recorded conversation into memories, entities and relations. First call "
        "memory_search with its `conversation_id` to see what is already compacted: each search permits one new range. "
        "Choose messages that belong together. The same range gives the same result again; an overlapping range adds "
        "only what is new.",
        requests.CompactRequest,
        (CompactionResponse,),
        compact_conversation,
        "compact_conversation",
    ),
    MemoryOperation(
        "memory_consolidate",
        "Write a topic's summary",
        "Writes the active summary of a topic, which later searches show first; the previous one is archived. "
        "A summary written from partial knowledge misleads all later readers: 1. memory_deep_search for the topic. "
        "2. memory_read its memories. 3. If there is a summary, read and extend it; do not start anew. 4. Write 300 to "
        "500 tokens that reflect all of them, and name the ids of the memories that support each line; every id must "
        "exist. The topic needs at least 10 memories. To restore an archived summary (type_filter summary_archived), "
        "pass its text.",
        requests.ConsolidateRequest,
        (responses.ConsolidateResponse,),
        consolidate,
        "consolidate",
        repeatable=False,
    ),
    MemoryOperation(
        "core_memory",
        "Save and recover sessions",
        "Session memories contain everything that is needed to continue a session elsewhere, in fourteen sections, "
        "with the plan word for word. `import` saves one, from a recorded conversation (`conversation_id`), from your "
        "own `text`, or both, and returns a recovery id: show it to the user plainly. `export` returns one in full; "
        "`list` and `search` find them.",
        requests.CoreMemoryRequest,
        (ImportResponse, ExportResponse, ListResponse, SearchResponse),
        core_memory,
        "core_memory",
        repeatable=False,
    ),
    MemoryOperation(
        "read_artifact",
        "Read an artifact",
        "Reads content that the proxy removed from a conversation to save space: a tool result or a range of messages, "
        'archived in full under an id that begins with "art_". `shown` says which part is returned, `next` is the '
        "offset of the next part.",
        requests.ReadArtifactRequest,
        (responses.ReadArtifactResponse,),
        read_artifact,
        reads_only=True,
    ),
)
