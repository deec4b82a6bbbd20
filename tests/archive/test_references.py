from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.references import (
    OPENINGS,
    artifact_id,
    delegated_reference,
    describe,
    describe_size,
    media_reference,
    omission_note,
    range_id,
    result_reference,
    shorten_arguments,
    slice_id,
    sliced_text,
    superseded_reference,
)
from accordion.model.tenant import TenantScope
from accordion.providers.models.tokenizer import TiktokenCounter

OTHER = TenantScope("other", b"other")
TENANT = TenantScope("tenant", b"tenant")

KEY = b"k" * 32


def test_the_same_content_of_the_same_tenant_has_the_same_id() -> None:
    assert artifact_id(TENANT, KEY, 0) == artifact_id(TenantScope("tenant", b"tenant"), KEY, 0)
    assert re.fullmatch(r"art_[0-9a-f]{12}", artifact_id(TENANT, KEY, 0))


def test_another_tenant_message_or_part_has_another_id() -> None:
    made = [
        artifact_id(TENANT, KEY, 0),
        artifact_id(TENANT, KEY, 1),
        artifact_id(TENANT, KEY, None),
        artifact_id(OTHER, KEY, 0),
        artifact_id(TENANT, b"j" * 32, 0),
        range_id(TENANT, [KEY]),
        range_id(TENANT, [KEY, KEY]),
        range_id(OTHER, [KEY]),
        slice_id(TENANT, [KEY], 1, 2),
        slice_id(TENANT, [KEY], 2, 2),
        slice_id(TENANT, [KEY], 1, 3),
        slice_id(TENANT, [KEY, KEY], 1, 2),
        slice_id(OTHER, [KEY], 1, 2),
    ]
    assert len(set(made)) == len(made)


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_ranges_of_other_messages_have_other_ids(one: list[bytes], other: list[bytes]) -> None:
    assert (range_id(TENANT, one) == range_id(TENANT, other)) == (one == other)


def test_a_reference_names_tool_arguments_artifact_size_and_what_is_known() -> None:
    text = result_reference("read", '{"path": "a.py"}', "art_0123456789ab", describe_size("one\ntwo"), "defines main()")
    assert text == (
        '[Result of read({"path": "a.py"}) archived to save space, 7 characters in 2 lines. '
        'Full text: read_artifact("art_0123456789ab"), if available.]\ndefines main()'
    )


def test_every_reference_to_text_names_the_call_that_reads_it_and_promises_no_tool() -> None:
    for text in (
        result_reference("read", "{}", "art_x", "3 characters"),
        superseded_reference("read", "{}", "art_x", "call_1"),
        omission_note(12, "art_x"),
        sliced_text("head", "tail", "art_x", 5),
    ):
        assert 'read_artifact("art_x"), if available' in text
        assert text.count("art_x") == 1


def test_every_reference_has_an_opening_by_which_it_is_recognized() -> None:
    for text in (
        result_reference("read", "{}", "art_x", "3 characters"),
        result_reference("", "", "art_x", "3 characters"),
        delegated_reference("Explore", "s-child", "Task", "{}", "art_x", "3 characters", "found it"),
        delegated_reference("", "", "", "", "art_x", "3 characters", ""),
        superseded_reference("read", "{}", "art_x", "call_1"),
        omission_note(12, "art_x"),
        *(media_reference(kind, "art_x", "image/png") for kind in ("Image", "Audio", "Video", "File")),
    ):
        assert text.startswith(OPENINGS), text


def test_the_reference_to_an_image_names_no_call_since_it_cannot_be_read_as_text() -> None:
    assert "read_artifact" not in media_reference("Image", "art_x", "image/png")


def test_a_reference_costs_at_most_six_tokens_more_than_its_id_alone_would() -> None:
    counter = TiktokenCounter()
    before = "[Result of read({}) moved out of this window to save room; kept whole as art_9f3c81d07be2, 5 characters.]"
    now = result_reference("read", "{}", "art_9f3c81d07be2", "5 characters")
    assert counter.count(now, "o200k_base") <= counter.count(before, "o200k_base") + 6


def test_a_reference_without_a_call_says_nothing_of_one() -> None:
    assert result_reference("", "", "art_x", "3 characters").startswith("[Result archived to save space")


@given(st.text(max_size=3_000))
def test_arguments_are_one_line_of_at_most_300_characters(arguments: str) -> None:
    line = shorten_arguments(arguments)
    assert len(line) <= 300
    assert len(line.splitlines()) <= 1
    assert line.endswith("…") or line == " ".join(arguments.split())


@given(st.text(max_size=200), st.text(max_size=200))
def test_texts_are_the_same_every_time_and_hold_the_id(one: str, other: str) -> None:
    for made in (
        lambda: result_reference(one, other, "art_x", "1 characters", one),
        lambda: superseded_reference(one, other, "art_x", "call_1"),
        lambda: media_reference("Image", "art_x", "image/png"),
        lambda: omission_note(12, "art_x"),
        lambda: sliced_text(one, other, "art_x", 5),
    ):
        assert made() == made()
        assert "art_x" in made()


def test_omitted_content_is_counted() -> None:
    assert "1 earlier message was removed" in omission_note(1, "art_x")
    assert "1,234 earlier messages were removed" in omission_note(1_234, "art_x")


def test_the_structure_of_json_is_described() -> None:
    assert describe("[1, 2, 3]") == "It is a JSON array of 3 entries."
    assert (
        describe('{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}')
        == "It is a JSON object of 6 keys: a, b, c, d, e, …."
    )
    assert describe("plain text") == describe("{broken") == describe("[" * 100_000) == ""
