"""Exchanges as observers get them."""

from __future__ import annotations

from typing import Any

from accordion.model.budget import Utilization
from accordion.model.records import Exchange


def exchange(**said: Any) -> Exchange:
    """A successful exchange; `said` are the fields that differ."""
    usual: dict[str, Any] = {
        "at": 100.0,
        "request_id": "r",
        "session": "s-1",
        "model": "m",
        "upstream": "openai",
        "path": "/v1/chat/completions",
        "stream": False,
        "status": 200,
        "messages": 3,
        "utilization": Utilization(1_000, messages=250),
        "decision": "",
        "first_byte": 0.1,
        "duration": 0.2,
    }
    return Exchange(**usual | said)
