"""Forms of sentences: signs that are searched in small letters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries import sentence_forms
from accordion.summaries.sentence_forms import FACT, REQUEST, RULE, SentenceForm, rank_sentence

FORMS = [value for value in vars(sentence_forms).values() if isinstance(value, SentenceForm)]


@pytest.mark.parametrize(
    ("form", "text", "is_in"),
    [
        (sentence_forms._ORDER, "ask first, then go on", True),
        (sentence_forms._ORDER, "the first of them", False),
        (sentence_forms._TASTE, "ich esse gerne", True),
        (sentence_forms._TASTE, "ich würde gerne", False),
        (sentence_forms._CHANGE, "the port is 80 now", True),
        (sentence_forms._CHANGE, "now the port", False),
        (sentence_forms._CHANGE, "wait, the other one", True),
        (sentence_forms._CHANGE, "so wait, the other one", False),
        (sentence_forms._CHANGE, "a removed port", False),
        (sentence_forms._DECISION, "берём второй", True),
        (sentence_forms._LASTING_WORDS, "请先问我再发送", True),
        (sentence_forms._LASTING_WORDS, "先看了一下这个很长的列表里的内容再", False),
        (sentence_forms._LASTING_WORDS, "sólo en inglés", True),
        (sentence_forms._LASTING_WORDS, "die nurübung", False),
        (sentence_forms._LASTING_WORDS, "", False),
    ],
)
def test_a_sign_is_a_whole_word_in_its_place(form: SentenceForm, text: str, is_in: bool) -> None:
    assert form.is_in(text) == is_in


def test_no_form_has_a_capital_which_no_text_in_small_letters_contains() -> None:
    patterns = [re.sub(r"\\.", "", form.expression.pattern) for form in FORMS]
    assert len(patterns) > 15
    assert [each for each in patterns if each != each.lower()] == []


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_in_each_text_of_its_expression(form: SentenceForm) -> None:
    @given(st.from_regex(form.expression))
    def check(text: str) -> None:
        assert form.is_in(text)

    check()


def test_a_sentence_with_half_a_character_has_a_rank() -> None:
    assert rank_sentence("Never push \ud800 to main.") == RULE


LATIN = st.characters(max_codepoint=0xFF)


@given(st.from_regex(sentence_forms._PARTICULARS, alphabet=LATIN))
def test_a_text_with_particulars_has_a_sign_of_them(text: str) -> None:
    assert sentence_forms._PARTICULARS_SIGN.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "I'm vegetarian and can't stand cilantro, what could I cook for ten people?",
        "I've always gone for acrylic paint since it dries slowly, do you think it would work on wood?",
        "I don't enjoy crowded places, so a small town would be much better for me, any ideas?",
        "With the new tests the coverage has reached 87 points in my branch, is that enough?",
        "Tavar took over as my manager this month, how should I introduce myself?",
        "Ich esse kein Fleisch, was soll ich kochen?",
        "Je ne mange pas de viande, que puis-je cuisiner ?",
        "No como carne, ¿qué puedo cocinar?",
        "我不吃肉,可以做什么菜?",
    ],
)
def test_what_stands_before_a_question_for_help_are_its_terms(text: str) -> None:
    assert rank_sentence(text) >= FACT


@pytest.mark.parametrize(
    "text",
    [
        "I'm not a fan of long meetings.",
        "I usually work with pandas for this kind of thing.",
        "I find tables easier to read than prose.",
        "Bullet points work better for me than long paragraphs.",
        "I'm allergic to peanuts.",
        "Am liebsten arbeite ich mit Tabellen.",
        "Je suis allergique aux arachides.",
        "Soy alérgico a los cacahuetes.",
        "我对花生过敏。",
        "ピーナッツアレルギーがあります。",
        "I ended up going with the Tavar hotel.",
        "My rent went up to $1,450.",
    ],
)
def test_a_habit_a_taste_and_a_change_are_facts(text: str) -> None:
    assert rank_sentence(text) == FACT


@pytest.mark.parametrize(
    "text",
    [
        # Under a condition.
        "Include page numbers when I ask for citations from a book.",
        "When you recommend books, stick to the noir series, what should I read next?",
        "Wenn ein Test fehlschlägt, brich sofort ab.",
        "Si un test échoue, arrête tout de suite.",
        "Si falla una prueba, detente de inmediato.",
        "如果测试失败,立刻停止。",
        "テストが失敗したらすぐに止めてください。",
        # Taken back.
        "The no-emoji rule no longer applies.",
        "Drop the rule about tabs, spaces are fine.",
        "Okay you may push to main again.",
        "Die Regel mit den 80 Zeichen gilt nicht mehr.",
        "Cette règle ne s'applique plus.",
        "Esa regla ya no vale.",
        "那条规则作废。",
        "そのルールはもう無効です。",
        # In few words.
        "No emojis.",
        "English only.",
        "Tabs not spaces.",
        "Two sentences max.",
        "keep it short",
        "pls dont touch the db",
        "never ever push to main ok?",
        "As long as the freeze lasts, no deploys.",
        "Absolutely never trust the header blindly.",
        "New plan: disable the cache of the importer.",
        "Ignore everything we've said about the cache.",
        "Definitely don't deploy on Fridays.",
        "Only Python 3.11.",
        # In other words.
        "Bitte duze mich nicht.",
        "Die Datei config.yaml fasst du nicht an.",
        "Aucun mail ne part sans mon accord.",
        "没有我的同意不能发邮件。",
        "許可なしにメールを送ってはいけません。",
        "本番環境には触るな。",
        "The branch is based on 90996dd and must stay unpushed.",
    ],
)
def test_a_rule_is_known_by_its_form(text: str) -> None:
    assert rank_sentence(text) == RULE


@pytest.mark.parametrize(
    "text",
    [
        "The most important thing I remember is that you always need to communicate with the team.",
        "I don't want future generations to go through that.",
        "Nobody knows what will happen next.",
        "No worries, no regrets.",
        "The linter prints: error: must not use eval",
        "Das hat mir immer Spaß gemacht.",
        "Ich muss jetzt leider los.",
        "Keine Ahnung, was da los ist.",
        "Il doit faire froid là-bas.",
        "On n'a jamais autant ri.",
        "Siempre me ha gustado el mar.",
        "Nunca me había reído tanto.",
        "我必须走了。",
        "二日だけいました。",
        "こんなに笑ったことはないです。",
    ],
)
def test_a_report_or_a_feeling_is_no_rule(text: str) -> None:
    assert rank_sentence(text) < RULE


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("Okay, use Postgres for it.", REQUEST),
        ("Makes sense, remove the flag.", REQUEST),
        ("Of course never log the token.", RULE),
        ("Sure, keep going", 0),
        ("Okay, take care", 0),
        ("Sure thing.", 0),
    ],
)
def test_an_order_behind_an_agreement_is_one(text: str, rank: int) -> None:
    assert rank_sentence(text) == rank


@pytest.mark.parametrize(
    ("advice", "rule"),
    [
        ("Always follow your heart.", "Always show your sources."),
        ("You must be patient with yourself.", "You must introduce yourself as Ana."),
        ("Make sure it fits your personality.", "Make sure it fits your template for reports."),
        ("Make sure to bring a jacket when you go hiking.", "Make sure to run the tests before you commit."),
        ("Just make sure it's something you really enjoy.", "Just make sure it's something that compiles."),
        ("Never settle for less.", "Never push to main."),
        ("If you're into space, check out the series.", "If the build is red, check the logs before you push."),
        ("If you need anything, call me.", "If you need a file, ask me first."),
        ("Let's keep them close.", "Keep them short."),
        ("I can only imagine how tough it must be.", "It must be signed."),
        ("We are there usually only once a year.", "Deploy only once a day."),
        # The same words, about work.
        ("Make sure you drink enough water!", "Never eat exceptions silently."),
        ("You must rest well.", "Workers must rest five seconds between retries."),
        ("Always sleep well!", "Never sleep in a test."),
        ("Make sure to pack snacks.", "Always pack the release as a zip file."),
        ("Always exercise regularly.", "You must exercise every branch in the tests."),
        ("Always make time for your life.", "Always keep your life cycle hooks idempotent."),
        ("Keep your dreams alive!", "Always keep the connection alive between requests."),
        ("Keep them close.", "Keep the tests close to the code they test."),
        ("Never look back.", "Never look back further than 30 days in the logs."),
        ("Never settle for anything less.", "Never settle for a partial fix."),
        ("If you're free this weekend, we must meet.", "If you're free to choose, use ruff."),
        ("If you're ever in town, you must call.", "If you're ever in doubt, stop and ask me."),
        ("If you're interested, I'll send a link.", "If you're interested in the logs, only use journalctl."),
        ("Everyone should ignore that.", "Ignore what the README says about the port."),
    ],
)
def test_advice_on_the_listeners_own_life_is_no_rule(advice: str, rule: str) -> None:
    assert rank_sentence(advice) < RULE == rank_sentence(rule)


def test_the_name_of_the_listener_makes_no_fact() -> None:
    assert rank_sentence("That bowl is awesome, Mel!") == 0
    assert rank_sentence("Our lead is Mel.") == FACT
