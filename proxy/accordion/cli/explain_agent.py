"""Explains a request's agent: its delegation, the evidence, and the results that are hidden from it.

`describe_agent` makes the values that `--json` prints, `agent_rows` the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace
from rich.text import Text

from accordion.cli.listing import count_with_noun
from accordion.cli.offline_pipeline import OfflinePipeline
from accordion.model.delegation import TOP, AgentPosition, Evidence, display_name
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest
from accordion.pipeline.visibility import metadata_with_scope
from accordion.sessions.client_metadata import ClientMetadata, read_client_metadata


@dataclass(frozen=True, slots=True)
class HiddenResult:
    """A hidden result and its call. `index` is its message's index in the client's list, `of` the owning delegation."""

    index: int
    tool: str
    call_id: str
    of: str


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """The agent of a request.

    `delegation` and its ancestors (`path`, oldest first) have the clients' names for them; empty for the main agent.
    `candidates` counts the calls that could have started it; more than one is ambiguous. `on_record` says whether the
    records of proxies could be read.
    """

    delegated: bool
    delegation: str
    path: tuple[str, ...]
    agent: str
    evidence: Evidence
    call_id: str
    candidates: int
    hidden: tuple[HiddenResult, ...]
    on_record: bool

    @property
    def is_informative(self) -> bool:
        """Whether anything is known besides a main agent."""
        return bool(self.delegated or self.delegation or self.agent or self.candidates)


async def describe_agent(
    request: MeasuredRequest | PassthroughRequest, fields: dict[bytes, bytes], pipeline: OfflinePipeline
) -> AgentDescription | None:
    """Describes the agent of a measured request; None if the body was not parsed."""
    visible = request.visible_request
    if visible is None:
        return None
    position, lead = visible.position, len(visible.client_conversation.lead)
    if not position.node:
        metadata = read_client_metadata(fields, visible.client_conversation.envelope)
        position = await _stored_position(request, metadata, position, pipeline)
    hidden = (
        HiddenResult(
            lead + result.result[0], result.name, result.call_id, display_name(visible.owners.get(result.result, TOP))
        )
        for result in visible.hidden_results
    )
    return AgentDescription(
        delegated=position.delegated,
        delegation=display_name(position.node),
        path=tuple(map(display_name, position.path)),
        agent=position.agent,
        evidence=position.evidence,
        call_id=position.call_id,
        candidates=position.candidates,
        hidden=tuple(hidden),
        on_record=pipeline.sessions is not None,
    )


async def _stored_position(
    request: MeasuredRequest | PassthroughRequest,
    metadata: ClientMetadata,
    position: AgentPosition,
    pipeline: OfflinePipeline,
) -> AgentPosition:
    """Returns the position of an unmarked request, from the proxies' record of the call that started its session."""
    if pipeline.sessions is None or isinstance(request, PassthroughRequest):
        return position
    tenant = request.caller.tenant
    tree = pipeline.forward.reader.identifier.visibility.delegation_tracker.delegation_tree
    match = await pipeline.sessions.resolve(
        request.caller, metadata_with_scope(metadata, position), request.conversation, "explained"
    )
    node = f"s:{match.session.id}"
    await tree.load(tenant, (node,))
    known_node = tree.get(tenant, node)
    if known_node is None or not known_node.parent:
        return replace(position, candidates=known_node.candidates) if known_node is not None else position
    return replace(
        position, node=node, path=tree.path(tenant, node), agent=known_node.agent or position.agent,
        evidence=known_node.evidence, delegated=True, parent=known_node.parent, call_id=known_node.call_id,
    )  # fmt: skip


_MAX_HIDDEN = 12
"""The number of hidden results to list without `--full`."""

_EVIDENCE = {
    "header": "the header or metadata field says so",
    "mark": "metadata that the client sends",
    "handoff": "{call} hands over to it",
    "tool": "its task is the exact text that {call} passes to a delegating tool",
    "argument": "its task is the exact text of an argument of {call}",
}


def agent_rows(agent: AgentDescription, *, full: bool) -> Iterator[tuple[str, str | Text]]:
    """Yields the rows of the section about the agent: name and value."""
    if not agent.delegation:
        yield (
            "agent",
            (f"{agent.agent}, " if agent.agent else "") + ("a sub-agent" if agent.delegated else "the main agent"),
        )
        yield "sees", "its complete message list"
    else:
        yield "delegation", agent.delegation + (f", agent {agent.agent}" if agent.agent else "")
        if ancestors := agent.path[:-1]:
            yield "works for", ", which works for ".join(reversed(ancestors))
        call = f"the call {agent.call_id}" if agent.call_id else "the call that started it"
        yield "evidence", _EVIDENCE.get(agent.evidence, "none").format(call=call)
        yield (
            "sees",
            "its message list without the hidden results" if agent.hidden else "its complete message list",
        )
    if agent.candidates > 1:
        yield (
            "ambiguous",
            f"{agent.candidates} open calls contain its exact task, so it is assigned to none of them",
        )
    if agent.hidden:
        owners = Counter(result.of for result in agent.hidden)
        counts = ", ".join(f"{count} of {name}" for name, count in owners.most_common(_MAX_HIDDEN))
        yield (
            "hidden",
            Text(f"{count_with_noun(len(agent.hidden), 'result')} with their calls: {counts}", style="bold"),
        )
        for result in agent.hidden if full else agent.hidden[:_MAX_HIDDEN]:
            yield "", f"[{result.index}] {result.tool or 'a result'} {result.call_id}: belongs to {result.of}"
        if not full and len(agent.hidden) > _MAX_HIDDEN:
            yield "", f"and {len(agent.hidden) - _MAX_HIDDEN:,} more; --full lists all"
    if not agent.on_record:
        yield "note", "delegations known to a running proxy are not included: there is no store to read, or it is empty"
