"""Which standing instructions without a place in the window a turn speaks of."""

from __future__ import annotations

import pytest

from accordion.archive.recall import ArtifactSearch, Rule, describe_omitted_rules
from accordion.archive.recall_index import WordIndex
from tests.archive.recall_samples import TENANT, call, count, find_claims, read, result, summarized, user

RULE = Rule(1, "Never send invoices to the vendor Halloran.", "[1] Never send invoices to the vendor Halloran.")
OTHER = Rule(2, "生产环境不要运行清理任务。", "[2] 生产环境不要运行清理任务。")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Please send the invoices of May to our vendor.", [RULE]),
        ("Write to Halloran.", [RULE]),
        ("Sending invoices is next.", [RULE]),
        ("Send it.", []),
        ("请在生产环境运行清理任务。", [OTHER]),
        ("继续写报告。", []),
        ("", []),
    ],
)
def test_a_turn_speaks_of_a_rule_by_its_words_or_by_a_rare_name(text: str, found: list[Rule]) -> None:
    assert describe_omitted_rules([RULE, OTHER], WordIndex([])).relevant_to(read([user(text)]).messages, 3) == found


def test_a_call_speaks_of_a_rule_too() -> None:
    turn = read([call("send_invoices", {"to": "the vendor"}, "c")]).messages
    assert describe_omitted_rules([RULE], WordIndex([])).relevant_to(turn, 3) == [RULE]


def test_a_name_that_stands_nearly_everywhere_does_not_tell_a_rule() -> None:
    places = WordIndex([[b"Halloran"]] * 20)
    assert describe_omitted_rules([RULE], places).relevant_to(read([user("Write to Halloran.")]).messages, 3) == []


def test_rules_are_those_that_no_text_in_view_states() -> None:
    client, shown, newest = summarized([user("Send the invoices to our vendor.")], said=f"A record.\n{RULE.line}\n")
    visible = list[str]()

    def rules(_messages: object, _covered: int, text: str) -> list[Rule]:
        visible.append(text)
        return []

    ArtifactSearch(find_claims, rules=rules).find_excerpt(TENANT, shown, client, newest, count)
    [text] = visible
    assert RULE.text in text
    assert "Send the invoices to our vendor." in text
    assert "W5918442" not in text


def test_there_are_no_more_rules_and_tokens_than_allowed() -> None:
    rules = [Rule(1, f"Never send invoice {at} to the vendor.", f"[1] Never send invoice {at}.") for at in range(9)]
    client, shown, newest = summarized([user("Send the invoice to the vendor.")])
    artifact_search = ArtifactSearch(find_claims, rules=lambda _messages, _covered, _text: rules)
    few = artifact_search.find_excerpt(TENANT, shown, client, newest, count, sources=2)
    assert few is not None
    assert (len(few.quotes), few.text.count("> [1] Never send invoice")) == (2, 2)
    short = artifact_search.find_excerpt(TENANT, shown, client, newest, count, tokens=60)
    assert short is not None
    assert (len(short.quotes), short.tokens <= 60) == (1, True)
    assert artifact_search.find_excerpt(TENANT, shown, client, newest, count, tokens=20) is None


def test_a_rule_stands_in_front_of_what_is_named() -> None:
    turn = [call("send_invoices", {"to": "vendor", "order": "W5918442"}, "c9"), result("c9", "sent")]
    client, shown, newest = summarized(turn)
    found = ArtifactSearch(find_claims, rules=lambda _messages, _covered, _text: [RULE]).find_excerpt(
        TENANT, shown, client, newest, count
    )
    assert found is not None
    assert found.text.index(RULE.line) < found.text.index("7706410293")
