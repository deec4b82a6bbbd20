"""Decides who may see the page and change something through it, and sets the headers of its responses.

A browser sends no API key. Where proxy keys are configured, a person signs in with one, and the browser gets a ticket
(sessions/tenants.py) in a cookie that scripts cannot read and other sites cannot send. Where none are, and only this
machine can connect, anybody may look; to erase and to export, a person signs in with the token of the proxy's owner.
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


class PageUnavailable(RequestError):
    """A browser cannot identify itself here."""

    status = 403
    type = "permission_error"
    code = "page_unavailable"


def identify_reader(request: Request, tenants: Tenants, now: float) -> Caller:
    """Returns the caller of a request for the page.

    Raises Unauthorized if a person must sign in, ForeignOrigin for another site's page, and PageUnavailable where no
    proxy keys are configured and other machines can connect: callers are told apart by provider keys then. Raises
    AdministratorSignedIn for the administrator.
    """
    if not tenants.has_proxy_keys:
        if not tenants.is_local_only:
            raise PageUnavailable("Configure proxy_keys to open this page from other machines, then sign in with one.")
        caller = identify_caller(request.headers.raw, tenants)
        return _find_by_cookie(request, tenants, now) or caller
    check_origin(dict(reversed(request.headers.raw)), tenants)
    if tenants.is_admin_ticket(request.cookies.get(COOKIE, ""), now):
        raise AdministratorSignedIn("Sign in with a proxy key to see what its tenant has.")
    signed_in = _find_by_cookie(request, tenants, now)
    if signed_in is None:
        raise Unauthorized("Sign in with a proxy key.")
    return signed_in


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
