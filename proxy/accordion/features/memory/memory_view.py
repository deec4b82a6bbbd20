"""The values of the page's view of memories: a list, or the results of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from accordion.features.memory import memory_operations
from accordion.features.memory.memory_operations import MemoryServices
from accordion.features.memory.memory_requests import ListMemoriesRequest, SearchMemoriesRequest
from accordion.model.errors import BadRequest
from accordion.sessions.tenants import Caller

_PAGE = 20
NO_MEMORIES: Final[Mapping[str, Any]] = {
    "has_memory": False, "rows": [], "query": "", "kind": "", "total": 0, "next_page": "",
}  # fmt: skip
"""The values where memories are off or not installed."""


class MemoryRow(msgspec.Struct, frozen=True):
    """A memory of a list or a search; `score` is None in a list."""

    id: str
    type: str
    text: str
    created: str
    topics: Sequence[str]
    project: str
    score: float | None = None


async def list_memories(services: MemoryServices, request: Request, caller: Caller) -> Mapping[str, Any]:
    """Returns the caller's memories that the request asks for. Raises BadRequest and StoreUnavailable."""
    params = request.query_params
    query, kind, after = params.get("q", "").strip(), params.get("kind", ""), params.get("after", "")
    types = ["session"] if kind == "session" else []
    next_page, total = "", None
    if query:
        arguments: dict[str, Any] = {"query": query, "type_filter": types, "project": "*"}
        found = await memory_operations.search(services, caller, _convert(arguments, SearchMemoriesRequest))
        rows = [_memory_row(each) for each in found.results]
    else:
        arguments = {"type_filter": types, "project": "*", "limit": _PAGE, "after": after or None}
        page = await memory_operations.list_(services, caller, _convert(arguments, ListMemoriesRequest))
        rows, total = [_memory_row(each) for each in page.memories], page.total
        if page.next:
            next_page = f"memories?{urlencode({'kind': kind, 'after': page.next})}"
    return {"has_memory": True, "rows": rows, "query": query, "kind": kind, "total": total, "next_page": next_page}


def _convert(arguments: dict[str, Any], request_type: type[Any]) -> Any:
    try:
        return msgspec.convert(arguments, request_type)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The search cannot be made: {error}.") from error


def _memory_row(preview: Any) -> MemoryRow:
    return MemoryRow(
        preview.id,
        preview.type,
        preview.preview,
        preview.created_at,
        preview.topics,
        preview.project,
        getattr(preview, "score", None),
    )
