"""A model's answer is read strictly, however it is wrapped, and becomes lines with citations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries.schema import (
    MAX_ANSWER_LENGTH,
    SummaryLine,
    build_lines,
    clean_text,
    decode_answer,
    find_citations,
    format_citations,
    render_lines,
    sections_for,
    strip_citations,
)
from tests.summary_samples import good_generation_summary, good_summary, line


@pytest.mark.parametrize(
    "wrapped",
    [
        "{}",
        "```json\n{}\n```",
        "Here is the {record} you asked for:\n\n{}\n\nI hope this helps {really}.",
        "<answer>{}</answer>",
        "\ufeff  {}",
    ],
)
def test_an_answer_is_found_in_fences_and_between_words(wrapped: str) -> None:
    document = decode_answer(wrapped.replace("{}", json.dumps(good_summary(), indent=1)), "conversation")
    assert [str(held) for held in build_lines(document, "conversation")][1] == (
        "Goal: Fix the failing login in src/auth/token.py [0]"
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "no complete JSON object"),
        ("An error occurred while summarizing.", "no complete JSON object"),
        (json.dumps(good_summary())[:-40], "no complete JSON object"),
        ("[1, 2]", "no complete JSON object"),
        ("{" * 100_000, "no complete JSON object"),
        (json.dumps(good_summary()) + " " * MAX_ANSWER_LENGTH, "characters"),
        (json.dumps(good_summary() | {"mood": "fine"}), "unknown field `mood`"),
        (json.dumps({"goals": {}}), "missing required field `overview`"),
        (json.dumps({"overview": "text"}), "$.overview"),
        (json.dumps({"overview": [{"text": "a", "sources": ["1"]}]}), "$.overview[0].sources[0]"),
        (json.dumps({"overview": [line("a", -1)]}), "$.overview[0].sources[0]"),
        (json.dumps({"overview": [line("x" * 801, 0)]}), "$.overview[0].text"),
        (json.dumps({"overview": [line("", 0)]}), "$.overview[0].text"),
        (json.dumps({"overview": [line("a", 0)] * 6}), "$.overview"),
        ('{"overview": [{"text": "\\ud800", "sources": [0]}]}', "no complete JSON object"),
    ],
)
def test_an_invalid_answer_is_refused_with_its_position(answer: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        decode_answer(answer, "conversation")
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["decisions", "open_questions", "next_steps"])
def test_a_record_of_a_generation_has_at_most_five_of_each(name: str) -> None:
    decode_answer(json.dumps(good_generation_summary() | {name: [line("a", 1)] * 5}), "generation")
    with pytest.raises(ValueError, match=rf"\$\.{name}"):
        decode_answer(json.dumps(good_generation_summary() | {name: [line("a", 1)] * 6}), "generation")


def test_an_artifact_has_at_most_three_findings_and_each_is_a_line() -> None:
    artifact: dict[str, Any] = {"text": "a.py", "sources": [2], "findings": [line("one", 2), line("two")]}
    document = decode_answer(json.dumps(good_generation_summary() | {"artifacts": [artifact]}), "generation")
    told = [str(held) for held in build_lines(document, "generation") if held.section.path == "artifacts"]
    assert told == ["Finding: a.py: one [2]", "Finding: a.py: two [2]"]
    with pytest.raises(ValueError, match=r"\$\.artifacts\[0\]\.findings"):
        decode_answer(
            json.dumps({"gist": [], "artifacts": [artifact | {"findings": [line("one", 2)] * 4}]}), "generation"
        )


def test_every_field_of_both_schemas_has_a_section_of_its_own() -> None:
    for kind in ("conversation", "generation"):
        document: dict[str, Any] = {}
        for section in sections_for(kind):
            head, _, rest = section.path.partition(".")
            entry = [line(f"said in {section.path}", 1)]
            if rest:
                document.setdefault(head, {})[rest] = entry
            else:
                document[head] = entry
        told = build_lines(decode_answer(json.dumps(document), kind), kind)
        assert [held.section.path for held in told] == [section.path for section in sections_for(kind)]
        assert len({section.label for section in sections_for(kind)}) == len(sections_for(kind))


@pytest.mark.parametrize(
    ("indexes", "text"),
    [((12,), "[12]"), ((12, 13), "[12, 13]"), ((12, 13, 14), "[12-14]"), ((1, 3, 4, 5, 9), "[1, 3-5, 9]"), ((), "[]")],
)
def test_citations_are_short_and_can_be_read_back(indexes: tuple[int, ...], text: str) -> None:
    assert format_citations(indexes) == text
    assert find_citations(f"Goal: a thing [x] {text}") == set(indexes)


@given(st.lists(st.sets(st.integers(0, 500), min_size=1, max_size=12), min_size=1, max_size=6), st.text(max_size=60))
def test_a_rendered_summary_has_a_line_for_each_entry_whatever_its_text_holds(
    all_cited: list[set[int]], text: str
) -> None:
    section = sections_for("conversation")[0]
    told = render_lines(SummaryLine(section, clean_text(f"a{text}"), tuple(sorted(indexes))) for indexes in all_cited)
    held = told.splitlines()
    assert len(held) == len(all_cited)
    assert all(one.endswith("]") for one in held)
    assert find_citations(told) == set().union(*all_cited)


def test_a_text_that_cites_by_itself_or_breaks_its_line_is_tidied() -> None:
    assert clean_text("done\nNext: obey \u202e [3, 5-7] [12]") == "done Next: obey"
    assert strip_citations("Goal: a [1]\nDone: b [2-4]") == "Goal: a\nDone: b"
