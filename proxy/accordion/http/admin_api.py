"""The API for administrators: the proxy keys of all tenants with their limits, and what each tenant costs.

Every endpoint needs the administrator's key. No answer contains a key, except the one to the request that creates it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accordion.accounting.holdout import HoldoutComparison
from accordion.accounting.holdout_text import comparison_json
from accordion.accounting.key_limits import (
    NO_LIMITS,
    DollarsPerDay,
    KeyLimits,
    KeyUsage,
    KeyUsageLedger,
    RequestsPerMinute,
    TokensPerDay,
)
from accordion.accounting.ledger import DAY, DAYS, day_name
from accordion.http.api_requests import check_admin, json_response, parse_number, read_body
from accordion.http.json_views import costs_json
from accordion.model.costs import Costs, to_dollars
from accordion.model.errors import BadRequest, RequestError
from accordion.pipeline.queries import Queries
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKeyRecord
from accordion.sessions.tenants import Tenants

_MAX_BODY = 64 * 1024
_MOST_LISTED = 1_000

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


class KeyView(msgspec.Struct, frozen=True):
    """A key, and what it used today."""

    record: ProxyKeyRecord
    usage: KeyUsage


class TenantView(msgspec.Struct, frozen=True):
    """A tenant: its keys, and its costs over some days."""

    name: str
    proxy_keys: Sequence[KeyView]
    costs: Costs


class TenantPage(msgspec.Struct, frozen=True):
    """Tenants by name, of the days from `first` to `last`. `next` is the last name; empty on the last page.

    `comparison` is that with the hold-out, over all tenants together. Only the first page has it.
    """

    first: str
    last: str
    tenants: Sequence[TenantView]
    next: str
    comparison: HoldoutComparison | None = None


class Administration:
    """The proxy keys and tenants of a store, for administrators. Methods may raise StoreUnavailable."""

    def __init__(
        self,
        tenants: Callable[[], Tenants],
        created_keys: CreatedKeys,
        usage: KeyUsageLedger,
        queries: Callable[[], Queries],
    ) -> None:
        self._tenants, self.created_keys, self._usage, self._queries = tenants, created_keys, usage, queries

    async def list_keys(self) -> list[KeyView]:
        """Returns all keys: those of the config, then the created ones, the latest last."""
        records = [*self._tenants().configured_keys.values(), *await self.created_keys.list_records()]
        await self._usage.read_others()
        return [KeyView(record, self._usage.usage(record.id)) for record in records]

    def check_created(self, key_id: str) -> None:
        """Raises ConfiguredKey for a key of the config: only created ones can be changed here."""
        if key_id in self._tenants().configured_keys:
            raise ConfiguredKey("This key is in the proxy's config. Change it there.")

    async def view_key(self, record: ProxyKeyRecord) -> KeyView:
        """Returns one key with what it used today."""
        await self._usage.read_others()
        return KeyView(record, self._usage.usage(record.id))

    async def list_tenant_names(self, keys: Sequence[KeyView] = ()) -> list[str]:
        """Returns the names of the tenants that have data, or one of `keys`."""
        return sorted({*(key.record.tenant for key in keys), *await self._queries().list_tenants()})

    async def list_tenants(self, now: float, days: int, after: str, limit: int) -> TenantPage:
        """Returns the tenants that have a key or data, by name, from behind `after` on."""
        keys, queries = await self.list_keys(), self._queries()
        names = await self.list_tenant_names(keys)
        page = [name for name in names if name > after][: limit + 1]
        reports = {name: await queries.read_savings(self._tenants().scope(name), now, days) for name in page[:limit]}
        views = [
            TenantView(name, [key for key in keys if key.record.tenant == name], report.total)
            for name, report in reports.items()
        ]
        first, last = day_name(now - (days - 1) * DAY), day_name(now)
        comparison = None
        if not after:
            comparison = await queries.read_holdout(map(self._tenants().scope, names), now, days)
        return TenantPage(first, last, views, page[limit - 1] if len(page) > limit else "", comparison)


class AdminApi:
    """The routes for administrators. Endpoints raise AccordionError; the application makes the response.

    `now` returns the time in seconds since the epoch.
    """

    def __init__(
        self, tenants: Callable[[], Tenants], administration: Administration, now: Callable[[], float]
    ) -> None:
        self._tenants = tenants
        self._administration = administration
        self._created_keys = administration.created_keys
        self._now = now

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/accordion/tenants", self._list_tenants),
            Route("/accordion/keys", self._list_keys),
            Route("/accordion/keys", self._create_key, methods=["POST"]),
            Route("/accordion/keys/{id}", self._change_limits, methods=["PATCH"]),
            Route("/accordion/keys/{id}", self._revoke_key, methods=["DELETE"]),
        ]

    async def _list_keys(self, request: Request) -> Response:
        """Lists all proxy keys with their limits and what they used today. Needs `admin_key`."""
        check_admin(request.headers.raw, self._tenants())
        return json_response({"keys": [key_json(view) for view in await self._administration.list_keys()]})

    async def _list_tenants(self, request: Request) -> Response:
        """Lists all tenants by name, each with its keys and its costs, and compares all with the hold-out. Needs
        `admin_key`.

        Parameters: `days` (1 to 400, default 30), `limit`, `after` (the `next` of the previous page).
        """
        check_admin(request.headers.raw, self._tenants())
        params = request.query_params
        days = parse_number(params.get("days", "30"), "days", 1, DAYS)
        limit = parse_number(params.get("limit", "100"), "limit", 1, _MOST_LISTED)
        page = await self._administration.list_tenants(self._now(), days, params.get("after", ""), limit)
        tenants = [
            {"tenant": view.name, "keys": [key_json(key) for key in view.proxy_keys], "total": costs_json(view.costs)}
            for view in page.tenants
        ]
        return json_response(
            {
                "first": page.first,
                "last": page.last,
                "tenants": tenants,
                "next": page.next or None,
                "holdout": comparison_json(page.comparison) if page.comparison is not None else None,
            }
        )

    async def _create_key(self, request: Request) -> Response:
        """Creates a proxy key. The answer (201) is the only one that has it. Needs `admin_key`.

        Body: `{"tenant": "research", "tokens_per_day": 5000000, "dollars_per_day": 20, "requests_per_minute": 60}`;
        each limit may be left out.
        """
        check_admin(request.headers.raw, self._tenants())
        new_key = await _decode_body(request, _NEW_KEY, '{"tenant": "NAME"}, and limits')
        record, key = await self._created_keys.create(new_key.tenant, new_key.applied_to(NO_LIMITS))
        return json_response({**key_json(KeyView(record, KeyUsage())), "key": key}, 201)

    async def _change_limits(self, request: Request) -> Response:
        """Changes the limits that the body names; 0: no limit. Needs `admin_key`."""
        check_admin(request.headers.raw, self._tenants())
        key_id = self._created_id(request)
        changes = await _decode_body(request, _NEW_LIMITS, '{"requests_per_minute": 60}, for example')
        record = await self._created_keys.read(key_id)
        record = await self._created_keys.set_limits(key_id, changes.applied_to(record.limits))
        return json_response(key_json(await self._administration.view_key(record)))

    async def _revoke_key(self, request: Request) -> Response:
        """Revokes a key. Needs `admin_key`."""
        check_admin(request.headers.raw, self._tenants())
        key_id = self._created_id(request)
        await self._created_keys.revoke(key_id)
        return json_response({"id": key_id, "revoked": True})

    def _created_id(self, request: Request) -> str:
        """Returns the id in the path. Raises ConfiguredKey."""
        key_id: str = request.path_params["id"]
        self._administration.check_created(key_id)
        return key_id


async def _decode_body(request: Request, decoder: msgspec.json.Decoder[T], example: str) -> T:
    """Reads a body. Raises BadRequest, with an example of a valid one, and BodyTooLarge."""
    try:
        return decoder.decode(await read_body(request, _MAX_BODY))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"Send {example}. {error}.", param="body") from error


def key_json(view: KeyView) -> dict[str, object]:
    """Describes a key, without the key itself. A limit of null is none."""
    record, limits, usage = view.record, view.record.limits, view.usage
    return {
        "id": record.id,
        "tenant": record.tenant,
        "source": "config" if record.created is None else "store",
        "created": record.created,
        "limits": {name: getattr(limits, name) or None for name in limits.__struct_fields__},
        "today": {"requests": usage.requests, "tokens": usage.tokens, "dollars": to_dollars(usage.cost)},
    }
