"""The web page: a view of sessions, compactions, memories, savings and proxy keys, made by the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accordion.composition.features import Core, Feature, RunningFeature

if TYPE_CHECKING:
    from accordion.config import Settings


def open_page(core: Core) -> RunningFeature:
    """Opens the page in a process. Its views are imported with the first request to one of them."""
    from accordion.features.page.process import RunningPage  # noqa: PLC0415  # the command line needs none of it

    return RunningPage(core)


def greet(settings: Settings, base: str, owner_token: str) -> str:
    """Returns the lines about the page. Without proxy keys, one signs the proxy's owner in."""
    from accordion.config.value_types import is_loopback  # noqa: PLC0415  # only when a proxy starts
    from accordion.features.page.addresses import SIGN_IN  # noqa: PLC0415

    sign_in = f"{base}{SIGN_IN}?token={owner_token}"
    if settings.needs_proxy_key:
        return f"    look             {base}/accordion/   {base}/metrics\n"
    if is_loopback(settings.server.host):
        return f"    look             {base}/accordion/   {base}/metrics\n    erase, export    {sign_in}\n"
    return f"""    look             {sign_in}
                     Keep this link for yourself: it shows everybody's conversations.
"""


FEATURE = Feature(open=open_page, greet=greet)
