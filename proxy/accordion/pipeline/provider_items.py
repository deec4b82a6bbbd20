"""Reads the items that a provider of the Responses API keeps, and extends its `conversation` objects.

A request that names a conversation object has only the new items. If such a conversation is to be compacted, its items
are read from the provider and take the object's place in the request (history_reconstruction.py). The provider then
adds nothing to the object by itself. So the items of the request and of its response are added before the response
ends, and the object stays whole: for the client, which may list it, and for the next request, which reads it again.
Nothing of it is cached, because a client may add and delete items itself.

A request that names a response by `previous_response_id` is reconstructed from the items on record. If they are not on
record, since the store was replaced or the conversation began without this proxy, the provider lists them as well.

Items that the provider does not take are stored, count as a part of the object, and are added with the next response.
Once this has begun, it goes on also if the client leaves: of a request that was cancelled it is not known whether the
provider has taken the items, and they must not be added twice.

Source: the API reference, "Conversations" (`GET` and `POST /v1/conversations/{id}/items`) and "Responses" (`GET
/v1/responses/{id}` and `…/input_items`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.stored_responses import StoredResponses
from accordion.model.errors import AccordionError, StoreUnavailable
from accordion.model.http import Inbound, derive_idempotency_key
from accordion.model.ports import Signal, Tasks, UpstreamResponse, Waiter
from accordion.model.records import ObservedResponse
from accordion.pipeline.relay import content_type_and_encoding, read_body
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of
from accordion.protocols.openai_responses.response import text_field

_log = logging.getLogger("accordion")

_PAGE, _MAX_PAGES = 100, 100
"""The items of a page, the most that the API gives at once, and the most pages that are read."""
_ADDED_AT_ONCE = 20
"""The most items that the API takes at once."""
_INCLUDED = (
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "file_search_call.results",
    "web_search_call.action.sources",
)
"""Content that the API leaves out of a list unless it is asked for."""
_INCLUDE_QUERY = "&".join(f"include[]={name}" for name in _INCLUDED)
_LIST_QUERY = f"limit={_PAGE}&order=asc&{_INCLUDE_QUERY}"
_MAX_RESPONSES = 100
"""The most responses of a chain that are read; usually the last one lists the items of all."""
_BODY_HEADERS = frozenset(
    {b"accept", b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"transfer-encoding"}
)
_MAX_LOGGED = 1_000
_ENDED = ("completed", "incomplete")

SendRequest = Callable[[PassthroughRequest], Awaitable[UpstreamResponse]]


class NotReconstructed(msgspec.Struct, frozen=True):
    """The reason why the history that the provider keeps cannot be put into a request."""

    reason: str


class ProviderItems(msgspec.Struct, frozen=True):
    """Reads and extends conversation objects, with the credentials of the requests that name them."""

    stored_responses: StoredResponses
    erasures: ErasureNotices
    tasks: Tasks
    waiter: Waiter
    send: SendRequest
    logged: set[str] = msgspec.field(default_factory=set)
    """The objects for which a refusal was already logged."""
    unlisted: dict[str, str] = msgspec.field(default_factory=dict)
    """The sessions whose provider does not list a chain's items, with the reason."""

    async def read_items(self, request: MeasuredRequest) -> list[bytes] | NotReconstructed:
        """Returns the items of the object that a request names, or the reason why they cannot be read.

        Raises StoreUnavailable, and the errors of `send`.
        """
        envelope = request.conversation.envelope
        if request.protocol.is_background(envelope) or envelope.get("store") == b"false":
            return NotReconstructed(
                "with `background` or `store: false`, the items of the response could not be added to the conversation"
            )
        object_id = _object_id(request)
        items = await self._list_items(request, f"/conversations/{_quote(object_id)}/items")
        if isinstance(items, NotReconstructed):
            return items
        return [*items, *await self.stored_responses.missing_items(request.caller.tenant, object_id)]

    async def read_chain(self, request: MeasuredRequest) -> list[bytes] | NotReconstructed:
        """Returns the items of the response that a request continues, with those before it; or why that is impossible.

        They are recorded, so that they are read once. A session whose provider does not list them is not tried again.
        """
        tenant, session = request.caller.tenant, request.session_match.session.id
        if session in self.unlisted:
            return NotReconstructed(self.unlisted[session])
        try:
            chain = await self._walk_chain(request)
        except AccordionError as error:
            return NotReconstructed(f"it could not be read from the provider ({error.message})")
        if isinstance(chain, NotReconstructed):
            if len(self.unlisted) >= _MAX_LOGGED:
                self.unlisted.clear()
            self.unlisted[session] = chain.reason
        elif not self.erasures.was_erased_since(tenant, session, request.started_at):
            with suppress(StoreUnavailable):
                await self.stored_responses.store_history(
                    tenant, session, request.client_conversation.continued_id, chain
                )
        return chain

    async def _walk_chain(self, request: MeasuredRequest) -> list[bytes] | NotReconstructed:
        """Reads a chain from its last response back: the provider may list a response's input without earlier ones."""
        items, ids, response_id = list[bytes](), set[str](), request.client_conversation.continued_id
        for _ in range(_MAX_RESPONSES):
            path = f"/responses/{_quote(response_id)}"
            status, response = await self._get(request, path, _INCLUDE_QUERY)
            if text_field(response, "status") not in _ENDED or not is_list(response.get("output", b"")):
                return NotReconstructed(f"the provider does not show the response that it continues (status {status})")
            if response.get("prompt", NULL) != NULL:
                return NotReconstructed("the provider does not show the messages of its template")
            output = items_of(response["output"])
            if ids.intersection(map(_item_id, output)):
                return items
            inputs = await self._list_items(request, f"{path}/input_items")
            if isinstance(inputs, NotReconstructed):
                return inputs
            items = [*inputs, *output, *items]
            ids.update(filter(None, map(_item_id, items)))
            response_id = text_field(response, "previous_response_id")
            if not response_id:
                return items
        return NotReconstructed(f"the chain has more than {_MAX_RESPONSES} responses")

    async def _list_items(self, request: MeasuredRequest, path: str) -> list[bytes] | NotReconstructed:
        items, after = list[bytes](), ""
        for _ in range(_MAX_PAGES):
            status, page = await self._get(request, path, _LIST_QUERY + after)
            if not is_list(page.get("data", b"")):
                return NotReconstructed(f"the provider does not list the items that it keeps (status {status})")
            items += items_of(page["data"])
            if page.get("has_more") != b"true":
                return items
            after = "&after=" + _quote(text_field(page, "last_id"))
        return NotReconstructed(f"the provider keeps more than {_PAGE * _MAX_PAGES:,} items")

    async def _get(self, request: MeasuredRequest, path: str, query: str) -> tuple[int, Mapping[str, bytes]]:
        """Returns the status and the fields of an object; no fields if there is none."""
        response = await self.send(_build_request(request, "GET", path, query=query))
        body = await read_body(response, content_type_and_encoding(response.headers)[1])
        return response.status, fields_of(body) if response.status == 200 and is_object(body) else {}

    async def add_items(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Adds the items of a request and its response to the object that the request named.

        Does nothing if the provider does so itself, or if the response failed. Never fails. If the caller is cancelled,
        it goes on to its end.
        """
        by_id = request.request_with_id
        if by_id is None or by_id.conversation.provider_state != "object" or observed_response.error:
            return
        if observed_response.output is None:
            self._log_refusal(
                by_id, _object_id(by_id), "the response was too large to be read", "The object lacks them"
            )
            return
        conversation = by_id.client_conversation
        entries = [message.wire for message in (*conversation.lead, *conversation.messages)]
        added = self.waiter.create_signal()
        work = self._add_with_waiting(by_id, [*map(_as_item, entries), *observed_response.output], added)
        self.tasks.spawn(work, "add items to a conversation object")
        await added.wait()

    async def _add_with_waiting(self, request: MeasuredRequest, items: Sequence[bytes], added: Signal) -> None:
        """Adds the items that wait for the object and new ones; stores those that the provider did not take."""
        tenant, session, object_id = request.caller.tenant, request.session_match.session.id, _object_id(request)
        try:
            waiting: Sequence[bytes] | None = None
            with suppress(StoreUnavailable):
                waiting = await self.stored_responses.missing_items(tenant, object_id)
            missing = await self._add(request, object_id, [*(waiting or ()), *items])
            if missing and waiting is None:
                raise StoreUnavailable("it is not known which items wait for the object")
            if (missing or waiting) and not self.erasures.was_erased_since(tenant, session, request.started_at):
                await self.stored_responses.store_missing_items(tenant, session, object_id, tuple(missing))
        except Exception:
            # The response itself is complete, and must not fail because of this.
            _log.exception(
                "items could not be added to a conversation object", extra={"request_id": request.inbound.request_id}
            )
        finally:
            added.set()

    async def _add(self, request: MeasuredRequest, object_id: str, items: Sequence[bytes]) -> Sequence[bytes]:
        """Adds items to the object; returns those that the provider did not take."""
        for at in range(0, len(items), _ADDED_AT_ONCE):
            if reason := await self._add_page(request, items[at : at + _ADDED_AT_ONCE]):
                self._log_refusal(request, object_id, reason, "They are stored, and are added with the next response")
                return items[at:]
        return ()

    async def _add_page(self, request: MeasuredRequest, items: Sequence[bytes]) -> str:
        """Adds items with one request; returns the reason why the provider did not take them, or an empty text."""
        body = object_of({"items": list_of(items)})
        try:
            path = f"/conversations/{_quote(_object_id(request))}/items"
            response = await self.send(_build_request(request, "POST", path, body=body))
        except AccordionError as error:
            return error.message
        # The status says whether they were taken, also if the rest of the response is lost.
        with suppress(AccordionError):
            await read_body(response, content_type_and_encoding(response.headers)[1])
        return "" if response.status == 200 else f"the provider answered with status {response.status}"

    def _log_refusal(self, request: MeasuredRequest, object_id: str, reason: str, effect: str) -> None:
        """Warns once for each object. `effect` says what becomes of the items."""
        if object_id in self.logged or len(self.logged) >= _MAX_LOGGED:
            return
        self.logged.add(object_id)
        _log.warning(
            "items were not added to the conversation object %s of session %s, model %s: %s. %s",
            object_id,
            request.session_match.session.id,
            request.conversation.model,
            reason,
            effect,
        )


def _object_id(request: MeasuredRequest) -> str:
    return request.conversation.continued_id


def _as_item(wire: bytes) -> bytes:
    """Returns an entry of a request's list as an item; a plain text is a user's message."""
    return b'{"type":"message","role":"user","content":%s}' % wire if is_text(wire) else wire


def _item_id(item: bytes) -> str:
    return text_field(fields_of(item), "id") if is_object(item) else ""


def _quote(text: str) -> str:
    return quote(text, safe="")


def _build_request(
    request: MeasuredRequest, method: str, path: str, *, query: str = "", body: bytes = b""
) -> PassthroughRequest:
    """Builds a request for what the provider keeps, at `path` below its base, to the same provider as `request`."""
    inbound = request.inbound
    path = inbound.path.removesuffix("/responses") + path
    headers = tuple([pair for pair in inbound.headers if pair[0].lower() not in _BODY_HEADERS])
    headers = derive_idempotency_key(headers, path.encode() + body)
    headers += ((b"accept", b"application/json"), (b"accept-encoding", b"identity"))
    if body:
        headers += ((b"content-type", b"application/json"),)
    query = "&".join(filter(None, (inbound.query, query)))
    return PassthroughRequest(
        inbound=Inbound(method, path, query, headers, body, inbound.request_id),
        caller=request.caller,
        started_at=request.started_at,
        protocol=request.protocol,
        route=replace(request.route, model=None),
        decoded_body=b"",
    )
