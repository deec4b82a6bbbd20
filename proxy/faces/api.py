"""Accordion's own API: what is known of models and sessions, metrics, health. Read-only, and one tenant's at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.core.budget import Limits, Utilization
from proxy.core.errors import AccordionError, BadRequest, NotFound
from proxy.core.records import Exchange, Session
from proxy.faces.metrics import Metrics
from proxy.identity.tenants import Tenants
from proxy.observe import ModelView, Observe

_MOST = 1_000

Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes outside `/v1`."""

    def __init__(
        self,
        observe: Callable[[], Observe],
        tenants: Callable[[], Tenants],
        metrics: Metrics,
        error_body: Callable[[AccordionError], bytes],
        version: str,
    ) -> None:
        self._observe = observe
        self._tenants = tenants
        self._metrics = metrics
        self._error_body = error_body
        self._version = version

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
            ],
            exception_handlers={AccordionError: self._failed, HTTPException: self._refused},
        )

    # -- endpoints --------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        return _json(
            {
                "name": "accordion",
                "version": self._version,
                "openai_base_url": f"{_origin(request)}/v1",
                "anthropic_base_url": _origin(request),
                "see": ["/accordion/models", "/accordion/sessions", "/metrics", "/healthz", "/readyz"],
            }
        )

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        # Without its store the proxy still forwards, so it is ready all the same, and says what it lacks.
        available = self._observe().store.available
        return _json({"status": "ok", "store": "ok" if available else "unavailable"})

    async def _page(self, request: Request) -> Response:
        body, kind = self._metrics.page()
        return Response(body, headers={"content-type": kind})

    async def _models(self, request: Request) -> Response:
        found = await self._observe().models(self._tenant(request))
        return _json({"models": [_model(view) for view in found]})

    async def _sessions(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", "100"))
        label = request.query_params.get("label", "")
        found = await self._observe().sessions(self._tenant(request), limit=limit, label=label)
        return _json({"sessions": [_session(session) for session in found]})

    async def _session(self, request: Request) -> Response:
        view = await self._observe().session(self._tenant(request), request.path_params["id"])
        if view is None:
            raise NotFound("There is no such session. GET /accordion/sessions lists them.", code="session_not_found")
        exchanges = [_exchange(exchange) for exchange in view.exchanges]
        return _json({**_session(view.session), "limits": _limits(view.limits), "exchanges": exchanges})

    # -- errors -----------------------------------------------------------------

    def _tenant(self, request: Request) -> str:
        return self._tenants().identify(dict(reversed(request.headers.raw))).tenant

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, AccordionError)  # noqa: S101  # it is registered for nothing else
        return Response(self._error_body(error), error.status, media_type="application/json")

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == 404:
            problem: AccordionError = NotFound(
                f"There is nothing at {request.url.path}. Clients use base URLs that end in /v1 (OpenAI) or in nothing "
                "(Anthropic); GET / names what else there is."
            )
        else:
            problem = BadRequest(f"{request.method} is not answered at {request.url.path}.", code="method_not_allowed")
        body = self._error_body(problem)
        return Response(body, error.status_code, headers=error.headers, media_type="application/json")


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _limit(given: str) -> int:
    if len(given) > 4 or not given.isascii() or not given.isdigit() or not 1 <= int(given) <= _MOST:
        raise BadRequest(f"limit must be a whole number from 1 to {_MOST}.", param="limit")
    return int(given)


def _limits(limits: Limits) -> dict[str, int]:
    return {
        "window": limits.window,
        "conversation_trigger": limits.conversation,
        "generation_trigger": limits.generation,
        "hard_limit": limits.hard,
    }


def _utilization(used: Utilization) -> dict[str, Any]:
    parts = ("preamble", "tools", "messages", "media", "reserved_output")
    return {
        "window": used.window,
        "window_known": used.window_known,
        "tokens": used.tokens,
        "utilization": round(used.ratio, 4),
        "carried": used.carried,
        "parts": {name: getattr(used, name) for name in parts},
    }


def _model(view: ModelView) -> dict[str, Any]:
    row = view.row
    return {
        "model": row.model,
        "upstream": row.upstream,
        "limits": _limits(view.limits),
        "usable_input": view.usable_input,
        "window_source": view.window_source,
        "last": _utilization(row.utilization),
        "peak_utilization": round(row.peak, 4),
        "totals": asdict(row.totals),
        "updated": row.updated,
    }


def _session(session: Session) -> dict[str, Any]:
    last = session.utilization
    return {
        "id": session.id,
        "label": session.label,
        "agent": session.agent,
        "client": session.client,
        "forked_from": session.forked_from,
        "model": session.model,
        "created": session.created,
        "updated": session.updated,
        "last": _utilization(last) if last else None,
        "totals": asdict(session.totals),
        "correction": session.correction,
    }


def _exchange(exchange: Exchange) -> dict[str, Any]:
    shown = asdict(exchange)
    del shown["session"]
    return {**shown, "utilization": _utilization(exchange.utilization)}
