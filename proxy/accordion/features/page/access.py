"""Decides who may see the page and change something through it, and sets the headers of its responses.

A browser sends no API key. Where proxy keys are configured, a person signs in with one, and the browser gets a ticket
(sessions/tenants.py) in a cookie that scripts cannot read and other sites cannot send. Where none are, the proxy's
owner signs in with a token, and may choose a tenant. If only this machine can connect, anybody may look without.
A change must come from a page of this very address: browsers say so in `Sec-Fetch-Site` or `Origin`, which no page can
forge.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from accordion.http.api_requests import ForeignOrigin, check_origin, identify_caller
from accordion.model.errors import RequestError, Unauthorized
from accordion.sessions.tenants import Caller, Tenants

COOKIE = "accordion_page"
TICKET_SECONDS = 12 * 3_600
"""The time after which a person must sign in again."""

HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not `no-referrer`: with that, browsers send `Origin: null` with the page's own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Headers of every response. Everything on the page comes from this address, and nothing is inline."""


class AdministratorSignedIn(RequestError):
    """The administrator has signed in, who sees the data of no tenant."""

    status = 403
    type = "permission_error"
    code = "administrator_signed_in"


class AdministratorOnly(RequestError):
    """A person without the administrator's key asks for a view over all tenants."""

    status = 403
    type = "permission_error"
    code = "administrator_only"


class TenantNotChosen(RequestError):
    """The proxy's owner has signed in, and has not chosen a tenant to look at."""

    status = 403
    type = "permission_error"
    code = "tenant_not_chosen"


class PageUnavailable(RequestError):
    """A browser cannot identify itself here."""

    status = 403
    type = "permission_error"
    code = "page_unavailable"


def identify_reader(request: Request, tenants: Tenants, now: float) -> Caller:
    """Returns the caller of a request for the page.

    Raises Unauthorized if a person must sign in, ForeignOrigin for another site's page, ProxyKeysRequired, and
    PageUnavailable where there is nothing to sign in with. Raises AdministratorSignedIn for the administrator, and
    TenantNotChosen for an owner who has to choose a tenant.
    """
    if tenants.is_local_only:
        caller = identify_caller(request.headers.raw, tenants)
        return _find_by_cookie(request, tenants, now) or caller
    check_origin(dict(reversed(request.headers.raw)), tenants)
    signed_in = _find_by_cookie(request, tenants, now)
    if signed_in is not None:
        return signed_in
    ticket = request.cookies.get(COOKIE, "")
    if tenants.is_admin_ticket(ticket, now):
        raise AdministratorSignedIn("Sign in with a proxy key to see what its tenant has.")
    if is_owner(request, tenants, now):
        raise TenantNotChosen("Choose a tenant.")
    if not (tenants.has_proxy_keys or tenants.has_owner):
        raise PageUnavailable("Configure proxy_keys to open this page from other machines, then sign in with one.")
    raise Unauthorized("Sign in with a proxy key." if tenants.has_proxy_keys else "Sign in with the proxy's token.")


def _find_by_cookie(request: Request, tenants: Tenants, now: float) -> Caller | None:
    return tenants.find_by_ticket(request.cookies.get(COOKIE, ""), now)


def check_administrator(request: Request, tenants: Tenants, now: float) -> None:
    """Raises Unauthorized, ForeignOrigin or AdministratorOnly unless the administrator has signed in."""
    check_origin(dict(reversed(request.headers.raw)), tenants)
    if tenants.is_admin_ticket(request.cookies.get(COOKIE, ""), now):
        return
    if tenants.has_proxy_keys and _find_by_cookie(request, tenants, now) is None:
        raise Unauthorized("Sign in with the administrator's key.")
    raise AdministratorOnly("This view is for administrators. Sign out, and sign in with the administrator's key.")


def is_owner(request: Request, tenants: Tenants, now: float) -> bool:
    """Whether the proxy's owner has signed in."""
    return tenants.is_owner_ticket(request.cookies.get(COOKIE, ""), now)


def choose_tenant(request: Request, tenants: Tenants, tenant: str, now: float) -> str:
    """Returns the owner's ticket for a tenant. Raises Unauthorized unless the owner has signed in."""
    ticket = tenants.choose_tenant(request.cookies.get(COOKIE, ""), tenant, now)
    if ticket is None:
        raise Unauthorized("Sign in with the proxy's token.")
    return ticket


def check_change(request: Request) -> None:
    """Raises ForeignOrigin unless a page of this address sends the request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site == "same-origin"
    else:
        # Plain HTTP from another machine has no `Sec-Fetch-Site`.
        is_own = request.headers.get("origin", "").partition("://")[2] == request.headers.get("host", "")
    if not is_own:
        raise ForeignOrigin("Changes are only accepted from this page itself.")


def check_download(request: Request) -> None:
    """Raises ForeignOrigin for a download that a page of another address starts, such as one on another port."""
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise ForeignOrigin("Downloads are only started from this page itself.")


def set_ticket(response: Response, request: Request, ticket: str) -> None:
    """Sets the cookie with the ticket; an empty ticket removes it."""
    is_secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
    response.set_cookie(
        COOKIE,
        ticket,
        max_age=TICKET_SECONDS if ticket else 0,
        # Without a path, it is for the folder of this address (addresses.py).
        path=None,
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )
