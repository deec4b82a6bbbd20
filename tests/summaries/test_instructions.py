"""Standing instructions: told apart by their form, in many languages; the newest on a subject stands, each once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries.instructions import (
    RULE,
    STATEMENT,
    TITLE,
    instructions_of,
    render,
    standing,
)

RULES = [
    "Never write to the production database.",
    "Use tabs, not spaces, in every Makefile.",
    "I'd prefer short answers, at most three sentences.",
    "The report must go to Ms. Okafor before noon.",
    "From now on, answer in metric units.",
    "No, the other branch: release-4.",
    "Bitte keine Umlaute in Dateinamen.",
    "Das Budget darf 400 Euro nicht übersteigen.",
    "Ne touche jamais au dossier archive.",
    "Il faut toujours demander avant de supprimer.",
    "Nunca envíes correos sin mi permiso.",
    "Os relatórios devem sempre ter um resumo.",
    "Non modificare mai il file di configurazione.",
    "Gebruik voortaan alleen de testserver.",
    "Никогда не удаляй старые записи.",
    "不要修改数据库的结构。",
    "必ず日本語で答えてください。",
    "로그 파일은 절대 지우지 마세요.",
]
STATEMENTS = [
    "The staging server is at https://staging.example/v2.",
    "Our customer number is KD-48213.",
    "The contract was signed by Maria Keller in Lisbon.",
]
REMARKS = [
    "Reading through the design of the importer this morning.",
    "The tests passed and the build looks fine.",
    "thanks, that was quick",
]


def texts(*said: str) -> list[str]:
    return [str(each) for each in standing(stated(*said), lambda _: False)]


def stated(*said: str):
    return [(index, each) for index, text in enumerate(said) for each in instructions_of(text)]


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("text", RULES)
def test_a_rule_is_known_by_its_form_in_many_languages(text: str) -> None:
    assert [(each.text, each.rank) for each in instructions_of(text)] == [(text, RULE)]


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_sentence_with_particulars_ranks_below_a_rule(text: str) -> None:
    assert [(each.text, each.rank) for each in instructions_of(text)] == [(text, STATEMENT)]


@pytest.mark.parametrize("text", REMARKS)
def test_a_remark_is_no_instruction(text: str) -> None:
    assert instructions_of(text) == ()


def test_code_and_the_middle_of_a_long_paste_are_not_read() -> None:
    code = "```\nnever do this\nif not ready: return\n```\nif not ready: return\n    do not run this line, it is code\n"
    assert instructions_of(code) == ()
    paste = "\n".join(["Never deploy on Fridays.", *(f"2026-01-02 job {at} did not start" for at in range(90))])
    assert instructions_of(paste)[0].text == "Never deploy on Fridays."
    assert len(instructions_of(paste)) < 30


def test_a_later_value_replaces_the_earlier_one() -> None:
    said = ["The budget cap is $300 in total.", "Fine.", "The budget cap is $750 in total."]
    assert texts(*said) == ["[2] The budget cap is $750 in total. (replaces [0])"]
    assert texts("The owner of the release is Ana.", "The owner of the release is Bo.") == [
        "[1] The owner of the release is Bo. (replaces [0])"
    ]


def test_rules_about_different_things_both_stand() -> None:
    said = ["Never run tool KESTREL without the safe word.", "Never run tool OSPREY without the safe word."]
    assert texts(*said) == [f"[{at}] {text}" for at, text in enumerate(said)]


def test_where_it_is_unclear_both_stand_and_the_newer_is_marked() -> None:
    said = ["Use Postgres for the order service.", "Use MySQL for the order service instead."]
    assert texts(*said) == [f"[0] {said[0]}", f"[1] {said[1]} (newer than [0])"]


def test_an_instruction_is_listed_once_and_not_if_it_is_visible_anyway() -> None:
    said = ["Never deploy on Fridays.", "Never deploy on Fridays.", "Always run the linter."]
    assert texts(*said) == ["[1] Never deploy on Fridays.", "[2] Always run the linter."]
    assert [each.index for each in standing(stated(*said), "Always run the linter.".__contains__)] == [1]


def test_the_omitted_instructions_are_named_in_one_line() -> None:
    found = standing(
        stated(*(f"Never touch module {name} of the parser." for name in "abcdefghijklmnop")), lambda _: False
    )
    text, told = render(found, 60, words)
    lines = text.split("\n")
    assert lines[0] == f"## {TITLE}"
    assert lines[-1].startswith("(There was no room for those in messages ")
    assert lines[-1].endswith("; read_artifact has them.)")
    assert 0 < len(told) == len(lines) - 2 < len(found)
    assert words(text) <= 60


said = st.lists(st.sampled_from([*RULES, *STATEMENTS, *REMARKS, "The cap is 1.", "The cap is 22."]), max_size=12)


@given(said, st.integers(0, 200))
def test_what_is_listed_fits_stands_verbatim_and_in_the_order_of_the_messages(said: list[str], budget: int) -> None:
    found = standing(stated(*said), lambda _: False)
    text, told = render(found, budget, words)
    assert words(text) <= budget
    assert all(any(each in one for one in said) for each in told)
    shown = [line for line in text.split("\n")[1:] if line.startswith("[")]
    indexes = [int(line[1 : line.index("]")]) for line in shown]
    assert indexes == sorted(indexes)
    assert len(shown) == len(told)
    # Of two values only the newer one stands.
    assert not {"The cap is 1.", "The cap is 22."} <= told
