from __future__ import annotations

import pytest

from accordion.compaction.request_controls import read_controls, thinking_mode
from accordion.model.errors import BadRequest
from tests.compaction.compactor_setup import read


@pytest.mark.parametrize(
    ("mode", "ending"), [("obsreve", "observe; did you mean `observe`?"), ("x", "one of auto, now, off, observe.")]
)
def test_an_unknown_mode_is_refused_with_the_modes(mode: str, ending: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_controls({b"x-accordion-compact": mode.encode()})
    assert caught.value.message.endswith(ending)


def test_thinking_is_bound_as_the_model_that_is_really_asked_binds_it() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s" * 40}
    said = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "y"}]},
    ]
    client = read(
        {"model": "smart", "max_tokens": 9, "messages": [*said, {"role": "user", "content": "z"}]}, "messages"
    )
    assert thinking_mode(client, "") == "free"
    assert thinking_mode(client, "", "anthropic/claude-opus-5-5") == "bound"
    assert thinking_mode(client, "", "anthropic/claude-opus-4-5") == "free"


@pytest.mark.parametrize(
    ("said", "project"), [(None, None), (b"", ""), (b" billing  desk ", "billing desk"), ("café".encode(), "café")]
)
def test_a_request_may_name_its_project(said: bytes | None, project: str | None) -> None:
    fields = {b"x-accordion-project": said} if said is not None else {}
    assert read_controls(fields).project == project


def test_a_request_may_have_instructions_for_summaries() -> None:
    controls = read_controls({b"x-accordion-instructions": "  Keep the café's\tnumbers. ".encode()})
    assert controls.instructions == "Keep the café's numbers."


@pytest.mark.parametrize("value", [b"Keep\x07", b"x" * 4_001, "café".encode("latin-1")])
def test_instructions_that_cannot_be_read_are_refused(value: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        read_controls({b"x-accordion-instructions": value})
    assert refused.value.param == "x-accordion-instructions"


@pytest.mark.parametrize("said", [b"*", b"a\x07", b"x" * 201, "café".encode("latin-1")])
def test_what_is_no_name_of_one_project_is_refused(said: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        read_controls({b"x-accordion-project": said})
    assert refused.value.param == "x-accordion-project"
