"""Which of the users' instructions are recalled, because no message in view states them."""

from __future__ import annotations

import pytest

from accordion.composition.compaction_builder import find_rules
from accordion.summaries.extractive import ExtractiveWriter
from tests.archive.recall_samples import read, user

NEVER, ALWAYS = "Never send invoices to the vendor Halloran.", "Always run the tests before you commit."
FORMER, LATTER = "The release is on Monday.", "The release is on Friday."
MESSAGES = read([user(NEVER), user(ALWAYS), user(FORMER), user("Go on."), user(LATTER)]).messages


@pytest.mark.parametrize(
    ("covered", "visible", "texts"),
    [
        (4, "", [NEVER, ALWAYS]),
        (4, f"It was said: {NEVER}", [ALWAYS]),
        (4, f"{ALWAYS} {NEVER}", []),
        (4, f"{ALWAYS} {NEVER} {FORMER}", []),
        (1, ALWAYS, [NEVER]),
        (0, "", []),
    ],
)
def test_rules_are_the_standing_instructions_that_left_and_are_not_in_view(
    covered: int, visible: str, texts: list[str]
) -> None:
    writer = ExtractiveWriter()
    for _ in range(2):
        assert [rule.text for rule in find_rules(writer, MESSAGES, covered, visible)] == texts


def test_a_rule_names_its_message() -> None:
    [rule, *_] = find_rules(ExtractiveWriter(), MESSAGES, 4, ALWAYS)
    assert (rule.message, rule.line) == (0, f"[0] {NEVER}")
