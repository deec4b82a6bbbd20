"""Who may ask for what is kept: a browser only from a page of this proxy's own address, so that no web site reads or
erases any of it."""

from __future__ import annotations

from collections.abc import Mapping

from accordion.core.errors import RequestError
from accordion.identity.pages import on_this_machine, port_of


class Foreign(RequestError):
    """A browser asks in the name of another site."""

    status = 403
    type = "permission_error"
    code = "foreign_origin"


def check_origin(headers: Mapping[bytes, bytes], *, local: bool) -> None:
    """Raises Foreign for a request of another site's page, and, where only this machine can ask (`local`), for one by a
    name that is not this machine's: a site may have its name lead here. A page on another port of this machine is
    another site."""
    host = headers.get(b"host", b"").decode("latin-1")
    if local and not on_this_machine(f"//{host}"):
        raise Foreign(
            f"Host {host[:100]!r} is not a name of this machine. Use http://127.0.0.1, or configure proxy_keys and a "
            "server.host that other machines can reach."
        )
    origin = headers.get(b"origin", b"").decode("latin-1")
    scheme, _, address = origin.partition("://")
    is_own = local and on_this_machine(origin) and port_of(origin) == port_of(f"//{host}", scheme)
    if origin and address != host and not is_own:
        raise Foreign(f"Web pages of {origin[:100]!r} may not call this proxy.")
