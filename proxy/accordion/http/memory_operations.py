"""The table of memory operations behind REST, MCP and the command line, and their JSON Schemas.

Each entry names a function of memory_calls.py, its request type (memory_requests.py) and its response types. The REST
routes (memory_api.py), the OpenAPI document, the MCP tools (mcp_server.py) and `accordion memory` are made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, get_args

import msgspec

from accordion.http import memory_calls as calls
from accordion.http import memory_requests as requests
from accordion.http import memory_responses as responses
from accordion.http.memory_services import MemoryServices
from accordion.memory.compact import CompactionResponse
from accordion.memory.session_responses import ExportResponse, ImportResponse, ListResponse, SearchResponse
from accordion.model.errors import AccordionError, BadRequest
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.memories import FactType, MemoryType
from accordion.sessions.tenants import Caller

Json = dict[str, Any]


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
        try:
            return await self.run(services, caller, request)
        except AccordionError as error:
            if error.param == "token":
                error.param = "proof"
            raise


_TYPES = {"type": get_args(FactType), "type_filter": get_args(MemoryType)}


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
        "Remembers one fact, decision, preference, solution or open question beyond this conversation. Search first: "
        "what is known already need not be added, and what is out of date is corrected with `replace_id`. The same "
        "words twice are one memory. Ranges of a conversation that the proxy recorded are better compacted with "
        "memory_compact_conversation.",
        requests.AddRequest,
        (responses.AddResponse,),
        calls.add,
        "add",
    ),
    MemoryOperation(
        "memory_search",
        "Search memories",
        "Searches what is remembered; up to 32 results, the best first. Results are previews of 50 characters: read "
        "those that matter with memory_read before you rely on them. A topic's summary stands first where there is "
        "one; a `warning` says that it may be out of date. With `conversation_id` the answer also says which ranges of "
        "that conversation are compacted, which must be asked before memory_compact_conversation.",
        requests.SearchMemoriesRequest,
        (responses.SearchMemoriesResponse,),
        calls.search,
        "search",
    ),
    MemoryOperation(
        "memory_deep_search",
        "Search memories thoroughly",
        "Searches a pool four times as large; up to 100 results. For an overview of a whole topic, and required before "
        "memory_consolidate: name the topic in `topics` or in the query, and pass the `proof` that is returned on to "
        "memory_read.",
        requests.DeepSearchRequest,
        (responses.SearchMemoriesResponse,),
        calls.deep_search,
        "deep_search",
        reads_only=True,
    ),
    MemoryOperation(
        "memory_read",
        "Read memories in full",
        "Reads memories in full by their ids, up to 100 at once. Give the `proof` of the search before and pass on the "
        "one that is returned: it proves both. With `originals` the messages that a memory was made of come along.",
        requests.ReadMemoriesRequest,
        (responses.ReadMemoriesResponse,),
        calls.read,
        "read",
        reads_only=True,
    ),
    MemoryOperation(
        "memory_list",
        "List memories",
        "Lists memories, newest first, page by page.",
        requests.ListMemoriesRequest,
        (responses.ListMemoriesResponse,),
        calls.list_,
        "list",
        tool=False,
        reads_only=True,
    ),
    MemoryOperation(
        "memory_delete",
        "Delete memories",
        "Deletes memories for good. Summaries that were written of them are then marked as out of date.",
        requests.DeleteRequest,
        (responses.DeleteResponse,),
        calls.delete,
        "delete",
        tool=False,
        destroys=True,
    ),
    MemoryOperation(
        "memory_compact_conversation",
        "Compact messages into memories",
        "Turns a range of a conversation that the proxy recorded into memories, entities and relations. First call "
        "memory_search with its `conversation_id`, to see what is compacted already: each search lets one new range "
        "through. Choose a coherent stretch. The same range again gives the same answer; an overlapping one adds only "
        "what is new.",
        requests.CompactRequest,
        (CompactionResponse,),
        calls.compact_conversation,
        "compact_conversation",
    ),
    MemoryOperation(
        "memory_consolidate",
        "Write a topic's summary",
        "Writes the one active summary of a topic, which future searches show first; the one before it is archived. "
        "A summary from partial knowledge misleads everyone after you, so these steps are enforced: "
        "1. memory_deep_search on the topic. 2. memory_read at least 20 of its memories (all where there are fewer), "
        "passing the proof on. 3. Where there is a summary, read and extend it; do not start anew. 4. Write 300 to 500 "
        "tokens that reflect all of them, and give the last proof. The topic needs at least 10 memories, the text at "
        "least 200 tokens. To restore an archived summary (type_filter summary_archived), give its text. "
        "memory_consolidate_draft prepares a text.",
        requests.ConsolidateRequest,
        (responses.ConsolidateResponse,),
        calls.consolidate,
        "consolidate",
        repeatable=False,
    ),
    MemoryOperation(
        "memory_consolidate_draft",
        "Draft a topic's summary",
        "Drafts a summary of a topic from all of its memories, each line with the ids that it rests on. Writes "
        "nothing. It is raw material: read, correct and complete it, then memory_consolidate.",
        requests.DraftRequest,
        (responses.DraftResponse,),
        calls.consolidate_draft,
        "consolidate_draft",
        reads_only=True,
    ),
    MemoryOperation(
        "core_memory",
        "Save and recover sessions",
        "Session memories: all that it takes to go on with a session somewhere else, in fourteen sections, with the "
        "plan word for word. `import` saves one, of a recorded conversation (`conversation_id`), of your own `text`, "
        "or both, and answers with a recovery id: show it to the user plainly. `export` gives one back whole, `list` "
        "and `search` find them.",
        requests.CoreMemoryRequest,
        (ImportResponse, ExportResponse, ListResponse, SearchResponse),
        calls.core_memory,
        "core_memory",
        repeatable=False,
    ),
    MemoryOperation(
        "read_artifact",
        "Read what left a window",
        "Reads what the proxy moved out of a conversation's window: a tool result or a stretch of messages, kept whole "
        'under an id that begins with "art_". `shown` says what of how much it gives, `next` the offset to go on with.',
        requests.ReadArtifactRequest,
        (responses.ReadArtifactResponse,),
        calls.read_artifact,
        reads_only=True,
    ),
)
