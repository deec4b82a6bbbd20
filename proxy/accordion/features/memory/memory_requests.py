"""The request types of the memory operations: fields, descriptions and limits.

REST, MCP and the command line share them, and their JSON Schemas are generated from them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from accordion.features.memory.entries import CONTENT_MOST, NAME_MOST, NAMES_MOST
from accordion.features.memory.memories import FactType, MemoryFilter, MemoryStatus, MemoryType
from accordion.features.memory.search.memory_search import DEEP_RESULTS, QUERY_MOST, RESULTS
from accordion.features.memory.session.session_memory import MOST
from accordion.model.errors import BadRequest

MAX_IDS = 100
"""Memories that one call may read or delete."""
MAX_SESSION_TEXT = CONTENT_MOST * 10
"""Characters of a session memory."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MOST)]
Id = Annotated[str, Meta(min_length=1, max_length=100)]
Conversation = Annotated[str, Meta(min_length=1, max_length=256)]
Index = Annotated[int, Meta(ge=0, le=10**9)]
Project = Annotated[
    str | None,
    Meta(
        description='The project; "*" means all. Default: the configured project, if any.',
    ),
]
OneProject = Annotated[
    str | None,
    Meta(description="The project it belongs to. Default: the configured project, if any."),
]
Topics = Annotated[list[Name], Meta(max_length=NAMES_MOST, description="Only memories with one of these topics.")]
Types = Annotated[
    list[MemoryType],
    Meta(
        max_length=10,
        description="Only these types. Default: all except archived summaries (summary_archived) and session memories.",
    ),
]
Tags = Annotated[list[Name], Meta(max_length=20)]
Moment = Annotated[str, Meta(max_length=40, description="A date or time in ISO 8601, such as 2026-01-31.")]


class MemoryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of an operation."""


class AddRequest(MemoryRequest, frozen=True):
    """A memory to add."""

    content: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=CONTENT_MOST,
            description='One thing, in words that stand alone: who, what and where, without "it", "this" or "today".',
        ),
    ]
    type: Annotated[
        FactType | None, Meta(description="The kind of memory. Default: fact, or the type of `replace_id`.")
    ] = None
    topics: Annotated[
        list[Name], Meta(max_length=NAMES_MOST, description="What it is about: one to six short names.")
    ] = []
    macro_topics: Annotated[
        list[Name], Meta(max_length=NAMES_MOST, description="The larger subjects it belongs to.")
    ] = []
    entities: Annotated[
        list[Name],
        Meta(
            max_length=NAMES_MOST,
            description="The people and things it names, with other names in brackets: Kubernetes (also k8s).",
        ),
    ] = []
    tags: Tags = []
    project: OneProject = None
    author: Annotated[str, Meta(max_length=NAME_MOST, description="Who wrote it.")] = ""
    replace_id: Annotated[Id | None, Meta(description="The id of a memory to reword: this text replaces it.")] = None


class SearchFields(MemoryRequest, frozen=True):
    """The fields of both searches."""

    query: Annotated[str, Meta(max_length=QUERY_MOST, description="What to look for, in a few words or a question.")]
    topics: Topics = []
    type_filter: Types = []
    tags: Annotated[Tags, Meta(description="Only memories with all of these tags.")] = []
    project: Project = None
    since: Annotated[Moment | None, Meta(description="Only memories written at or after this time.")] = None
    until: Annotated[Moment | None, Meta(description="Only memories written before this time.")] = None
    explain: Annotated[bool, Meta(description="Explain the score of each result.")] = False
    everything: Annotated[bool, Meta(description="Return the nearest memories even if none fits.")] = False
    inactive: Annotated[bool, Meta(description="Also search what is superseded or resolved.")] = False


class SearchMemoriesRequest(SearchFields, frozen=True):
    """A search."""

    conversation_id: Annotated[
        Conversation | None,
        Meta(
            description="Only memories made from this conversation. The result then lists its compacted ranges and "
            "permits one memory_compact_conversation; the query may be empty."
        ),
    ] = None
    query: Annotated[
        str, Meta(max_length=QUERY_MOST, description="What to look for, in a few words or a question.")
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=RESULTS, description="Maximum number of results.")] = RESULTS


class DeepSearchRequest(SearchFields, frozen=True):
    """A deep search."""

    limit: Annotated[int, Meta(ge=1, le=DEEP_RESULTS, description="Maximum number of results.")] = DEEP_RESULTS


class ReadMemoriesRequest(MemoryRequest, frozen=True):
    """The ids of the memories to read."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_IDS, description="The ids, as returned by a search.")]
    originals: Annotated[bool, Meta(description="Also return the messages that each memory was made from.")] = False


class ListMemoriesRequest(MemoryRequest, frozen=True):
    """A list of memories, newest first."""

    topics: Topics = []
    type_filter: Types = []
    tags: Annotated[Tags, Meta(description="Only memories with all of these tags.")] = []
    project: Project = None
    conversation_id: Annotated[Conversation | None, Meta(description="Only those made from this conversation.")] = None
    after: Annotated[Id | None, Meta(description="The value of `next` on the previous page.")] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number of memories.")] = 100


class DeleteRequest(MemoryRequest, frozen=True):
    """The ids of the memories to delete."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_IDS, description="The ids.")]


class SetStatusRequest(MemoryRequest, frozen=True):
    """The ids of memories, and their new status."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_IDS, description="The ids.")]
    status: Annotated[
        MemoryStatus,
        Meta(description="superseded: something newer holds. resolved: no longer open."),
    ]


class CompactRequest(MemoryRequest, frozen=True):
    """The range of a conversation to compact into memories."""

    conversation_id: Annotated[
        Conversation,
        Meta(description="The session that the proxy recorded (response header x-accordion-session)."),
    ]
    start_index: Annotated[
        Index, Meta(description="The first message, inclusive, counted from 0; the system prompt counts.")
    ]
    end_index: Annotated[Index, Meta(description="The last message, inclusive.")]
    focus_topics: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100)]],
        Meta(max_length=20, description="What matters most: statements about it come first, even short ones."),
    ] = []
    project: OneProject = None


class ConsolidateRequest(MemoryRequest, frozen=True):
    """A summary of a topic."""

    topic: Annotated[Name, Meta(description="The topic, as written in the memories.")]
    content: Annotated[
        str,
        Meta(
            max_length=CONTENT_MOST,
            description="The summary: 300 to 500 tokens, in present tense, understandable alone. What the topic is, "
            "its present state and key decisions, solved problems, open questions. It names the ids of the memories "
            "that support each line; every id must exist.",
        ),
    ]
    project: Project = None
    author: Annotated[str, Meta(max_length=NAME_MOST, description="Who wrote it.")] = ""


class CoreMemoryRequest(MemoryRequest, frozen=True):
    """An operation on session memories."""

    operation: Annotated[
        Literal["import", "export", "list", "search"],
        Meta(description="import saves one, export returns one in full, list and search find them."),
    ]
    text: Annotated[
        str,
        Meta(
            max_length=MAX_SESSION_TEXT,
            description="import: the session memory, fourteen sections under their titles. Omit it to have it made "
            "from the recorded conversation.",
        ),
    ] = ""
    conversation_id: Annotated[
        Conversation | None,
        Meta(description="import: the recorded session to save; its plan is kept word for word."),
    ] = None
    description: Annotated[str, Meta(max_length=500, description="import: a description, in one sentence.")] = ""
    tags: Annotated[Tags, Meta(description="import: its tags. list, search: only memories with these tags.")] = []
    force: Annotated[bool, Meta(description="import: save without asking for confirmation on a terminal.")] = False
    id: Annotated[Id | None, Meta(description="export: the recovery id, such as CMEM-20260131-142500.")] = None
    query: Annotated[str, Meta(max_length=QUERY_MOST, description="search: what to look for.")] = ""
    after: Annotated[Id | None, Meta(description="list: the value of `next` on the previous page.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST, description="list, search: maximum number of memories.")] = 20
    project: Project = None


class ReadArtifactRequest(MemoryRequest, frozen=True):
    """The part of an artifact to read."""

    id: Annotated[str, Meta(pattern="^art_[0-9a-f]{12}$", description='The id, which begins with "art_".')]
    offset: Annotated[
        int, Meta(ge=-(10**9), le=10**9, description="The first line, from 1; negative: counted from the end.")
    ] = 0
    limit: Annotated[int, Meta(ge=0, le=10**6, description="Maximum number of lines or matches.")] = 0
    pattern: Annotated[str, Meta(max_length=1_000, description="RE2 regex; returns the matching lines, numbered.")] = ""
    path: Annotated[str, Meta(max_length=1_000, description="JSONPath into a JSON artifact: $.items[0].name.")] = ""


def build_filter(request: SearchFields | ListMemoriesRequest, project: str | None) -> MemoryFilter:
    """Builds the filter of a search or a list. Raises BadRequest for an invalid time."""
    since = until = None
    if isinstance(request, SearchFields):
        since, until = parse_time(request.since, "since"), parse_time(request.until, "until")
        if since is not None and until is not None and since > until:
            raise BadRequest("since is later than until. Swap them.", code="invalid_time", param="since")
    conversation = request.conversation_id if isinstance(request, SearchMemoriesRequest | ListMemoriesRequest) else None
    return MemoryFilter(
        types=tuple(request.type_filter),
        topics=tuple(topic.lower() for topic in request.topics),
        project=project,
        tags=tuple(tag.lower() for tag in request.tags),
        since=since,
        until=until,
        conversation=conversation or "",
    )


def parse_time(text: str | None, param: str) -> float | None:
    """Parses an ISO 8601 time into seconds since the epoch; without an offset it is UTC. Raises BadRequest."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"{param} must be a date or a time in ISO 8601: 2026-01-31 or 2026-01-31T14:25:00Z.",
            code="invalid_time",
            param=param,
        ) from error
