"""What providers/http/websockets.py overrides of the websockets library."""

from __future__ import annotations

from tests.code_fingerprints import find_changes

CODE = {
    "websockets.asyncio.client": {
        "connect.process_redirect": "b1188eb5952a",
        "connect.__init__": "8d61d32a2500",
        "ClientConnection.__init__": "d6dce5c8d8fb",
    },
    "websockets.asyncio.connection": {
        "Connection.connection_lost": "4c1118983d1d",
        "Connection.connection_made": "2c4ae3e21997",
    },
}


def test_overridden_code_is_as_it_was() -> None:
    assert find_changes(CODE) == {}
