"""The facts of one message."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.summaries.facts import WordClassifier, extract_facts, find_outline, find_trouble


def words(text, **more):
    return WordClassifier().find_words(text, **more)


def facts(role, *parts):
    return extract_facts(Message(b"k", role, parts, b""), WordClassifier())


@pytest.mark.parametrize(
    "path", ["/srv/app/main.py", "src/app/util.ts", "~/notes/plan.md", "../lib/x.go", "tests/a_b/test_c.py"]
)
def test_a_path_is_found_whole_whatever_stands_around_it(path):
    assert words(f'see "{path}", ({path}) and {path}:12: or `{path}`.').paths == (path,)


def test_the_line_number_that_grep_puts_behind_a_file_is_no_part_of_the_path():
    assert words("src/a.go-12-\tx := 1\nsrc/a.go:13:\ty := 2").paths == ("src/a.go",)


def test_a_branch_that_ends_in_a_number_is_left_whole():
    assert words("checked out origin/release-2024 now").paths == ()
    assert words("checked out origin/big_release-2024 now").paths == ("origin/big_release-2024",)


def test_a_closing_tag_is_no_path():
    assert words("<system-reminder>\nsee src/app/util.ts\n</system-reminder>").paths == ("src/app/util.ts",)


def test_an_overlong_word_is_ignored():
    judge = WordClassifier()
    assert judge.find_words("a/" * 10_000 + " " + "x1" * 101, numbers=True) == judge.find_words("")
    assert not any(judge), "nothing of it is remembered"


def test_identifiers_are_told_from_plain_words():
    assert words("The parser calls read_config and BuildTree in HTTPServer, NOT Here.").names == (
        "read_config",
        "BuildTree",
        "HTTPServer",
    )


def test_ids_mix_letters_and_digits_or_are_long_numbers():
    assert words("order W2378156, card credit_card_9074831, commit 9fceb02d0a, 299792458, 2024-05-28").ids == (
        "W2378156",
        "credit_card_9074831",
        "9fceb02d0a",
        "299792458",
        "2024-05-28",
    )


def test_capitals_with_a_digit_among_them_are_an_id_across_hyphens():
    assert words("host UB4X-KLMNO of CHAPTER-7 and STEP-2-OF-THE-PLAN").ids == ("UB4X-KLMNO",)


def test_four_digits_count_only_where_numbers_are_asked_for():
    assert words("at 1843").ids == ()
    assert words("at 1843", numbers=True).ids == ("1843",)


def test_links_and_windows_paths_are_found_whole():
    assert words("open https://example.com/a?b=c&d=1. Then C:\\work\\app.ini").links == (
        "https://example.com/a?b=c&d=1",
        "C:\\work\\app.ini",
    )


def test_signs_of_other_scripts_end_a_word_and_letters_within_one_leave_it_out():
    found = words("文件src/app/main.py的内容 → caf\u00e9_table")
    assert found.paths == ("src/app/main.py",)
    assert found.names == ()


def test_the_scalars_of_json_results_keep_their_keys():
    result = ToolResult(
        "c", (Text(json.dumps({"order": {"id": "W1", "items": [{"sku": 77}, {"sku": 78}]}, "ok": True})),)
    )
    assert facts("tool", result).results[0].fields == (("id", "W1"), ("sku", "77"), ("sku", "78"))


def test_arguments_that_are_no_json_are_one_value():
    assert facts("assistant", ToolCall("c", "shell", "ls -la {")).calls[0].fields == (("", "ls -la {"),)


def test_lines_that_tell_of_errors_are_found_and_source_code_is_not():
    shown = "  12→\traise ValueError('x')\nsrc/a.go:7:\treturn errors.New()"
    log = f"start\nE   ValueError: bad input\nok\n{shown}\nFAILED test_x"
    assert set(find_trouble(log)) == {"E   ValueError: bad input", "FAILED test_x"}


def test_the_outline_of_numbered_source_has_the_lines_that_open_something():
    shown = (
        "     1→package main\n     2→\n     3→\t// Reads the configuration.\n     4→\tx := 1\n     5→func main() {\n"
    )
    assert find_outline(shown) == ("1→package main", "3→\t// Reads the configuration.", "5→func main() {")
    assert find_outline("no numbers here\nat all") == ()


def test_reasoning_is_not_listed_and_media_are_named():
    found = facts("user", Reasoning("secret_plan_1"), Media("image", "image/png"), Opaque("thing", 10))
    assert found.text == ""
    assert found.media == ("image/png", "thing")


def test_a_huge_text_is_looked_through_at_head_and_tail():
    text = "first_name_here\n" + "filler words\n" * 400_000 + "last_name_here\n"
    assert words(text).names == ("first_name_here", "last_name_here")


@pytest.mark.parametrize(
    "unit", ["a", "/", "a/", "a-1-", "_", "aA", "a.b", "9", "1-", "\\", "https://", "é", "\ud800", "{", "["]
)
def test_long_runs_of_one_sign_are_no_trouble(unit):
    text = unit * 200_000
    found = facts("tool", ToolResult("c", (Text(text), Text(f"{text}\n")))).results[0]
    assert found.size >= len(text)


@given(st.text(max_size=300))
def test_every_word_stands_in_the_text(text):
    found = words(text, numbers=True)
    for word in (*found.paths, *found.ids, *found.names, *found.links):
        assert word in text


@given(
    st.lists(
        st.from_regex(r"[A-Z]?[a-z]{0,9}[.~+@/-]{0,2}", fullmatch=True)
        | st.sampled_from(
            ["src/app/a.py", "read_config", "BuildTree", "W2378156", "2024", "naïve.py", "a\\\\b", "HTTP-X"]
        )
        | st.text("aZ09_./@+~-\\", max_size=12)
    )
)
def test_what_each_word_of_a_text_is_does_not_depend_on_the_words_around_it(listed):
    judge, alone = WordClassifier(), [WordClassifier().find_words(word, numbers=True) for word in listed]
    found = judge.find_words(" ".join(listed), numbers=True)
    for kind in ("paths", "ids", "names"):
        assert getattr(found, kind) == tuple(dict.fromkeys(word for each in alone for word in getattr(each, kind)))
