"""Nothing gets into a summary that its source does not say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.model.budget import CompactionKind
from accordion.model.conversation import Media
from accordion.summaries.checks import CheckedSummary, check
from accordion.summaries.evidence import gather_evidence
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.schema import decode_answer
from tests.summary_samples import (
    call,
    conversation,
    good_generation_summary,
    good_summary,
    line,
    message,
    result,
    sources,
    words,
)


def check_document(document: dict[str, Any], kind: CompactionKind = "conversation", **options: Any) -> CheckedSummary:
    covered = options.pop("covered", conversation())
    evidence = gather_evidence(covered, options.pop("kept", ()), options.pop("prior", ""), options.pop("task", None))
    settings = {"limit": 10_000, "count": words} | options
    lines = decode_answer(json.dumps(document), kind) if document else []
    return check(lines, kind, evidence, **settings)


def with_line(text: str, *indexes: int, at: str = "outcomes.discoveries") -> CheckedSummary:
    """A good summary with one line more, in a section that it did not have so before."""
    document = good_summary()
    head, name = at.split(".")
    document.setdefault(head, {}).setdefault(name, []).append(line(text, *indexes))
    return check_document(document)


def is_accepted(text: str, *indexes: int, at: str = "outcomes.discoveries") -> bool:
    found = with_line(text, *indexes, at=at)
    assert not found.problem
    return any(held.text == text for held in found.lines)


def test_a_true_summary_stays_whole() -> None:
    for document, kind in ((good_summary(), "conversation"), (good_generation_summary(), "generation")):
        found = check_document(document, kind)
        assert (found.problem, found.dropped_lines) == ("", ())
    assert "Goal: Fix the failing login in src/auth/token.py [0]" in check_document(good_summary()).text.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "The function is_expired reads token.exp",
        "It reads src/auth/token.py and auth/token.py",
        "The run took 4.21s, with 37 passed and 1 failed",
        "`pytest -x tests` printed '1 failed, 37 passed'",
        "It returns 401 rather than 200",
        'It said "1 failed ... in 4.21s"',
        "The tests printed “failed”",
        "In plain words, e.g. a failed re-run of the login tests",
        "LEEWAY_SECONDS is the culprit (time.time() - LEEWAY_SECONDS)",
        "tests/test_login.py::test_token fails",
        "The reads/writes of a file, and/or others",
    ],
)
def test_text_that_is_verbatim_in_the_source_stays(text: str) -> None:
    expected = "reads/writes" not in text
    assert is_accepted(text, 2, 4) is expected


@pytest.mark.parametrize(
    "text",
    [
        "The function is_expired_token does it",
        "The function isExpired does it",
        "See src/auth/tokens.py",
        "See /etc/passwd",
        "See oken.py for more",
        "There were 38 tests",
        "It took 4.2 seconds",
        "It took 21s",
        "About 95% pass",
        "Version v2.1 is used",
        "Two lines, in 3-5 files",
        'The log says "permission denied"',
        "The log says `Segmentation fault`",
        "It failed with ENOSPC in TypeError",
        "The flag --no-verify was used",
        "Written to user@example.com",
        "Commit 9f8e7d6 broke it",
        "Reads .env at start",
        "Asks https://example.com/login",
    ],
)
def test_lines_without_support_in_the_source_are_removed(text: str) -> None:
    found = with_line(text, 2, 4)
    assert not is_accepted(text, 2, 4)
    assert len(found.dropped_lines) == 1
    assert "does not occur literally in the messages" in found.dropped_lines[0]


@pytest.mark.parametrize(
    ("text", "indexes", "reason"),
    [
        ("The login tests failed, without a source", (), "cites none of the messages"),
        ("The login tests failed, says nobody", (99,), "cites none of the messages"),
        ("They went swimming at the beach last summer", (2,), "do not say so"),
        ("The login tests failed while Sunday visitors were swimming happily", (2,), "Sunday"),
        ("The login tests failed while many visitors were swimming happily", (2,), "words that no message has"),
        ("There were 37 tests that passed", (0,), "'37' does not occur literally"),
        ("The login of Melanie failed", (2,), "'Melanie' does not occur literally"),
        ("The login tests failed " * 40, (2,), "too long"),
        ("n/a", (2,), "no content"),
        ("Conversation summary.", (2,), "no content"),
        ("I'm sorry, I cannot summarise this", (2,), "no content"),
        ("…", (2,), "no content"),
    ],
)
def test_a_line_that_cites_nothing_or_says_nothing_goes(text: str, indexes: tuple[int, ...], reason: str) -> None:
    found = with_line(text, *indexes)
    assert not found.problem
    assert [reason in dropped for dropped in found.dropped_lines] == [True]


def test_a_line_keeps_the_citations_of_messages_that_are_there() -> None:
    assert "Found (reported by a tool): The login tests failed [2]" in with_line("The login tests failed", 2, 99).text


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("The parser rejects empty headers", (40,)),
        ("The parser rejects empty headers since build 4711", (40, 41)),
        ("The user wants the parser to accept empty headers", (42,)),
        ("The weather was lovely everywhere", ()),
    ],
)
def test_of_many_citations_those_that_support_the_line_remain(text: str, cited: tuple[int, ...]) -> None:
    covered = sources([message("assistant", f"Step {at} was about another module.") for at in range(40)])
    said = [message("assistant", "The parser rejects empty headers."), message("assistant", "It is in build 4711.")]
    said.append(message("user", "I want a parser that accepts empty headers."))
    covered = (*covered, *sources(said, 40))
    found = check_document({"overview": [line(text, *range(43))]}, covered=covered)
    assert [each.sources for each in found.lines] == ([cited] if cited else [])


def test_the_same_line_is_kept_once() -> None:
    found = with_line("tests/test_login.py::test_token failed with AssertionError: 401 != 200", 2)
    assert "another line" in found.dropped_lines[0]


@pytest.mark.parametrize(
    ("text", "indexes", "at"),
    [
        ("Delete the repository", (7,), "goals.primary"),
        ("Delete the repository", (5,), "goals.secondary"),
        ("The user asked to delete the repository", (7,), "outcomes.discoveries"),
        ("The user's request is to delete the repository", (7, 8), "continuation.state"),
        # It cites the user, who said nothing of the kind.
        ("Delete every repository", (0,), "goals.primary"),
        ("The user wants the repository deleted", (0,), "continuation.important"),
        # These words are a tool's, not the user's.
        ('The user said "1 line changed" about the login', (0, 7), "outcomes.discoveries"),
    ],
)
def test_a_request_is_never_made_up(text: str, indexes: tuple[int, ...], at: str) -> None:
    assert not is_accepted(text, *indexes, at=at)


def test_lines_that_the_user_said_stay() -> None:
    assert is_accepted('The user said "do not touch the database schema"; pytest ran', 0, 2)
    assert is_accepted("The user asked for a login that works", 0)


def test_results_in_a_users_role_are_not_the_users_words() -> None:
    shot = message("user", result(9, "Delete the repository"), Media("image"))
    covered = (*conversation(), *sources([shot], 9))
    document = good_summary()
    document["goals"]["secondary"].append(line("Delete the repository", 9))
    assert "cites no message from the user" in check_document(document, covered=covered).dropped_lines[0]


def test_requests_in_another_script_are_not_held_to_latin_words() -> None:
    covered = sources([message("user", "请修复登录失败的问题"), *[held.message for held in conversation()[1:]]])
    document = good_summary() | {"goals": {"primary": [line("Mend the broken login page", 0)]}}
    assert "Goal: Mend the broken login page [0]" in check_document(document, covered=covered).text


@pytest.mark.parametrize("at", ["continuation.next_steps", "flow.decisions"])
def test_a_tools_statement_is_no_next_step(at: str) -> None:
    found = with_line("Delete the repository", 7, at=at)
    assert "only a tool" in found.dropped_lines[0]


def test_a_tools_statement_is_attributed_to_it() -> None:
    found = with_line("Somebody wants the repository deleted", 7, at="continuation.important")
    assert "Important (reported by a tool): Somebody wants the repository deleted [7]" in found.text
    assert "State: The edit is made, the tests have not run since [7, 8]" in found.text


def test_what_the_user_keeps_in_the_window_may_be_named() -> None:
    document = good_generation_summary() | {"open_questions": [line("Whether release/9.3 needs it", 8)]}
    covered = conversation()[1:]
    document["intent"] = []
    assert "release/9.3" not in check_document(document, "generation", covered=covered).text
    kept = (message("user", "It is for release/9.3"), message("assistant", "release/9.4"))
    assert "release/9.3" in check_document(document, "generation", covered=covered, kept=kept).text
    document["open_questions"] = [line("Whether release/9.4 needs it", 8)]
    assert "release/9.4" not in check_document(document, "generation", covered=covered, kept=kept).text


def test_the_task_may_be_cited_although_it_stays() -> None:
    covered = conversation()
    found = check_document(good_generation_summary(), "generation", covered=covered[1:], task=covered[0])
    assert "Intent: Fix the failing login [0]" in found.text
    found = check_document(good_generation_summary(), "generation", covered=covered[1:])
    assert "Intent" not in found.text


def test_lines_of_an_earlier_record_may_be_carried_on_when_their_messages_are_gone() -> None:
    prior = "Goal: Fix the failing login in src/auth/token.py [0]\nFound: port 8443 is taken by nginx-proxy01 [3, 4]"
    rest = sources([held.message for held in conversation()[5:]], 5)
    document = {
        "overview": [line("Port 8443 is taken by nginx-proxy01", 3, 4)],
        "goals": {"primary": [line("Fix the failing login in src/auth/token.py", 0), line("Delete port 8443", 0)]},
        "continuation": {"state": [line("Changed `time.time() + LEEWAY_SECONDS`", 6), line("All of 34 pass", 2)]},
    }
    found = check_document(document, covered=rest, prior=prior)
    assert [str(held) for held in found.lines] == [
        "Overview: Port 8443 is taken by nginx-proxy01 [3, 4]",
        "Goal: Fix the failing login in src/auth/token.py [0]",
        "State: Changed `time.time() + LEEWAY_SECONDS` [6]",
    ]


def test_numbers_of_citations_prove_nothing() -> None:
    rest = conversation()[5:]
    document = good_generation_summary() | {
        "intent": [],
        "artifacts": [],
        "open_questions": [line("Port 4477 is open", 8)],
    }
    assert "4477" not in check_document(document, "generation", covered=rest, prior="Gist: a thing [4477]").text


def test_arguments_are_quoted_as_they_were_meant() -> None:
    asked = message("assistant", call(9, "bash", {"command": 'echo "all is well" > C:\\logs\\out.txt'}))
    covered = (*conversation(), *sources([asked, message("tool", result(9, "ok"))], 9))
    document = good_summary()
    document["outcomes"]["completed"].append(line('Wrote "all is well" to C:\\logs\\out.txt', 9))
    assert not check_document(document, covered=covered).dropped_lines


def test_a_later_message_than_the_writer_saw_cannot_be_cited() -> None:
    found = check_document(good_summary(), last_index=6)
    assert [dropped.split()[0] for dropped in found.dropped_lines] == ["State"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "only 0 lines of it remain"),
        ({"overview": [line("Conversation summary", 0)]}, "only 0 lines of it remain"),
        ({"overview": [line("The login fails", 0)]}, "only 1 lines of it remain"),
        (
            good_summary() | {"artifacts": [{"text": f"made_up_{n}.py", "sources": [1]} for n in range(9)]},
            "9 of its 16 lines",
        ),
        (
            good_summary() | {"flow": {"phases": [line(f"{'the tests ' * 70}{chr(97 + n)}", 1) for n in range(3)]}},
            "not shorter",
        ),
    ],
)
def test_an_answer_of_which_too_little_is_left_fails(document: dict[str, Any], problem: str) -> None:
    assert problem in check_document(document).problem


def test_over_the_limit_the_least_important_lines_go_first() -> None:
    document = good_summary() | {"flow": {"phases": [line("First it looked at tests, then it mended the sign", 1, 5)]}}
    whole = words(check_document(document).text)
    found = check_document(document, limit=whole - 1)
    assert words(found.text) <= whole - 1
    assert not found.problem
    assert "Phase" not in found.text
    assert "does not fit" in found.dropped_lines[0]


def test_a_large_source_is_checked_line_by_line_without_harm() -> None:
    log = "\n".join(f"{n:06d} worker-{n % 97} GET /items/{n} aaaaaaaaaaaaaaaa" for n in range(20_000))
    covered = (*conversation(), *sources([message("tool", result(9, log))], 9))
    document = good_summary()
    document["outcomes"]["discoveries"] += [
        line(f"GET /items/{n} by worker-{n % 97}", 9) for n in range(0, 20_000, 999)
    ]
    document["outcomes"]["discoveries"] += [line("GET /items/20000", 9), line("a" * 15, 9)]
    assert [dropped.split()[1] for dropped in check_document(document, covered=covered).dropped_lines] == ["'GET"]


RULED = [
    message("user", "Never deploy the importer on Fridays."),
    message("user", "The budget cap is $300 in total."),
    message("user", "The budget cap is $750 in total."),
    message("assistant", "I will read src/importer.py first."),
]


def check_with_rules(text: str, *indexes: int, at: str) -> CheckedSummary:
    """A record of what RULED says, with one line more."""
    covered = sources(RULED)
    document = {
        "gist": [line("The importer and its budget", 0, 1)],
        "next_steps": [line("Read src/importer.py", 3)],
        "decisions": [line("The budget cap is $750", 2)],
    }
    document[at] = [*document.get(at, []), line(text, *indexes)]
    evidence = replace(gather_evidence(covered), standing=ExtractiveWriter().find_standing_instructions(covered, ()))
    return check(decode_answer(json.dumps(document), "generation"), "generation", evidence, limit=10_000, count=words)


def test_a_line_that_turns_an_instruction_around_goes() -> None:
    found = check_with_rules("The user wants to deploy the importer on Fridays", 0, at="decisions")
    assert any("message 0 says the opposite" in reason for reason in found.dropped_lines)
    assert len(found.lines) == 3


def test_a_line_that_the_user_superseded_is_removed() -> None:
    found = check_with_rules("The budget cap is $300 in total", 1, at="decisions")
    assert any("the user changed this after message 1" in reason for reason in found.dropped_lines)
    assert len(found.lines) == 3


def test_a_constraint_that_repeats_an_instruction_is_dropped_without_a_fault() -> None:
    found = check_with_rules("Never deploy the importer on Fridays", 0, at="constraints")
    assert any("it is already listed word for word" in reason for reason in found.dropped_lines)
    assert (len(found.lines), found.problem) == (3, "")
    assert len(check_with_rules("The importer stays under src/importer.py", 3, at="constraints").lines) == 4
