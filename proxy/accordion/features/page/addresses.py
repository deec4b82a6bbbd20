"""The page's paths, and links between them.

Every link, form and redirect is relative to the view that has it. So the page works under any path prefix that a
reverse proxy adds (`https://example.com/ai/accordion/`), although this proxy does not know the prefix.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from accordion.features.page import access

PATH: Final = "/accordion"
BASE: Final = f"{PATH}/pages"
SIGN_IN: Final = f"{PATH}/sign-in"
"""The cookie of a response from here is for `/accordion`, whatever prefix precedes it: a cookie without a path is for
the folder of the address that set it."""
SIGN_OUT: Final = f"{PATH}/sign-out"
TENANT: Final = f"{PATH}/tenant"
"""Where the owner chooses a tenant, which changes the same cookie."""
ALL_PATHS: Final = (PATH, f"{PATH}/", f"{BASE}/{{path:path}}", SIGN_IN, SIGN_OUT, TENANT)
"""The paths of all routes of the page."""


def root_of(request: Request) -> str:
    """Returns the relative link from a request's path to the overview, such as `../../`."""
    below: str = request.scope["path"].removeprefix(PATH)
    return "../" * (below.count("/") - 1) or ("./" if below else f"{PATH[1:]}/")


def base_of(request: Request) -> str:
    """Returns the relative link from a request's path to the folder of the views."""
    return f"{root_of(request)}pages"


def view_of(request: Request) -> str:
    """Returns the view that a request is for, with its query, relative to the overview."""
    query = request.url.query
    view: str = request.scope["path"].removeprefix(f"{PATH}/")
    return f"{view}?{query}" if query else view


def check_view(target: str) -> str:
    """Returns the view to show after signing in, relative to the overview: never an address outside the page."""
    # Browsers take `%2e` for a dot.
    plain = unquote(target)
    is_own = plain.startswith("pages/") and not any(each in plain for each in ("\\", "//", ".."))
    return target if is_own else ""


def redirect(request: Request, target: str, *, permanent: bool = False) -> Response:
    """Redirects to a target relative to the overview."""
    return RedirectResponse(f"{root_of(request)}{target}", 308 if permanent else 303, headers=access.HEADERS)


def ask_to_sign_in(request: Request) -> Response:
    """Redirects to the form to sign in, and from there back."""
    return redirect(request, f"sign-in?{urlencode({'to': view_of(request)})}")
