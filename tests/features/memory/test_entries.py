from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.features.memory.entries import CONTENT_MOST, export_line, finish_memory, parse_line, preview
from accordion.features.memory.memories import Memory
from accordion.model.errors import BadRequest


def finish(content: str = "She plays the violin.", **fields) -> Memory:
    return finish_memory(Memory(**{"id": "", "type": "fact", "content": content, **fields}), now=100.0)


def test_a_finished_memory_has_an_id_a_revision_and_its_times():
    memory = finish()
    assert memory.id.startswith("mem-")
    assert memory.created == memory.updated == 100.0
    assert memory.revision
    assert finish(created=5.0).created == 5.0


def test_the_same_memory_made_twice_is_one_and_another_is_another():
    assert finish().id == finish().id
    assert (
        len(
            {
                finish().id,
                finish("Other.").id,
                finish(conversation="talk", first=1, last=1).id,
                finish(topics=("x",)).id,
            }
        )
        == 4
    )


def test_a_revision_changes_with_the_content_alone():
    assert finish().revision == finish(topics=("music",)).revision != finish("Other.").revision


def test_topics_and_tags_are_normalised_and_entities_keep_their_spelling():
    memory = finish(topics=(" Auth  Flow", "auth flow", ""), tags=("URGENT",), entities=("Ann", "ANN"))
    assert (memory.topics, memory.tags, memory.entities) == (("auth flow",), ("urgent",), ("Ann",))


def test_texts_that_no_store_can_keep_are_cleaned():
    memory = finish("a\ud800b\x00c", context="\udfff")
    assert memory.content == "a?bc"
    assert memory.context == "?"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"content": "  \n"}, "memory_empty"),
        ({"content": "x" * (CONTENT_MOST + 1)}, "memory_too_long"),
        ({"topics": ("x" * 201,)}, "memory_bad_name"),
        ({"tags": tuple(map(str, range(51)))}, "memory_bad_name"),
        ({"first": 3, "last": 2}, "memory_bad_range"),
        ({"first": -1, "last": 2}, "memory_bad_range"),
    ],
)
def test_an_invalid_memory_is_refused_with_a_reason(fields, code):
    with pytest.raises(BadRequest) as refused:
        finish(**{"content": "x", **fields})
    assert refused.value.code == code


def test_a_session_memory_may_be_longer_than_others():
    assert finish("x" * (CONTENT_MOST + 1), type="session").content


def test_a_marker_of_an_export_is_read_back_as_it_was():
    assert parse_line(export_line(("done", b"\x00\xff"))) == ("done", b"\x00\xff")


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80))
def test_a_memory_of_any_text_is_read_back_as_it_was(text):
    memory = Memory(id="mem-1", type="summary", content=text, sources=(("mem-2", "r"),), counted=3)
    assert parse_line(export_line(memory)) == memory


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"memory": {}}', b'{"other": 1}', b'{"marker": {"name": "x"}}', b"\xff"]
)
def test_a_line_that_is_none_is_refused(text):
    with pytest.raises(BadRequest, match="not a line"):
        parse_line(text)


def test_a_preview_is_one_line_of_at_most_50_characters():
    assert preview("short\n text") == "short text"
    assert preview("x" * 200) == "x" * 49 + "…"
    assert len(preview("word " * 100)) <= 50
