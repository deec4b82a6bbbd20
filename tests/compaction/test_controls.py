from __future__ import annotations

from typing import Any

import pytest

from proxy.compaction.controls import read_controls, thinking_of
from tests.compaction.making import read


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({}, False), ({"compaction": None}, False), ({"compaction": {"type": "summarize"}}, True)],
)
def test_only_a_compaction_that_says_something_is_asked_for(fields: dict[str, Any], asked: bool) -> None:
    """Some libraries send every field that they know, null where it was not given."""
    request = {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **fields}
    assert read_controls({}, read(request, "messages"), compacting=False).compacting is asked


def test_thinking_is_bound_as_the_model_that_is_really_asked_binds_it() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s" * 40}
    said = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "y"}]},
    ]
    client = read(
        {"model": "smart", "max_tokens": 9, "messages": [*said, {"role": "user", "content": "z"}]}, "messages"
    )
    assert thinking_of(client, "") == "free"
    assert thinking_of(client, "", "anthropic/claude-opus-5-5") == "bound"
    assert thinking_of(client, "", "anthropic/claude-opus-4-5") == "free"
