"""Pasted reviews, logs and documents are not the user's own words, and questions and thanks are no instructions."""

from __future__ import annotations

import pytest

from accordion.summaries.instructions import find_instructions

REVIEW = """Unclosed cursor in the loader

Medium Severity

The function load_rows() opens a cursor for each of the 40 tables. It never closes it, so the pool is always empty.

This causes Pool.get() to only return after 30 seconds."""
DESCRIPTION = (
    "The importer reads crm_core twice and only keeps the second copy, because LRUCache.get() evicts the first one "
    "instead of the oldest one."
)
LOG = """2026-01-02 10:11:12 INFO worker-3 started
2026-01-02 10:11:13 ERROR job 17 failed: must not be empty
only 3 retries left for job 17"""
TRACE = """Traceback (most recent call last):
  File "app/main.py", line 3, in run
ValueError: limit must be positive"""
DOCUMENT = """## Findings

1. **Race in `flush()`**: the writer only takes the lock after 3 retries.
2. Leak in `Pool.get`: connections are never returned.
- Add a lock to `flush()`."""


def texts(message: str) -> list[str]:
    return [each.text for each in find_instructions(message)]


@pytest.mark.parametrize("pasted", [REVIEW, DESCRIPTION, LOG, TRACE, DOCUMENT], ids=lambda text: text[:12])
def test_pasted_material_has_no_instructions(pasted: str) -> None:
    assert texts(pasted) == []


@pytest.mark.parametrize("pasted", [REVIEW, DESCRIPTION, LOG, TRACE, DOCUMENT], ids=lambda text: text[:12])
@pytest.mark.parametrize("own", ["Please fix only the first one.", "We never change load_rows, ok?", "Look at job 17."])
def test_the_own_words_below_pasted_material_count(pasted: str, own: str) -> None:
    assert texts(f"{pasted}\n\n{own}") == [own]


@pytest.mark.parametrize("pasted", [REVIEW, DESCRIPTION, DOCUMENT], ids=lambda text: text[:12])
def test_the_own_words_above_pasted_material_count(pasted: str) -> None:
    assert texts(f"Never raise the size of the pool. Here is what I got:\n\n{pasted}") == [
        "Never raise the size of the pool."
    ]


def test_a_request_directly_below_printed_lines_counts() -> None:
    assert texts(f"{LOG}\nLook at job 17 first.") == ["Look at job 17 first."]
    assert texts(f"{TRACE}\nCan you mend this in app/main_2.py?") == ["Can you mend this in app/main_2.py?"]


def test_lasting_orders_within_a_document_count_since_users_paste_their_rules_too() -> None:
    rules = ["- Never push to main.", "- Use Python 3.11 only.", "- You must not edit files in vendor/."]
    assert texts("\n".join(["# Rules", "", *rules, "- The loader is in app/load.py."])) == rules
    assert texts("<rules>\nNever push to main.\nThe loader is in app/load.py.\n</rules>") == ["Never push to main."]


@pytest.mark.parametrize(
    "opening", ["This session is being continued from a previous conversation.", "Stop hook feedback: job 17 failed."]
)
def test_messages_that_a_client_wrote_have_no_facts_or_requests_of_the_user(opening: str) -> None:
    assert texts(f"{opening}\nThe owner is Ana Keller.\nRun job 17.\nNever push to main.") == ["Never push to main."]


def test_plain_statements_of_several_sentences_stay_instructions() -> None:
    message = "The tables in crm_core must not be changed. They belong to another team."
    assert texts(message) == ["The tables in crm_core must not be changed."]
    message = "The staging server is at https://staging.example/v2. The contact is Maria Keller in Lisbon."
    assert texts(message) == [message]


def test_a_short_message_in_capitals_is_no_heading() -> None:
    assert texts("Call It Kestrel Two") == ["Call It Kestrel Two"]
    assert texts("Hi Claude\nThe customer number is KD-48213.") == ["The customer number is KD-48213."]


@pytest.mark.parametrize(
    "text",
    [
        "How does LRUStore decide what to evict?",
        "how do line hashes work if `  }` is in the file 20 times",
        "why is build_index always called twice here",
        "what's the source of `edit_file`",
        "Should we move parse_args to cli.main too?",
        "Is there a reason why `retry_count` is 5?",
        "Warum läuft der Test von KD-17 nur nachts?",
        "Pourquoi recette-b répond-il toujours en 3 secondes ?",
        "¿Por qué tarda 40 segundos la copia?",
        "为什么 Postgres 重启要 20 分钟?",
    ],
)
def test_a_question_is_no_instruction(text: str) -> None:
    assert texts(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Can you use tabs in the Makefile instead?",
        "Could you please never commit without asking me?",
        "Kannst du bitte den Dienst kato_2 nehmen?",
        "Pouvez-vous garder le service Kato ?",
        "What is in vendor/ must never be touched.",
        "What I would like is a report with 3 columns.",
    ],
)
def test_a_request_in_the_form_of_a_question_is_an_instruction(text: str) -> None:
    assert texts(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "Thanks, the fix in parser_v2 works!",
        "Great, build 417 is green!",
        "Hello Claude, good morning!",
        "Wow, 20% faster!",
        "Perfect, that solved issue #42.",
        "It must have been the proxy_cache.",
        "That must be a bug in sqlite3.",
        "Das muss ein Fehler sein, seit KD-17.",
    ],
)
def test_thanks_exclamations_and_conjectures_are_no_instructions(text: str) -> None:
    assert texts(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "The change must have been approved by Ana Keller.",
        "It must be the first line of each file.",
        "Each module must have a docstring.",
        "Das muss der Chef freigeben.",
        "Thanks, my customer number is KD-48213.",
        "Never use emoji!",
    ],
)
def test_rules_that_resemble_remarks_stay_instructions(text: str) -> None:
    assert texts(text) == [text]
