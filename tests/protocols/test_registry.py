"""Every protocol of the product is in the tables by which tests write and read requests and replies."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from accordion.protocols.registry import ARTIFACT_TOOLS, PROTOCOLS
from tests import histories, reply_parts, writers
from tests.e2e import protocol_samples

TABLES: dict[str, Collection[str]] = {
    "product, tools": ARTIFACT_TOOLS,
    "tests/histories.py": histories.PROTOCOL_NAMES,
    "tests/reply_parts.py": reply_parts.WHOLE,
    "tests/reply_parts.py, events": reply_parts.EVENTS,
    "tests/writers.py": writers.WRITERS,
    # Converse's streams are frames, not lines: tests/e2e/test_bedrock.py has its end-to-end tests.
    "tests/e2e/protocol_samples.py": {*protocol_samples.PROTOCOL_BY_NAME, "converse"},
}


@pytest.mark.parametrize("table", TABLES)
def test_a_protocol_is_in_every_table(table: str):
    assert set(TABLES[table]) == set(PROTOCOLS)
