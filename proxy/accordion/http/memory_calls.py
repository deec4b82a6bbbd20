"""The memory operations: one function each, for REST, MCP and the command line.

Each acts for one tenant; another tenant's data gets the answer of missing data. A refused operation raises an
AccordionError that says what to do, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from accordion.archive.reader import ReadRequest, TextPart, UnanswerableRequest
from accordion.http import memory_requests as requests
from accordion.http import memory_responses as responses
from accordion.http.memory_services import MemoryServices
from accordion.memory import compact, session_responses
from accordion.memory.compact import CompactionResponse, CompletedRange
from accordion.memory.search import SearchQuery
from accordion.memory.session_memory import SaveOptions
from accordion.model.errors import BadRequest, InvalidPath, NotFound
from accordion.model.memories import Memory, MemoryChange
from accordion.sessions.tenants import Caller

MAX_ARTIFACT = 40_000
"""Characters of an artifact in one response; `offset` gives the rest."""
MAX_ORIGINALS = 400_000
"""Bytes of original messages in one response."""


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
    result = await services.reader.read(caller.tenant, request.ids, request.proof)
    memories, remaining_bytes = [], MAX_ORIGINALS
    warnings = await services.search.find_warnings(caller.tenant, result.memories)
    for memory, warning in zip(result.memories, warnings, strict=True):
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
    return responses.ReadMemoriesResponse(memories=memories, missing=list(result.missing), proof=result.token)


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


async def compact_conversation(
    services: MemoryServices, caller: Caller, request: requests.CompactRequest
) -> CompactionResponse:
    """Compacts recorded messages into memories."""
    # Only callers with a proxy key, or on this machine, use the model that the operator pays for, as everywhere.
    compaction_caller = compact.CompactionCaller(
        project=services.target_project(request.project), may_ask_model=caller.has_proxy_key or caller.is_local
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
        request.proof,
        project=services.search_project(request.project),
        author=request.author,
    )
    summary = consolidation.summary
    return responses.ConsolidateResponse(
        id=summary.id,
        topic=summary.topics[0],
        tokens=consolidation.tokens,
        memories=summary.counted,
        sources=len(summary.sources),
        archived=consolidation.archived,
    )


async def consolidate_draft(
    services: MemoryServices, caller: Caller, request: requests.DraftRequest
) -> responses.DraftResponse:
    """Drafts a topic's summary from all of its memories."""
    draft = await services.drafts.draft(caller.tenant, request.topic, project=services.search_project(request.project))
    return responses.DraftResponse(
        topic=draft.topic,
        text=draft.text,
        tokens=draft.tokens,
        memories=draft.count,
        sources=list(draft.sources),
        summary=draft.summary,
    )


CoreAnswer = (
    session_responses.ImportResponse
    | session_responses.ExportResponse
    | session_responses.ListResponse
    | session_responses.SearchResponse
)


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
    query = SearchQuery(request.query, memory_filter, deep, request.limit, request.explain, request.proof)
    result = await services.search.search(caller.tenant, query)
    return responses.SearchMemoriesResponse(
        results=[responses.scored_memory(each) for each in result.results],
        candidates=result.candidates,
        proof=result.token,
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
    return responses.SearchMemoriesResponse(
        results=results, candidates=len(memories), proof=request.proof, compactions=compactions
    )


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
