"""Accordion's own API: what is known of models and sessions, what may be asked of a session, metrics, health. One
tenant's at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from accordion.compaction.wishes import FORCED_FOR, MOST_PINS, Wishes
from accordion.core.errors import AccordionError, BadRequest, NotFound
from accordion.core.records import Session
from accordion.faces.asked import answered, body_of, caller_of, number, unknown_session
from accordion.faces.metrics import Metrics
from accordion.faces.shown import shown_agent, shown_exchange, shown_limits, shown_model, shown_session
from accordion.identity.tenants import Caller, Tenants
from accordion.observe import Observe, SessionView, Spot

_MOST = 1_000
# As many call ids as may be pinned, each as long as any provider's, take a fraction of this.
_BODY = 256 * 1024
_LONGEST_ID = 256
_TIME = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
_WILL = {
    "auto": "The next request of this session is folded, whatever its size.",
    "observe": "What a fold would do is told with the next request of this session, and nothing is changed: "
    "compaction.mode is observe for its model.",
    "off": "Nothing is folded as long as compaction.mode is off for this session's model.",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class _Pins(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that sets pins."""

    call_ids: list[str]


_PINS = msgspec.json.Decoder(_Pins)


class Api:
    """The routes outside `/v1`: its own, and `more`. `waiting` gives what `/readyz` says of writes that wait."""

    def __init__(
        self,
        observe: Callable[[], Observe],
        tenants: Callable[[], Tenants],
        metrics: Metrics,
        error_body: Callable[[AccordionError], bytes],
        version: str,
        wishes: Wishes,
        more: Sequence[Route] = (),
        waiting: Callable[[], dict[str, object]] = dict,
    ) -> None:
        self._observe = observe
        self._tenants = tenants
        self._metrics = metrics
        self._error_body = error_body
        self._version = version
        self._wishes = wishes
        self._more, self._waiting = more, waiting

    def app(self) -> Starlette:
        """The Starlette application."""
        return Starlette(
            routes=[
                Route("/", self._root),
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
                Route("/metrics", self._page),
                Route("/accordion/models", self._models),
                Route("/accordion/sessions", self._sessions),
                Route("/accordion/sessions/{id}", self._session),
                Route("/accordion/sessions/{id}/tree", self._tree),
                Route("/accordion/sessions/{id}/compact", self._compact, methods=["POST"]),
                Route("/accordion/sessions/{id}/pins", self._pins, methods=["GET", "PUT", "DELETE"]),
                *self._more,
            ],
            exception_handlers={
                AccordionError: self._failed,
                HTTPException: self._refused,
                ClientDisconnect: _drop,
            },
        )

    # -- endpoints --------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        paths = {route.path for route in request.app.routes}
        more = {"artifacts": "/accordion/artifacts?session={id}"} if "/accordion/artifacts" in paths else {}
        if any(path.startswith("/accordion/memory") for path in paths):
            more |= {"memory": "/accordion/memory/openapi.json", "mcp": f"{_origin(request)}/mcp"}
        return answered(
            {
                "name": "accordion",
                "version": self._version,
                "openai_base_url": f"{_origin(request)}/v1",
                "anthropic_base_url": _origin(request),
                "see": [
                    "/accordion/models",
                    "/accordion/sessions",
                    "/accordion/export",
                    "/metrics",
                    "/healthz",
                    "/readyz",
                ],
                **more,
            }
        )

    async def _health(self, request: Request) -> Response:
        return answered({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        # Without its store the proxy still forwards, so it stays ready and says what it lacks. A store that never
        # answered is most likely configured wrongly: then no traffic should come here.
        observe = self._observe()
        if not observe.is_ready:
            return answered({"status": "unavailable", "store": "unavailable", **self._waiting()}, 503)
        store = "ok" if observe.store.available else "unavailable"
        return answered({"status": "ok", "store": store, **self._waiting()})

    async def _page(self, request: Request) -> Response:
        # The page names the models of all tenants.
        self._caller(request)
        # With many models and workers there is much to add up.
        body, kind = await asyncio.to_thread(self._metrics.page)
        return Response(body, headers={"content-type": kind})

    async def _models(self, request: Request) -> Response:
        found = await self._observe().models(self._tenant(request))
        return answered({"models": [shown_model(view) for view in found]})

    async def _sessions(self, request: Request) -> Response:
        limit, tenant = number(request.query_params.get("limit", "100"), "limit", 1, _MOST), self._tenant(request)
        label, after = request.query_params.get("label", ""), _spot(request.query_params.get("cursor", ""))
        # One more than is shown tells whether there is another page.
        found = await self._observe().sessions(tenant, limit=limit + 1, label=label, after=after)
        shown = found[:limit]
        asked = await self._wishes.of(tenant, [session.id for session in shown])
        sessions = [shown_session(*pair) for pair in zip(shown, asked, strict=True)]
        return answered({"sessions": sessions, "next": _cursor(shown[-1]) if len(found) > limit else None})

    async def _session(self, request: Request) -> Response:
        tenant, view = await self._known(request)
        (wish,) = await self._wishes.of(tenant, [view.session.id])
        exchanges = [shown_exchange(exchange) for exchange in view.exchanges]
        shown = shown_session(view.session, wish)
        return answered({**shown, "limits": shown_limits(view.limits), "exchanges": exchanges})

    async def _tree(self, request: Request) -> Response:
        """The agents that a session's agent works with."""
        session = request.path_params["id"]
        views = await self._observe().tree(self._caller(request), session)
        if views is None:
            raise unknown_session()
        return answered({"session": session, "agents": [shown_agent(view) for view in views]})

    async def _compact(self, request: Request) -> Response:
        """Wants a fold. It is made with the next request: only that has the history."""
        tenant, view = await self._known(request)
        session = view.session
        await self._wishes.force(tenant, session.id)
        mode = self._observe().mode(session.model)
        said = {
            "session": session.id,
            "model": session.model,
            "compaction_wanted": True,
            "expires_in": int(FORCED_FOR),
            "mode": mode,
            "message": _WILL[mode],
        }
        return answered(said, 202)

    async def _pins(self, request: Request) -> Response:
        tenant, view = await self._known(request)
        session = view.session.id
        if request.method == "PUT":
            await self._wishes.pin(tenant, session, _call_ids(await body_of(request, _BODY)))
        elif request.method == "DELETE":
            await self._wishes.pin(tenant, session, frozenset())
        (wish,) = await self._wishes.of(tenant, [session])
        return answered({"session": session, "call_ids": sorted(wish.pins)})

    async def _known(self, request: Request) -> tuple[str, SessionView]:
        """The caller's tenant, and the session that the path names. Raises NotFound."""
        tenant = self._tenant(request)
        view = await self._observe().session(tenant, request.path_params["id"])
        if view is None:
            raise unknown_session()
        return tenant, view

    # -- errors -----------------------------------------------------------------

    def _tenant(self, request: Request) -> str:
        return self._caller(request).tenant

    def _caller(self, request: Request) -> Caller:
        return caller_of(request.headers.raw, self._tenants())

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, AccordionError)  # noqa: S101  # it is registered for nothing else
        return Response(self._error_body(error), error.status, media_type="application/json")

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == 404:
            problem: AccordionError = NotFound(
                f"There is nothing at {request.url.path}. The base URL is this address with /v1 for OpenAI clients and "
                "without a path for Anthropic clients; GET / lists all other paths."
            )
            headers = error.headers
        else:
            problem = BadRequest(f"{request.method} is not supported at {request.url.path}.", code="method_not_allowed")
            headers = {"allow": ", ".join(sorted(_methods(request)))}
        body = self._error_body(problem)
        return Response(body, error.status_code, headers=headers, media_type="application/json")


async def _drop(request: Request, error: Exception) -> Response:
    """The answer for a client that has left, which the server does not send."""
    return Response(status_code=400)


def _methods(request: Request) -> set[str]:
    """What is answered at a path, by whichever routes."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in routes for method in route.methods}


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _cursor(session: Session) -> str:
    """What asks for the page behind this session."""
    return f"{session.updated!r}:{session.id}"


def _spot(cursor: str) -> Spot | None:
    updated, colon, session = cursor.partition(":")
    if not cursor:
        return None
    if not (colon and session and _TIME.fullmatch(updated)):
        raise BadRequest("cursor must be the value of `next` in the previous page.", param="cursor")
    return Spot(-float(updated), session)


def _call_ids(body: bytes) -> frozenset[str]:
    """The pins that a body asks for. Raises BadRequest with what is wrong, and where."""
    try:
        given = _PINS.decode(body).call_ids
    except msgspec.ValidationError as error:
        raise BadRequest(f'Send {{"call_ids": ["..."]}}. {error}.', param="call_ids") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f'The body must be JSON: {{"call_ids": ["..."]}}. {error}.', param="body") from error
    for index, call_id in enumerate(given):
        if not 0 < len(call_id) <= _LONGEST_ID:
            raise BadRequest(f"A call id has 1 to {_LONGEST_ID} characters.", param=f"call_ids[{index}]")
    if len(set(given)) > MOST_PINS:
        raise BadRequest(f"A session has {MOST_PINS} pins at most; {len(set(given))} were sent.", param="call_ids")
    return frozenset(given)
