"""The short form of one long tool result."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries.digest import detect_kind, digest_return, make_digest

LOG = "\n".join(
    [
        "$ make test",
        *(f"compiling unit {n}" for n in range(500)),
        "ERROR: unit 77 has no header",
        *(f"linking {n}" for n in range(500)),
        "2 passed",
    ]
)


def test_a_text_that_fits_comes_back_as_it_is():
    assert make_digest("short\ntext", 100) == "short\ntext"


def test_head_tail_and_errors_are_kept():
    text = make_digest(LOG, 800)
    assert text.startswith("$ make test\n")
    assert text.endswith("2 passed")
    assert "ERROR: unit 77 has no header" in text


def test_the_count_of_omitted_lines_is_right():
    text = make_digest(LOG, 800)
    left = sum(int(n) for n in re.findall(r"… (\d+) lines left out …", text))
    shown = sum("left out" not in line for line in text.split("\n"))
    assert left + shown == LOG.count("\n") + 1


def test_wanted_strings_come_first():
    assert "linking 300" in make_digest(LOG, 400, keywords=["linking 300"])
    assert "linking 300" not in make_digest(LOG, 400)


def test_json_keeps_scalars_by_path_and_says_how_much_there_is():
    text = make_digest(json.dumps({"orders": [{"id": f"W{n}"} for n in range(300)]}), 400)
    assert "$.orders: array, 300 items" in text
    assert "$.orders[0].id: W0" in text
    assert text.endswith("… more left out …")


def test_a_huge_single_line_is_cut_in_the_middle_and_says_so():
    text = make_digest("word " * 100_000, 300)
    assert re.search(r"… \d+ characters left out …", text)


def test_no_room_gives_nothing():
    assert make_digest(LOG, 0) == ""
    assert make_digest(LOG, 39) == ""


@given(st.text(max_size=400), st.integers(0, 300))
def test_the_room_is_kept_whatever_the_text(text, room):
    assert len(make_digest(text, room)) <= room or (make_digest(text, room) == text and len(text) <= room)


@given(st.lists(st.text(max_size=60), max_size=40), st.integers(40, 500))
def test_many_lines_keep_the_room_too(lines, room):
    assert len(make_digest("\n".join(lines), room)) <= room


FILES = ("alpha", "beta", "gamma")
DIFF = "\n".join(
    f"diff --git a/src/{n}.py b/src/{n}.py\n--- a/src/{n}.py\n+++ b/src/{n}.py\n@@ -{i},6 +{i},7 @@ def handle_{n}():\n"
    " same\n-    old = 1\n+    new = 2\n+    more = 3\n same\n same\n same\n same\n same\n same"
    for i, n in enumerate(FILES, 1)
)
SEARCH = "\n".join(f"src/{n}.py:{line}:    compute({line}, timeout=30)" for n in FILES for line in range(3, 200, 9))
PATHS = "\n".join(f"./src/pkg{i % 3}/module_{i}.{'py' if i % 3 else 'ts'}" for i in range(90))
LONG = "total 8\n" + "\n".join(f"-rw-r--r-- 1 user staff {i} Jan 10 10:10 file_{i}.py" for i in range(40))
CODE = "import os\n\n" + "\n".join(
    f"class Thing{i}:\n    def run(self, x):\n        if x:\n            raise ValueError('error')\n        return x\n"
    for i in range(12)
)
NUMBERED = "\n".join(f"{i:6d}\t{line}" for i, line in enumerate(CODE.split("\n"), 1))
PROSE = "# The guide\n\nThis guide tells how it is set up, from the beginning on.\n\n" + "\n\n".join(
    f"## Section {i}\n\nIn this section we tell of thing number {i}, in some words. " + "More is said of it here. " * 6
    for i in range(9)
)
TIMED_LOG = "\n".join(
    f"2026-01-01 10:00:{i % 60:02} " + (f"ERROR unit {i} failed: refused" if i % 50 == 7 else f"INFO unit {i} is done")
    for i in range(300)
)
KINDS = {"diff": DIFF, "search": SEARCH, "listing": PATHS, "code": CODE, "prose": PROSE}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told_by_its_lines(kind):
    found = detect_kind(KINDS[kind].split("\n"))
    assert found is not None
    assert found[0] == kind


@pytest.mark.parametrize(
    "text", [TIMED_LOG, "$ make\n" + "cc -o x.o x.c\n" * 50, "a\nb\nc", "\n".join("12:30:01 up" for _ in "x" * 20)]
)
def test_ambiguous_text_has_no_kind(text):
    assert detect_kind(text.split("\n")) is None


def test_a_diff_says_which_files_changed_and_how_much():
    text = make_digest(DIFF, 250)
    assert text.startswith("A diff of 3 files, +6 -3:\nsrc/alpha.py +2 -1\n")
    assert "src/beta.py: def handle_beta():" in make_digest(DIFF, 400)


def test_a_search_says_how_much_was_found_in_which_file():
    text = make_digest(SEARCH, 300)
    assert text.startswith("66 lines found in 3 files:\nsrc/alpha.py: 22 lines, 3 to 192\n")
    assert "src/alpha.py:3:    compute(3, timeout=30)" in text


def test_a_listing_says_how_many_files_of_which_type_and_where():
    text = make_digest(PATHS, 300)
    assert text.startswith("A list of 90: 60 .py, 30 .ts.\n./src/pkg0/: 30\n")
    assert "./src/pkg0/module_0.ts" in text
    assert make_digest(LONG, 200).startswith("A list of 40: 40 .py.\nfile_0.py\n")


def test_source_code_says_what_it_defines():
    assert "class Thing0:\nclass Thing1:\n" in make_digest(CODE, 300)
    assert "     3\tclass Thing0:" in make_digest(NUMBERED, 300)
    assert "ValueError" not in make_digest(CODE, 300)


def test_prose_says_its_headings_and_how_it_begins():
    text = make_digest(PROSE, 250)
    assert text.startswith("# The guide\nThis guide tells how it is set up, from the beginning on.\n## Section 0\n")


def test_each_of_many_errors_appears_before_any_repeats():
    lines = ["start", *(f"ERROR unit {n} failed: refused" for n in range(200)), "FATAL disk is full", "ok " * 3, "end"]
    assert "FATAL disk is full" in make_digest("\n".join([*lines, *["fine"] * 60]), 300)


def test_what_is_wrong_in_json_is_told_wherever_it_stands():
    rows = [{"id": n, "ok": n != 250, "error": "no such table: users" if n == 250 else None} for n in range(300)]
    text = make_digest(json.dumps(rows), 400)
    assert "$[250].error: no such table: users" in text
    assert "$[250].ok: false" in text
    assert text.startswith("$: array, 300 items\n$[0]: object")


def test_omitted_lines_of_a_kind_are_counted():
    text = make_digest(PATHS, 300)
    shown = sum(line.startswith("./src/") for line in text.split("\n"))
    assert text.endswith(f"… {3 + 90 - shown} more left out …")


def test_wanted_strings_are_found_in_every_kind():
    assert "compute(192, timeout=30)" in make_digest(SEARCH, 300, keywords=["compute(192"])


@given(
    st.lists(st.sampled_from([line for text in KINDS.values() for line in text.split("\n")]), max_size=80),
    st.integers(40, 500),
)
def test_the_room_is_kept_whatever_the_lines(lines, room):
    assert len(make_digest("\n".join(lines), room)) <= room


FILLER = [f"Words on file number {n}, which says nothing of note at all." for n in range(80)]


def test_the_entries_of_its_lists_are_kept_before_other_lines():
    marks = ["- one 1", "* two 2", "+ three 3", "1. four 4", "12) five 5", "  - six 6", "| seven | 7 |"]
    text = "\n".join(
        ["It begins.", *FILLER, *(line for mark in marks for line in (mark, *FILLER[:9])), *FILLER, "End."]
    )
    told = digest_return(text, 1_000)
    assert all(mark.strip() in told for mark in marks)
    assert told.startswith("It begins.")
    assert told.endswith("End.")


def test_omissions_are_stated():
    assert "lines left out" in digest_return("\n".join(FILLER), 600)


def test_a_short_answer_comes_back_as_it_is():
    assert digest_return("- one\n- two", 200) == "- one\n- two"


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=60), st.integers(0, 2_000))
def test_a_digest_is_never_longer_than_allowed(lines: list[str], most: int):
    assert len(digest_return("\n".join(lines), most)) <= most
