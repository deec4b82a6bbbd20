"""The first step: reads a request's body into a conversation, and finds its route.

A body that no protocol reads, or that cannot be read, is passed through unread. It may still name a configured model,
which decides where it goes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from accordion.compaction.request_controls import read_controls
from accordion.model.conversation import Conversation
from accordion.model.errors import BadRequest, TooManyMessages, Unreadable
from accordion.model.http import Inbound
from accordion.model.ports import Route, Router, Tasks
from accordion.pipeline.request import PassthroughRequest, ReceivedRequest, RequestHandler
from accordion.pipeline.request_hooks import RequestHook
from accordion.protocols.base import Endpoint, WireProtocol
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.clouds import open_frames, unread_reason
from accordion.protocols.content_encoding import decode_body
from accordion.protocols.model_name import model_in_body, model_in_target
from accordion.protocols.odd_json import make_readable
from accordion.protocols.registry import family_for, find_protocol, protocol_for, unread_api_reason
from accordion.sessions.client_compactions import asks_for_client_compaction
from accordion.sessions.client_metadata import ClientMetadata, read_client_metadata
from accordion.sessions.tenants import Caller

_log = logging.getLogger("accordion")

# Bodies up to this size are read without a thread if at most `_NEW_AT_ONCE` bytes of them are new. All others are read
# in a thread, so that other requests need not wait. A thread costs 0.1 ms; a new megabyte costs 10 ms, or 300 ms if its
# messages are very small.
_MAX_READ_INLINE = 1 << 20
_NEW_AT_ONCE = 32_768
_TENANTS_LOGGED = 1_000
_NO_OBJECT, _NO_CREDENTIAL = "no readable JSON object", "no credential"
# Bodies above this size are read one at a time, so that the extra memory for reading is needed only once.
_MIN_READ_ALONE = 4 << 20


class _UnreadBody(NamedTuple):
    """A body that was not read. `unread_content`: see PassthroughRequest."""

    unread_content: str


class Receiver(msgspec.Struct, frozen=True):
    """Reads requests. Keeps no state between requests but what was logged."""

    body_reader: BodyReader
    base_models: Mapping[str, str]
    """The model id behind a configured name, used to find the token encoding."""
    router: Router
    tasks: Tasks
    max_body: int = 64 * 2**20
    hooks: Sequence[RequestHook] = ()
    unread_logged: set[str] = msgspec.field(default_factory=set)
    """Tenants and reasons for which an unread request was already logged."""

    async def receive(
        self, inbound: Inbound, caller: Caller, started_at: float = 0.0
    ) -> ReceivedRequest | PassthroughRequest:
        """Reads a request and finds its route. `started_at`: see IncomingRequest.

        Raises BadRequest if one of our headers is malformed or the model cannot be reached in this protocol, and the
        router's error if there is no route.
        """
        if reason := unread_reason(inbound.path, inbound.headers_by_name):
            self._log_unread(caller, len(inbound.beginning), reason)
            return replace(await self.pass_through(inbound, caller, started_at), is_unreadable=True)
        found = find_protocol(inbound.path)
        if found is None and (reason := unread_api_reason(inbound.path)):
            self._log_unread(caller, len(inbound.beginning), reason)
        if found is None or inbound.method != "POST" or not isinstance(inbound.body, bytes):
            return await self.pass_through(inbound, caller, started_at)
        fields = inbound.headers_by_name
        body = inbound.body if b"content-encoding" not in fields else await self._decode_body(inbound.body, fields)
        received = await self._receive_body(inbound, caller, started_at, *found, body)
        if not isinstance(received, PassthroughRequest) or received.unread_content != _NO_OBJECT:
            return received
        readable = await self.tasks.offload(make_readable, body)
        if readable is not None:
            marked = replace(inbound, has_marks=True)
            read = await self._receive_body(marked, caller, started_at, *found, readable)
            if not isinstance(read, PassthroughRequest):
                return read
        self._log_unread(caller, len(body), f"it holds {_NO_OBJECT}")
        return received

    async def _receive_body(
        self,
        inbound: Inbound,
        caller: Caller,
        started_at: float,
        protocol: WireProtocol,
        endpoint: Endpoint,
        body: bytes,
    ) -> ReceivedRequest | PassthroughRequest:
        """Reads a request's decoded body and finds its route."""
        fields = inbound.headers_by_name
        handler: RequestHandler | None = None
        for hook in self.hooks:
            if hook.concerns(protocol, inbound.path, body, may_be_translated=bool(self.router.models)):
                find_route = partial(self._find_route_of_body, inbound, protocol, body, caller)
                changed, handler = await hook.read(protocol, inbound, body, caller, find_route)
                if changed is not body:
                    body, inbound = changed, inbound.with_body(changed)
                if handler is not None:
                    break
        is_compaction_only = handler is not None and handler.is_client_compaction
        if endpoint.is_compaction and not is_compaction_only:
            return await self.pass_through(inbound, caller, started_at)
        conversation: Conversation | _UnreadBody
        if caller.is_anonymous:
            self._log_unread(caller, len(body), "its caller sends no credential, and no proxy_keys are configured")
            conversation = _UnreadBody(_NO_CREDENTIAL)
        elif self._is_quick(protocol, body, caller):
            conversation = self._read_body(protocol, body, caller)
        else:
            offload = self.tasks.offload if len(body) <= _MIN_READ_ALONE else self.tasks.offload_alone
            conversation = await offload(self._read_body, protocol, body, caller)
        # A body that cannot be read may still name its model. It must not go to a provider that it was not meant for.
        model = endpoint.model
        if isinstance(conversation, Conversation):
            conversation = endpoint.complete(conversation)
            model = conversation.model
        elif model is None:
            model = await self._find_model_name(body)
        route = self._find_route(inbound, protocol, model, caller)
        if route.is_translated and not protocol.is_translatable:
            raise BadRequest(
                f"Model `{route.name}` needs translation, and requests of this protocol cannot be translated. Name a "
                "model of this protocol's provider, or use Chat Completions, Responses or Messages.",
                param="model",
            )
        if not isinstance(conversation, Conversation):
            return PassthroughRequest(
                inbound=inbound,
                caller=caller,
                started_at=started_at,
                protocol=protocol,
                route=route,
                decoded_body=body,
                is_unreadable=not caller.is_anonymous,
                unread_content=conversation.unread_content,
            )
        return ReceivedRequest(
            inbound=inbound,
            caller=caller,
            started_at=started_at,
            protocol=protocol,
            route=route,
            decoded_body=body,
            client_conversation=conversation,
            client_metadata=_read_metadata(fields, conversation, is_compaction=is_compaction_only),
            controls=read_controls(fields),
            beta=fields.get(b"anthropic-beta", b"").decode("latin-1"),
            actual_model=self.base_models.get(conversation.model) or route.model or conversation.model,
            is_token_count=endpoint.is_token_count,
            handler=handler,
            frames=open_frames(inbound.path),
            is_dry_run=False,
        )

    def needs_body(self, method: str, path: str, content_type: bytes) -> bool:
        """Returns whether the request's body is read, so that it must be complete."""
        if method != "POST":
            return False
        return find_protocol(path) is not None or (bool(self.router.models) and b"json" in content_type)

    def _find_route(self, inbound: Inbound, protocol: WireProtocol, model: str | None, caller: Caller) -> Route:
        return self.router.for_protocol(self._find_unread_route(inbound, model, caller), protocol.name)

    def _find_unread_route(self, inbound: Inbound, model: str | None, caller: Caller) -> Route:
        route = self.router.route(family_for(inbound.path, inbound.headers_by_name), model)
        return route if caller.can_use_configured_keys else route.without_secrets()

    async def _find_route_of_body(self, inbound: Inbound, protocol: WireProtocol, body: bytes, caller: Caller) -> Route:
        return self._find_route(inbound, protocol, await self._find_model_name(body), caller)

    async def pass_through(self, inbound: Inbound, caller: Caller, started_at: float) -> PassthroughRequest:
        """Finds the route of a request that no protocol reads."""
        fields = inbound.headers_by_name
        body = await self._decode_body(inbound.beginning, fields) if self.router.models else b""
        model = model_in_target(inbound) or await self._find_model_name(body, fields.get(b"content-type", b""))
        route = self._find_unread_route(inbound, model, caller)
        is_encoded = b"content-encoding" in fields and not route.is_translated
        return PassthroughRequest(
            inbound=inbound,
            caller=caller,
            started_at=started_at,
            protocol=protocol_for(inbound.path, fields),
            route=route,
            decoded_body=body if is_encoded else b"",
        )

    async def _decode_body(self, body: bytes, fields: Mapping[bytes, bytes]) -> bytes:
        """Removes the content encoding of a body; returns empty bytes if that is not possible."""
        if (encoding := fields.get(b"content-encoding")) is None:
            return body
        return await self.tasks.offload(decode_body, body, encoding.decode("latin-1"), self.max_body) or b""

    def _is_quick(self, protocol: WireProtocol, body: bytes, caller: Caller) -> bool:
        """Returns whether reading a body takes less time than starting a thread for it."""
        if len(body) <= _NEW_AT_ONCE:
            return True
        return (
            len(body) <= _MAX_READ_INLINE
            and self.body_reader.count_new_bytes(protocol, body, caller.tenant) <= _NEW_AT_ONCE
        )

    def _read_body(self, protocol: WireProtocol, body: bytes, caller: Caller) -> Conversation | _UnreadBody:
        """Returns the conversation, if the body can be read."""
        try:
            return self.body_reader.read(protocol, body, caller.tenant)
        except TooManyMessages as error:
            self._log_unread(caller, len(body), f"it holds {error.message}")
            return _UnreadBody(error.message)
        except Unreadable:
            return _UnreadBody(_NO_OBJECT)
        except Exception:
            _log.exception("a request could not be read; it is forwarded unchanged")
            return _UnreadBody(_NO_OBJECT)

    def _log_unread(self, caller: Caller, size: int, reason: str) -> None:
        """Logs a warning once for each tenant and reason, since a client may send such a body again and again."""
        logged, key = self.unread_logged, f"{caller.tenant.name} {reason}"
        level = logging.DEBUG if key in logged else logging.WARNING
        if len(logged) < _TENANTS_LOGGED:
            logged.add(key)
        _log.log(level, "a request of %s bytes is passed on unread: %s", f"{size:,}", reason)

    async def _find_model_name(self, body: bytes, kind: bytes = b"") -> str | None:
        """Finds the model in a body that is not read otherwise. Only needed if models are configured."""
        if not self.router.models:
            return None
        if len(body) > _NEW_AT_ONCE:
            return await self.tasks.offload(model_in_body, body, kind)
        return model_in_body(body, kind)


def _read_metadata(fields: Mapping[bytes, bytes], conversation: Conversation, *, is_compaction: bool) -> ClientMetadata:
    """Reads a request's metadata; whether it is the client's own compaction is also read from its content."""
    metadata = read_client_metadata(fields, conversation.envelope)
    if is_compaction or asks_for_client_compaction(conversation):
        return replace(metadata, is_client_compaction=True)
    return metadata
