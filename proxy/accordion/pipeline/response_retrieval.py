"""Retrieves responses that the provider keeps, by the id that the client was given.

A response with tool rounds is several responses for the provider. The client knows the first one's id; the last one's
id leads to the whole content (docs/adr/0010-reading-back-within-the-reply.md). `input_items` lists the input of the
first one: the additional input of the others belongs to the response.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from accordion.insertions.store import InsertionStore
from accordion.model.errors import AccordionError
from accordion.model.http import CompleteResponse
from accordion.model.insertions import ToolRoundInsertion
from accordion.model.ports import UpstreamResponse
from accordion.model.tenant import ConversationRef
from accordion.pipeline.relay import RewrittenResponse, content_type_and_encoding, read_body, strip_body_headers
from accordion.pipeline.request import PassthroughRequest
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.openai_responses.tool_rounds import rewrite_document, rewrite_events
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer
from accordion.sessions.prefix_nodes import PrefixNode
from accordion.sessions.sessions import Sessions

_STORED_RESPONSE = re.compile(r"(/v1/responses/|/openai/(?:v1/)?responses/)([^/]+)(/cancel)?/?")
"""The path of a response, at OpenAI and at Azure."""

SendRequest = Callable[[PassthroughRequest], Awaitable[UpstreamResponse]]


class ResponseRetrieval(msgspec.Struct, frozen=True):
    """Sends such requests with the provider's own ids, and returns the responses under the client's."""

    sessions: Sessions
    insertion_store: InsertionStore

    async def retrieve(self, request: PassthroughRequest, send: SendRequest) -> UpstreamResponse | None:
        """Returns the response; None if the request is for no such response. Raises the errors of `send`."""
        inbound = request.inbound
        match = _STORED_RESPONSE.fullmatch(inbound.path)
        if match is None or inbound.method not in ("GET", "DELETE", "POST"):
            return None
        beginning, client_id, below = match[1], unquote(match[2]), match[3] or ""
        node = await self.sessions.find_state(request.caller, client_id)
        if node is None or not node.ids:
            return None
        response = await send(_with_path(request, beginning + quote(node.ids[-1], safe="") + below))
        if response.status != 200:
            return response
        if inbound.method == "DELETE":
            hidden_ids = [each for each in node.ids[:-1] if each != node.ids[-1]]
            await self._delete_hidden_rounds(request, send, [beginning + quote(each, safe="") for each in hidden_ids])
        return await self._rewrite_response(response, client_id, await self._find_insertions(request, node))

    async def _delete_hidden_rounds(self, request: PassthroughRequest, send: SendRequest, paths: list[str]) -> None:
        """Deletes the rounds before the last, which the client does not know of."""
        for path in paths:
            with suppress(AccordionError):
                await (await send(_with_path(request, path))).close()

    async def _find_insertions(self, request: PassthroughRequest, node: PrefixNode) -> list[ToolRoundInsertion]:
        insertions = await self.insertion_store.find_at(
            ConversationRef(request.caller.tenant, node.scope, node.session), node.chain, check_store=True
        )
        return [each for each in insertions if isinstance(each, ToolRoundInsertion)]

    async def _rewrite_response(
        self, response: UpstreamResponse, client_id: str, insertions: list[ToolRoundInsertion]
    ) -> UpstreamResponse:
        kind, encoding = content_type_and_encoding(response.headers)
        if kind == "text/event-stream":
            return RewrittenResponse(
                response, _rewrite_events(response, Decoder(encoding) if encoding else None, client_id, insertions)
            )
        body = await read_body(response, encoding)
        if len(body) <= BOUND:
            body = rewrite_document(body, client_id, insertions)
        return CompleteResponse(body, strip_body_headers(response.headers))


def _with_path(request: PassthroughRequest, path: str) -> PassthroughRequest:
    """Returns the request for another path. Its response must be readable."""
    headers = tuple(pair for pair in request.inbound.headers if pair[0] != b"accept-encoding")
    inbound = replace(request.inbound, path=path, headers=(*headers, (b"accept-encoding", b"identity")))
    return replace(request, inbound=inbound)


async def _rewrite_events(
    response: UpstreamResponse, decoder: Decoder | None, client_id: str, insertions: list[ToolRoundInsertion]
) -> AsyncGenerator[bytes, None]:
    events = SseBuffer(BOUND)
    async with aclosing(response.chunks()) as pieces:
        async for piece in pieces:
            if block := events.feed(piece if decoder is None else decoder.feed(piece)):
                yield rewrite_events(block, client_id, insertions)
    if rest := events.flush():
        yield rewrite_events(rest, client_id, insertions)
