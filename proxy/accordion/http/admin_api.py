"""The API for administrators: proxy keys of all tenants. Every endpoint needs the administrator's key.

No answer contains a key, except the one to the request that creates it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accordion.http.api_requests import check_admin, json_response, read_body
from accordion.model.errors import BadRequest, RequestError
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKeyRecord
from accordion.sessions.tenants import Tenants

_MAX_BODY = 64 * 1024


class ConfiguredKey(RequestError):
    """A key of the configuration cannot be changed by the API."""

    status = 409
    code = "configured_key"


class _NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that creates a key."""

    tenant: str


_NEW_KEY = msgspec.json.Decoder(_NewKey)


class AdminApi:
    """The routes for administrators. Endpoints raise AccordionError; the application makes the response."""

    def __init__(self, tenants: Callable[[], Tenants], created_keys: CreatedKeys) -> None:
        self._tenants = tenants
        self._created_keys = created_keys

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/accordion/keys", self._list_keys),
            Route("/accordion/keys", self._create_key, methods=["POST"]),
            Route("/accordion/keys/{id}", self._revoke_key, methods=["DELETE"]),
        ]

    async def _list_keys(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        records = [*self._tenants().configured_keys.values(), *await self._created_keys.list_records()]
        return json_response({"keys": [key_json(record) for record in records]})

    async def _create_key(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        try:
            new_key = _NEW_KEY.decode(await read_body(request, _MAX_BODY))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f'Send {{"tenant": "NAME"}}. {error}.', param="body") from error
        record, key = await self._created_keys.create(new_key.tenant)
        return json_response({**key_json(record), "key": key}, 201)

    async def _revoke_key(self, request: Request) -> Response:
        check_admin(request.headers.raw, self._tenants())
        key_id = request.path_params["id"]
        if key_id in self._tenants().configured_keys:
            raise ConfiguredKey("This key is in the proxy's config. Remove it there.")
        await self._created_keys.revoke(key_id)
        return json_response({"id": key_id, "revoked": True})


def key_json(record: ProxyKeyRecord) -> dict[str, object]:
    """Describes a key, without the key itself."""
    return {
        "id": record.id,
        "tenant": record.tenant,
        "source": "config" if record.created is None else "store",
        "created": record.created,
    }
