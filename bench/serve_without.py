"""Starts Accordion without one of its speed measures: `python -m bench.serve_without MEASURE serve …`.

Each measure is an override of a library, or a setting of the whole interpreter. The scenario `overrides` compares
Accordion with and without each, so that what is worth nothing can go.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

AS_SHIPPED: Final = "as shipped"


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for a call that is left out."""


def _without_thresholds() -> None:
    gc.set_threshold = _nothing


def _without_switch_interval() -> None:
    sys.setswitchinterval = _nothing


def _without_send() -> None:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from accordion.server.uvicorn_compat import ResponseCycle

    ResponseCycle.send = RequestResponseCycle.send  # type: ignore[method-assign, assignment]


def _without_moved_timers() -> None:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from accordion.server.uvicorn_compat import ClientConnection

    receive = ClientConnection.data_received

    def data_received(self: ClientConnection, data: bytes) -> None:
        self._unset_keepalive_if_required()
        receive(self, data)

    ClientConnection.data_received = data_received  # type: ignore[method-assign]
    ClientConnection.on_response_complete = HttpToolsProtocol.on_response_complete  # type: ignore[method-assign]


def _without_read_timer() -> None:
    from aiohttp.client_proto import ResponseHandler

    from accordion.providers.http import aiohttp_compat

    aiohttp_compat.TimedHandler = ResponseHandler  # type: ignore[misc, assignment]


MEASURES: Final[Mapping[str, Callable[[], None]]] = {
    AS_SHIPPED: _nothing,
    "gc.set_threshold": _without_thresholds,
    "sys.setswitchinterval": _without_switch_interval,
    "uvicorn: responses for clients that it fails": _without_send,
    "uvicorn: timers are moved, not made anew": _without_moved_timers,
    "aiohttp: the read timer is moved, not made anew": _without_read_timer,
}


if __name__ == "__main__":
    MEASURES[sys.argv.pop(1)]()
    from accordion.cli.main import main

    main()
