"""The owner's view: the tenants of a proxy without proxy keys, of which the owner chooses one to look at.

A tenant is a credential there, or the programs of this machine (sessions/tenants.py). The choice is a part of the
ticket in the owner's cookie, so the view is in the folder that the cookie is for (addresses.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accordion.features.page import access
from accordion.features.page.addresses import TENANT, ask_to_sign_in, redirect
from accordion.features.page.forms import read_form
from accordion.features.page.services import PageServices
from accordion.http.api_requests import check_origin, find_origin
from accordion.model.errors import AccordionError, NotFound, Unauthorized

_DAYS = 30
_TENANTS = 50


class OwnerView:
    """The route of the owner's view.

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
        """Returns the route."""
        return [Route(TENANT, self._serve, methods=["GET", "POST"])]

    async def _serve(self, request: Request) -> Response:
        """Lists the tenants, or shows the one of a form, or the only one."""
        tenants, now = self._services.tenants(), self._services.clock.now()
        try:
            check_origin(dict(reversed(request.headers.raw)), tenants)
            if not access.is_owner(request, tenants, now):
                raise Unauthorized("Sign in with the proxy's token.")
            names = await self._services.administration.list_tenant_names()
            if request.method == "POST":
                access.check_change(request)
                tenant = (await read_form(request)).get("tenant", "")
            elif len(names) == 1:
                (tenant,) = names
            else:
                return await self._list(request, now)
            if tenant not in names:
                raise NotFound("There is no such tenant.")
            response = redirect(request, "")
            access.set_ticket(response, request, access.choose_tenant(request, tenants, tenant, now))
            return response
        except Unauthorized:
            return ask_to_sign_in(request)
        except AccordionError as error:
            return await self._fail(request, error)

    async def _list(self, request: Request, now: float) -> Response:
        after = request.query_params.get("after", "")
        page = await self._services.administration.list_tenants(now, _DAYS, after, _TENANTS)
        return await self._render(
            "owner.html", request, None, is_signed_in=True, page=page, days=_DAYS, origin=find_origin(request)
        )
