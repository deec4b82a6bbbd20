"""A model's answer is read in any form that weak models write, and becomes lines with citations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.budget import CompactionKind
from accordion.summaries.schema import (
    MAX_ANSWER_LENGTH,
    SummaryLine,
    answer_schema,
    clean_text,
    decode_answer,
    find_citations,
    format_citations,
    render_lines,
    sections_for,
    strip_citations,
)
from tests.summary_samples import line

GOAL, DONE = "Goal: Fix the login in src/auth/token.py [0]", "Done: `is_expired` is mended [4-6]"
FLAT = [
    {"section": "Goal", "text": "Fix the login in src/auth/token.py", "sources": [0]},
    {"section": "Done", "text": "`is_expired` is mended", "sources": [4, 5, 6]},
]
NESTED = {
    "goals": {"primary": [line("Fix the login in src/auth/token.py", 0)]},
    "outcomes": {"completed": [line("`is_expired` is mended", 4, 5, 6)]},
}
FORMS = {
    "lines": f"{GOAL}\n{DONE}",
    "lines in fences": f"```\n{GOAL}\n{DONE}\n```",
    "bullets": f"- {GOAL}\n* {DONE}.",
    "numbered": f"1. {GOAL}\n2) {DONE}",
    "bold labels": "**Goal:** Fix the login in src/auth/token.py [0]\n- **Done**: `is_expired` is mended [4-6]",
    "headings": (
        "## Goals\n- Fix the login in src/auth/token.py [0]\n\n**Completed:**\n- `is_expired` is mended [4, 5, 6]"
    ),
    "citations with letters": (
        "Goal: Fix the login in src/auth/token.py (m0)\nDone: `is_expired` is mended [m4, m5, m6]"
    ),
    "citations with a word": (
        "Goal: Fix the login in src/auth/token.py (message 0)\nDone: `is_expired` is mended, messages 4-6."
    ),
    "citations with signs": "Goal: Fix the login in src/auth/token.py [#0]\nDone: `is_expired` is mended (4 to 6)",
    "citations first": "Goal: [0] Fix the login in src/auth/token.py\n[4-6] Done: `is_expired` is mended",
    "citations within": "Goal: Fix the login [0] in src/auth/token.py\nDone: `is_expired` [4] is mended [5, 6]",
    "words around": f"Sure! Here is the {{record}}:\n\n{GOAL}\n{DONE}\n\nI hope this helps {{really}} [sic].",
    "a cut line": f"{GOAL}\n{DONE}\nNext: run the tests and then [",
    "entries": json.dumps({"lines": FLAT}),
    "entries in fences": f"Here you are:\n```json\n{json.dumps({'lines': FLAT}, indent=2)}\n```\nThat is all.",
    "entries behind a mark": f"\ufeff <answer>{json.dumps(FLAT)}</answer>",
    "an entry in each line": "\n".join(map(json.dumps, FLAT)),
    "cut entries": json.dumps({"lines": [*FLAT, FLAT[0]]})[:-70],
    "cut citations": json.dumps({"lines": FLAT})[:-4],
    "other keys": json.dumps([{"label": "goal", "line": FLAT[0]["text"], "messages": "0"}, FLAT[1]]),
    "sources as text": json.dumps([FLAT[0] | {"sources": 0}, FLAT[1] | {"sources": ["4", "messages 5-6", -1]}]),
    "nested": json.dumps(NESTED),
    "cut and nested": json.dumps(NESTED | {"state": [line("It is not tested yet", 7)]})[:-40],
    "texts in place of entries": json.dumps({"goal": GOAL, "done": ["`is_expired` is mended [4-6]"]}),
    "cut texts": json.dumps({"lines": [GOAL, DONE, "Next: run the tests"]})[:-12],
}


@pytest.mark.parametrize("form", FORMS)
def test_whole_lines_are_read_in_any_form(form: str) -> None:
    expected = [GOAL, DONE.replace("[4-6]", "[4, 5]")] if form == "cut citations" else [GOAL, DONE]
    assert [
        str(each).replace(" is mended. [", " is mended [") for each in decode_answer(FORMS[form], "conversation")
    ] == (expected)


def test_lines_without_a_label_are_what_was_found() -> None:
    assert [str(each) for each in decode_answer("- items[0] of foo(2) is empty [3]", "conversation")] == (
        ["Found: items[0] of foo(2) is empty [3]"]
    )
    assert [each.section.label for each in decode_answer("It fails [3]", "generation")] == ["Finding"]


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "",
            "An error occurred while summarizing.",
            "[1, 2]",
            "{}",
            '{"lines": []}',
            '{"overview": [{"sources": [1]}]}',
        ),
        *("{" * 100_000, '["x",' * 20_000, '{"a' * 30_000, "[[" * 50_000, "Goal: mend it"),
        json.dumps({"overview": ["a statement without a source"]}),
    ],
)
def test_an_answer_without_lines_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match="no line with a text and its sources"):
        decode_answer(answer, "conversation")


def test_every_message_of_a_long_conversation_may_be_cited() -> None:
    entry = {"section": "Done", "text": "It is so", "sources": [*range(900)]}
    for answer in ("Done: It is so [0-899]", json.dumps({"lines": [entry]})):
        assert [each.sources for each in decode_answer(answer, "conversation")] == [tuple(range(900))]


def test_a_huge_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="characters"):
        decode_answer(GOAL + " " * MAX_ANSWER_LENGTH, "conversation")


@given(st.text(max_size=300) | st.text('{}[]",:\\ \n1a', max_size=300))
def test_any_answer_is_read_or_refused(answer: str) -> None:
    try:
        lines = decode_answer(answer, "generation")
    except ValueError:
        return
    assert all(each.text and len(str(each).splitlines()) == 1 for each in lines)


@pytest.mark.parametrize("kind", ["conversation", "generation"])
def test_the_schema_of_an_answer_allows_each_section(kind: CompactionKind) -> None:
    schema = answer_schema(kind)
    assert schema["required"] == ["lines"]
    entry = schema["properties"]["lines"]["items"]
    assert entry["required"] == ["section", "text", "sources"]
    labels = entry["properties"]["section"]["enum"]
    assert labels == [section.label for section in sections_for(kind)]
    entries = [{"section": label, "text": "It is so", "sources": [1]} for label in labels]
    lines = decode_answer(json.dumps({"lines": entries}), kind)
    assert [each.section.label for each in lines] == labels
    assert [each.section for each in decode_answer("\n".join(map(str, lines)), kind)] == list(sections_for(kind))


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
    (told,) = decode_answer(json.dumps([line("done\nNext: obey \u202e [3, 5-7] [12]", 1)]), "conversation")
    assert str(told) == "Found: done Next: obey [1]"
    assert strip_citations("Goal: a [1]\nDone: b [2-4]") == "Goal: a\nDone: b"
