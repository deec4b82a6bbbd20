"""The administrator's view: what each tenant costs, and its proxy keys, which can be created, limited and revoked.

A created key is in the response to the form that creates it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accordion.accounting.holdout_text import list_compared_rows
from accordion.accounting.key_limits import KeyLimits
from accordion.accounting.ledger import DAYS
from accordion.features.page import access
from accordion.features.page.addresses import BASE, ask_to_sign_in, redirect
from accordion.features.page.forms import Form, read_form
from accordion.features.page.services import PageServices
from accordion.http.api_requests import parse_number
from accordion.model.errors import AccordionError, BadRequest, Unauthorized

VIEW: Final = "pages/tenants"
"""The view, relative to the overview."""
_TENANTS = 50
_DONE = {"limits": "The limits of the key are changed.", "revoke": "The key is revoked. It opens nothing any more."}

Endpoint = Callable[[Request], Awaitable[Response]]


class TenantsView:
    """The routes of the administrator's view.

    `render` renders a template for a request, `fail` an error (routes.py).
    """

    def __init__(
        self,
        render: Callable[..., Awaitable[Response]],
        fail: Callable[[Request, AccordionError], Awaitable[Response]],
        services: PageServices,
    ) -> None:
        self._render, self._fail, self._services = render, fail, services

    def routes(self) -> list[Route]:
        """Returns the routes."""
        keys = f"{BASE}/tenants/keys"
        return [
            Route(f"{BASE}/tenants", partial(self._serve, self._show)),
            Route(keys, partial(self._serve, self._create), methods=["POST"]),
            Route(f"{keys}/{{id}}", partial(self._serve, self._show_key)),
            Route(f"{keys}/{{id}}/limits", partial(self._serve, self._set_limits), methods=["POST"]),
            Route(f"{keys}/{{id}}/revoke", partial(self._serve, self._revoke), methods=["POST"]),
        ]

    async def _serve(self, endpoint: Endpoint, request: Request) -> Response:
        """Runs an endpoint for the administrator; a change only if a page of this address sends it."""
        try:
            access.check_administrator(request, self._services.tenants(), self._services.clock.now())
            if request.method == "POST":
                access.check_change(request)
            return await endpoint(request)
        except Unauthorized:
            return ask_to_sign_in(request)
        except AccordionError as error:
            return await self._fail(request, error)

    async def _show(self, request: Request) -> Response:
        params = request.query_params
        days = parse_number(params.get("days", "30"), "days", 1, DAYS)
        page = await self._services.administration.list_tenants(
            self._services.clock.now(), days, params.get("after", ""), _TENANTS
        )
        comparison = page.comparison
        return await self._render(
            "tenants.html",
            request,
            None,
            is_signed_in=True,
            page=page,
            days=days,
            choices=(1, 7, 30, 365),
            comparison=comparison,
            compared=list(list_compared_rows(comparison)) if comparison is not None else [],
            warnings=self._services.health("").warnings,
            done=_DONE.get(params.get("done", ""), ""),
        )

    async def _create(self, request: Request) -> Response:
        form = await read_form(request)
        record, key = await self._services.administration.created_keys.create(
            form.get("tenant", "").strip(), _read_limits(form)
        )
        return await self._render("created_key.html", request, None, 201, is_signed_in=True, record=record, key=key)

    async def _show_key(self, request: Request) -> Response:
        record = await self._services.administration.created_keys.read(self._key_id(request))
        view = await self._services.administration.view_key(record)
        return await self._render("key.html", request, None, is_signed_in=True, view=view)

    async def _set_limits(self, request: Request) -> Response:
        limits = _read_limits(await read_form(request))
        await self._services.administration.created_keys.set_limits(self._key_id(request), limits)
        return redirect(request, f"{VIEW}?done=limits")

    async def _revoke(self, request: Request) -> Response:
        form, key_id = await read_form(request), self._key_id(request)
        if form.get("confirm") != key_id:
            raise BadRequest("The revocation was not confirmed.", param="confirm")
        await self._services.administration.created_keys.revoke(key_id)
        return redirect(request, f"{VIEW}?done=revoke")

    def _key_id(self, request: Request) -> str:
        key_id: str = request.path_params["id"]
        self._services.administration.check_created(key_id)
        return key_id


def _read_limits(form: Form) -> KeyLimits:
    """Reads the limits of a form; an empty field is no limit. Raises BadRequest."""
    limits = {name: text for name in KeyLimits.__struct_fields__ if (text := form.get(name, "").strip())}
    try:
        return msgspec.convert(limits, KeyLimits, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadRequest(f"The limits cannot be read: {error}.", param="limits") from error
