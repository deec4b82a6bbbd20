"""Accordion's own REST API: models, sessions, savings, pins, compaction requests, metrics and health.

`RestApi` is the Starlette application for every path outside `/v1`. The archive's and the memories' routes are added to
it (archive_api.py, memory_api.py, mcp_app.py). Every answer is about the caller's tenant only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route

from accordion.accounting.ledger import DAYS
from accordion.compaction.session_overrides import MOST_PINS, REQUEST_SECONDS, SessionMode, SessionOverrideStore
from accordion.http.api_requests import (
    SAFE,
    check_admin,
    find_origin,
    identify_caller,
    json_response,
    parse_number,
    read_body,
    unknown_session,
)
from accordion.http.deferred_routes import list_built
from accordion.http.json_views import (
    agent_json,
    exchange_json,
    limits_json,
    model_json,
    savings_json,
    session_json,
)
from accordion.http.metrics import Metrics
from accordion.http.session_requests import decode_name, read_cursor, read_filter, write_cursor
from accordion.model.errors import AccordionError, BadRequest, NotFound
from accordion.model.tenant import TenantScope
from accordion.pipeline.queries import Queries, SessionView
from accordion.sessions.tenants import Caller, Tenants

_MAX_SESSIONS = 1_000
_MAX_EXCHANGES = 1_000
_MAX_POSITION = 10**12
# The largest set of pins with the longest call ids takes a fraction of this.
_MAX_BODY = 256 * 1024
_MAX_CALL_ID = 256
_EFFECTS = {
    "auto": "The next request of this session is compacted, whatever its size.",
    "observe": "The next request of this session reports what a compaction would do, and nothing is changed: "
    "compaction.mode is observe for its model.",
    "off": "Nothing is compacted as long as compaction.mode is off for this session's model.",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class _Pins(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that sets pins."""

    call_ids: list[str]


class _Mode(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that sets a session's mode."""

    mode: SessionMode


_PINS = msgspec.json.Decoder(_Pins)
_MODE = msgspec.json.Decoder(_Mode)


class RestApi:
    """The application outside `/v1`, with its own routes and `routes`. `pending_writes` adds fields to `/readyz`.

    `now` returns the time in seconds since the epoch. `health` adds fields to `/healthz`.
    """

    def __init__(
        self,
        queries: Callable[[], Queries],
        tenants: Callable[[], Tenants],
        metrics: Metrics,
        error_body: Callable[[AccordionError], bytes],
        version: str,
        overrides: SessionOverrideStore,
        routes: Sequence[Route] = (),
        pending_writes: Callable[[], dict[str, object]] = dict,
        now: Callable[[], float] = time.time,
        health: Callable[[], dict[str, object]] = dict,
    ) -> None:
        self._queries = queries
        self._tenants = tenants
        self._metrics = metrics
        self._error_body = error_body
        self._version = version
        self._overrides = overrides
        self._routes, self._pending_writes, self._health_fields = routes, pending_writes, health
        self._now = now

    def app(self) -> Starlette:
        """Builds the Starlette application."""
        return Starlette(
            routes=[
                Route("/", self._root),
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
                Route("/metrics", self._page),
                Route("/accordion/models", self._models),
                Route("/accordion/savings", self._savings),
                Route("/accordion/sessions", self._sessions),
                Route("/accordion/sessions/{id}", self._session),
                Route("/accordion/sessions/{id}/exchanges", self._exchanges),
                Route("/accordion/sessions/{id}/tree", self._tree),
                Route("/accordion/sessions/{id}/compact", self._compact, methods=["POST"]),
                Route("/accordion/sessions/{id}/pins", self._pins, methods=["GET", "PUT", "DELETE"]),
                Route("/accordion/sessions/{id}/mode", self._mode, methods=["GET", "PUT"]),
                Route("/accordion/sessions/{id}/name", self._name, methods=["GET", "PUT"]),
                *self._routes,
            ],
            exception_handlers={
                AccordionError: self._server_error,
                HTTPException: self._client_error,
                ClientDisconnect: _drop,
            },
        )

    # -- endpoints --------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        """Shows the base URLs for clients, and the paths of artifacts, memory and MCP.

        A browser goes on to the page.
        """
        paths = {route.path for route in request.app.routes}
        if "text/html" in request.headers.get("accept", "") and "/accordion/" in paths:
            # Relative, as all links of the page, so that it works under a path prefix.
            return RedirectResponse("accordion/", 303, headers=SAFE)
        origin = find_origin(request)
        more = {"artifacts": "/accordion/artifacts?session={id}"} if "/accordion/artifacts" in paths else {}
        if any(path.startswith("/accordion/memory") for path in paths):
            more |= {"memory": "/accordion/memory/openapi.json", "mcp": f"{origin}/mcp"}
        return json_response(
            {
                "name": "accordion",
                "version": self._version,
                "openai_base_url": f"{origin}/v1",
                "anthropic_base_url": origin,
                "gemini_base_url": origin,
                "see": [
                    "/accordion/",
                    "/accordion/models",
                    "/accordion/sessions",
                    "/accordion/savings",
                    "/accordion/export",
                    "/metrics",
                    "/healthz",
                    "/readyz",
                ],
                **more,
            }
        )

    async def _health(self, request: Request) -> Response:
        """Says that the process serves, with its version."""
        # `accordion run` joins a proxy by this answer.
        return json_response({"status": "ok", "name": "accordion", "version": self._version, **self._health_fields()})

    async def _ready(self, request: Request) -> Response:
        """Says whether the store answers. The status is 503 while it has never answered."""
        # Without its store the proxy still forwards, so it stays ready and reports the outage. A store that never
        # answered is most likely misconfigured: then no traffic should come here.
        queries = self._queries()
        if not queries.is_ready:
            return json_response({"status": "unavailable", "store": "unavailable", **self._pending_writes()}, 503)
        store = "ok" if queries.store.is_available else "unavailable"
        return json_response({"status": "ok", "store": store, **self._pending_writes()})

    async def _page(self, request: Request) -> Response:
        """Returns Prometheus metrics, correct with several workers.

        Where callers need a proxy key, Prometheus needs `admin_key`, as `credentials` of `authorization` in its scrape
        config.
        """
        # The page names the models of all tenants.
        if self._tenants().has_proxy_keys:
            check_admin(request.headers.raw, self._tenants())
        else:
            self._caller(request)
        # With many models and workers the sum takes long.
        body, kind = await asyncio.to_thread(self._metrics.render)
        return Response(body, headers={"content-type": kind})

    async def _models(self, request: Request) -> Response:
        """Lists the configured models and those that were used.

        Each has its window, triggers, targets, hard limit, utilization and totals.
        """
        views = await self._queries().list_models(self._tenant(request))
        return json_response({"models": [model_json(view) for view in views]})

    async def _savings(self, request: Request) -> Response:
        """Shows what was spent and saved, in all and by day, model and agent, the comparison with a hold-out, and the
        models for which compaction is stopped.

        Parameter: `days`, 1 to 400, today included; default 30.
        """
        days = parse_number(request.query_params.get("days", "30"), "days", 1, DAYS)
        queries, tenant, now = self._queries(), self._tenant(request), self._now()
        report = await queries.read_savings(tenant, now, days)
        comparison = await queries.read_holdout([tenant], now, days)
        return json_response(savings_json(report, queries.prices, comparison))

    async def _sessions(self, request: Request) -> Response:
        """Lists sessions, newest first: name, utilization, tokens saved, tokens spent on summaries, costs, pins.

        Parameters: `limit`, `cursor` (the `next` of the previous page), and filters: `q` (a part of name, project,
        label or id), `label`, `model`, `client`, `compacted` and `failed` (`true` or `false`), `since` and `until`
        (days of the last request, such as 2026-01-31, in UTC).
        """
        limit = parse_number(request.query_params.get("limit", "100"), "limit", 1, _MAX_SESSIONS)
        tenant = self._tenant(request)
        selection, after = (
            read_filter(request.query_params),
            read_cursor(request.query_params.get("cursor", ""), "cursor"),
        )
        page = await self._queries().search_sessions(tenant, selection, limit, after)
        overrides = await self._overrides.load(tenant, [session.id for session in page.sessions])
        views = [session_json(*pair) for pair in zip(page.sessions, overrides, strict=True)]
        return json_response({"sessions": views, "next": write_cursor(page.last) or None})

    async def _session(self, request: Request) -> Response:
        """Shows one session with its limits and its last exchanges, each with its compaction and its costs."""
        tenant, view = await self._find_session(request)
        (overrides,) = await self._overrides.load(tenant, [view.session.id])
        exchanges = [exchange_json(exchange) for exchange in view.exchanges]
        session = session_json(view.session, overrides)
        return json_response({**session, "limits": limits_json(view.limits), "exchanges": exchanges})

    async def _exchanges(self, request: Request) -> Response:
        """Lists all exchanges of a session, newest first: the store has the last 20,000.

        Parameters: `limit` (1 to 1,000, default 50), `cursor` (the `next` of the previous page).
        """
        params, session = request.query_params, request.path_params["id"]
        limit = parse_number(params.get("limit", "50"), "limit", 1, _MAX_EXCHANGES)
        before = parse_number(cursor, "cursor", 0, _MAX_POSITION) if (cursor := params.get("cursor")) else None
        page = await self._queries().read_exchanges(self._tenant(request), session, before, limit)
        if page is None:
            raise unknown_session()
        exchanges = [exchange_json(each.exchange) for each in page.exchanges]
        next_page = str(page.older) if page.older is not None else None
        return json_response({"session": session, "exchanges": exchanges, "next": next_page})

    async def _tree(self, request: Request) -> Response:
        """Lists the agents of the session's delegation tree."""
        session = request.path_params["id"]
        views = await self._queries().list_agents(self._caller(request), session)
        if views is None:
            raise unknown_session()
        return json_response({"session": session, "agents": [agent_json(view) for view in views]})

    async def _compact(self, request: Request) -> Response:
        """Compacts the session at its next request, whatever its size: only that has the history."""
        tenant, view = await self._find_session(request)
        session = view.session
        await self._overrides.demand_compaction(tenant, session.id)
        mode = self._queries().mode(session.model)
        response = {
            "session": session.id,
            "model": session.model,
            "compaction_wanted": True,
            "expires_in": int(REQUEST_SECONDS),
            "mode": mode,
            "message": _EFFECTS[mode],
        }
        return json_response(response, 202)

    async def _pins(self, request: Request) -> Response:
        """Reads, sets or removes the tool results that no compaction touches: `{"call_ids": ["…"]}`."""
        tenant, view = await self._find_session(request)
        session = view.session.id
        if request.method == "PUT":
            await self._overrides.set_pins(tenant, session, _call_ids(await read_body(request, _MAX_BODY)))
        elif request.method == "DELETE":
            await self._overrides.set_pins(tenant, session, frozenset())
        (overrides,) = await self._overrides.load(tenant, [session])
        return json_response({"session": session, "call_ids": sorted(overrides.pins)})

    async def _mode(self, request: Request) -> Response:
        """Reads or sets whether this session is compacted: `{"mode": "auto"}`, `observe` or `off`.

        `auto` leaves it to the settings, `observe` only reports, `off` leaves requests alone, also those that an
        earlier compaction shortened. A request's own header can only be stricter.
        """
        tenant, view = await self._find_session(request)
        session = view.session.id
        if request.method == "PUT":
            await self._overrides.set_mode(tenant, session, _decode_mode(await read_body(request, _MAX_BODY)))
        (overrides,) = await self._overrides.load(tenant, [session])
        return json_response({"session": session, "mode": overrides.mode})

    async def _name(self, request: Request) -> Response:
        """Reads or sets a session's name: `{"name": "…"}`. An empty one restores the automatic name."""
        tenant, view = await self._find_session(request)
        if request.method == "PUT":
            name = decode_name(await read_body(request, _MAX_BODY))
            await self._queries().rename_session(tenant, view.session, name, self._now())
            tenant, view = await self._find_session(request)
        return json_response({"session": view.session.id, "name": view.session.name})

    async def _find_session(self, request: Request) -> tuple[TenantScope, SessionView]:
        """Returns the caller's tenant and the session of the path. Raises NotFound."""
        tenant = self._tenant(request)
        view = await self._queries().find_session(tenant, request.path_params["id"])
        if view is None:
            raise unknown_session()
        return tenant, view

    # -- errors -----------------------------------------------------------------

    def _tenant(self, request: Request) -> TenantScope:
        return self._caller(request).tenant

    def _caller(self, request: Request) -> Caller:
        return identify_caller(request.headers.raw, self._tenants(), allows_anonymous=True)

    async def _server_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, AccordionError)  # noqa: S101  # the handler is registered for nothing else
        return Response(self._error_body(error), error.status, headers=SAFE, media_type="application/json")

    async def _client_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == 404:
            problem: AccordionError = NotFound(
                f"There is nothing at {request.url.path}. The base URL is this address with /v1 for OpenAI clients and "
                "without a path for Anthropic's and Google's clients; GET / lists all other paths."
            )
            headers = dict(error.headers or {})
        else:
            problem = BadRequest(f"{request.method} is not supported at {request.url.path}.", code="method_not_allowed")
            headers = {"allow": ", ".join(sorted(_allowed_methods(request)))}
        body = self._error_body(problem)
        return Response(body, error.status_code, headers=SAFE | headers, media_type="application/json")


async def _drop(request: Request, error: Exception) -> Response:
    """Returns the response for a client that has left; the server does not send it."""
    return Response(status_code=400)


def _allowed_methods(request: Request) -> set[str]:
    """Returns the methods of all routes at the request's path."""
    routes = (route for route in list_built(request.app.routes) if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in routes for method in route.methods or ()}


def _call_ids(body: bytes) -> frozenset[str]:
    """Parses the body of a pins request. Raises BadRequest that names the wrong field."""
    try:
        call_ids = _PINS.decode(body).call_ids
    except msgspec.ValidationError as error:
        raise BadRequest(f'Send {{"call_ids": ["..."]}}. {error}.', param="call_ids") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f'The body must be JSON: {{"call_ids": ["..."]}}. {error}.', param="body") from error
    for index, call_id in enumerate(call_ids):
        if not 0 < len(call_id) <= _MAX_CALL_ID:
            raise BadRequest(f"A call id has 1 to {_MAX_CALL_ID} characters.", param=f"call_ids[{index}]")
    if len(set(call_ids)) > MOST_PINS:
        raise BadRequest(f"A session has {MOST_PINS} pins at most; {len(set(call_ids))} were sent.", param="call_ids")
    return frozenset(call_ids)


def _decode_mode(body: bytes) -> SessionMode:
    """Parses the body of a mode request. Raises BadRequest."""
    try:
        return _MODE.decode(body).mode
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f'Send {{"mode": "auto"}}, "observe" or "off". {error}.', param="mode") from error
