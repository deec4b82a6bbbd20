"""The API for administrators: proxy keys of all tenants, with their limits.

Every endpoint needs the administrator's key. No answer contains a key, except the one to the request that creates it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accordion.accounting.key_limits import (
    NO_LIMITS,
    DollarsPerDay,
    KeyLimits,
    KeyUsage,
    KeyUsageLedger,
    RequestsPerMinute,
    TokensPerDay,
)
from accordion.http.api_requests import check_admin, json_response, read_body
from accordion.model.costs import to_dollars
from accordion.model.errors import BadRequest, RequestError
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKeyRecord
from accordion.sessions.tenants import Tenants

_MAX_BODY = 64 * 1024

T = TypeVar("T")


class ConfiguredKey(RequestError):
    """A key of the configuration cannot be changed by the API."""

    status = 409
    code = "configured_key"


class _NewLimits(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that changes limits; those that it leaves out stay."""

    tokens_per_day: TokensPerDay | None = None
    dollars_per_day: DollarsPerDay | None = None
    requests_per_minute: RequestsPerMinute | None = None

    def applied_to(self, limits: KeyLimits) -> KeyLimits:
        """Returns limits with these changes."""
        named = {name: getattr(self, name) for name in KeyLimits.__struct_fields__}
        return replace(limits, **{name: limit for name, limit in named.items() if limit is not None})


class _NewKey(_NewLimits, forbid_unknown_fields=True, kw_only=True):
    """The body of a request that creates a key."""

    tenant: str


_NEW_KEY, _NEW_LIMITS = msgspec.json.Decoder(_NewKey), msgspec.json.Decoder(_NewLimits)


class AdminApi:
    """The routes for administrators. Endpoints raise AccordionError; the application makes the response."""

    def __init__(self, tenants: Callable[[], Tenants], created_keys: CreatedKeys, usage: KeyUsageLedger) -> None:
        self._tenants = tenants
        self._created_keys = created_keys
        self._usage = usage

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/accordion/keys", self._list_keys),
            Route("/accordion/keys", self._create_key, methods=["POST"]),
            Route("/accordion/keys/{id}", self._change_limits, methods=["PATCH"]),
            Route("/accordion/keys/{id}", self._revoke_key, methods=["DELETE"]),
        ]

    async def _list_keys(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        records = [*self._tenants().configured_keys.values(), *await self._created_keys.list_records()]
        await self._usage.read_others()
        return json_response({"keys": [key_json(record, self._usage.usage(record.id)) for record in records]})

    async def _create_key(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        new_key = await _decode_body(request, _NEW_KEY, '{"tenant": "NAME"}, and limits')
        record, key = await self._created_keys.create(new_key.tenant, new_key.applied_to(NO_LIMITS))
        return json_response({**key_json(record, KeyUsage()), "key": key}, 201)

    async def _change_limits(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        key_id = self._created_id(request)
        changes = await _decode_body(request, _NEW_LIMITS, '{"requests_per_minute": 60}, for example')
        record = await self._created_keys.read(key_id)
        record = await self._created_keys.set_limits(key_id, changes.applied_to(record.limits))
        await self._usage.read_others()
        return json_response(key_json(record, self._usage.usage(key_id)))

    async def _revoke_key(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        key_id = self._created_id(request)
        await self._created_keys.revoke(key_id)
        return json_response({"id": key_id, "revoked": True})

    def _created_id(self, request: Request) -> str:
        """Returns the id in the path. Raises ConfiguredKey."""
        key_id: str = request.path_params["id"]
        if key_id in self._tenants().configured_keys:
            raise ConfiguredKey("This key is in the proxy's config. Change it there.")
        return key_id


async def _decode_body(request: Request, decoder: msgspec.json.Decoder[T], example: str) -> T:
    """Reads a body. Raises BadRequest, with an example of a valid one, and BodyTooLarge."""
    try:
        return decoder.decode(await read_body(request, _MAX_BODY))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"Send {example}. {error}.", param="body") from error


def key_json(record: ProxyKeyRecord, usage: KeyUsage) -> dict[str, object]:
    """Describes a key, without the key itself. A limit of null is none."""
    limits = record.limits
    return {
        "id": record.id,
        "tenant": record.tenant,
        "source": "config" if record.created is None else "store",
        "created": record.created,
        "limits": {name: getattr(limits, name) or None for name in limits.__struct_fields__},
        "today": {"requests": usage.requests, "tokens": usage.tokens, "dollars": to_dollars(usage.cost)},
    }
