"""Standing instructions: listed apart by their form, in many languages; the newest on a subject stands, each once."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries.author import render_block, render_label
from accordion.summaries.instructions import (
    TITLE,
    CitedInstruction,
    find_instructions,
    find_promises,
    find_system_rules,
    render_instructions,
    select_standing,
)
from accordion.summaries.sentence_forms import FACT, REQUEST, RULE, STATEMENT

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
    "不要用红色。",
    "必ず日本語で答えてください。",
    "로그 파일은 절대 지우지 마세요.",
]
CHATTED = [
    "Hands off the tables of the payroll.",
    "Nobody restarts the box without asking me first, got it?",
    "And whatever you do, the old bucket stays as it is.",
    "I really can't stand emoji in commit messages.",
    "Hm, I misspoke earlier: the other office gets the invoices.",
    "Never mind the idea with the tapes.",
    "We're using the small cluster for the nightly jobs.",
    "An dem Ordner wird bitte nichts angefasst.",
    "Wenn es um Verträge geht, läuft das erst über die Rechtsabteilung.",
    "Mir wäre es lieber, die Diagramme kämen als Text.",
    "Ich hab mich vertan, die andere Halle wird geräumt.",
    "On ne touche pas aux tables de la paie.",
    "Rien ne part avant la fin du gel.",
    "J'aime mieux les tableaux étroits.",
    "Je me suis trompé, c'est l'autre salle.",
    "Que nadie toque las carpetas de la auditoría.",
    "Me gustan más las tablas estrechas.",
    "Perdona, me equivoqué antes: es la otra sala.",
    "谁都别碰那台机器。",
    "我更喜欢窄一点的表格。",
    "刚才说错了,发票寄到另一个办公室。",
]
STATEMENTS = [
    "The staging server is at https://staging.example/v2.",
    "Our customer number is KD-48213.",
    "The contract was signed by Maria Keller in Lisbon.",
    "我们的数据库是 Postgres。",
    "Der Testserver heißt vostrel.internal.",
]
REMARKS = [
    "I appreciate your support.",
    "Change is possible!",
    "Keep up the great work, Maria!",
    "Whoa, Mel, that sign looks serious.",
    "Give it a try!",
    "Reading through the design of the importer this morning.",
    "The tests passed and the build looks fine.",
    "thanks, that was quick",
    "The retries back off, capped at thirty seconds.",
    "The retry budget for the importer is still being tuned.",
    "Discussing headers for the static route and CDN behavior.",
    "The worker still hangs now and then.",
    "That part reads fine now.",
    "It never finished, and it always prints the same line.",
    "I love it!",
    "Der Worker hängt immer noch ab und zu.",
    "Schaust du dir die nächste Datei auch noch an?",
    "Der Teil liest sich jetzt ganz gut.",
    "Il bloque toujours de temps en temps.",
    "这一段现在读起来不错。",
]
PROMISES = [
    "I will send the report Kestrel-7 tomorrow.",
    "A refund of $490 will be processed to your card.",
    "Ich werde den Bericht Kestrel morgen schicken.",
    "Je vais envoyer le rapport Kestrel demain.",
    "Voy a enviar el informe Kestrel mañana.",
    "我会明天发送报告 Kestrel。",
    "The migration of Kestrel is still open.",
    "I'm sending the diff for the Kestrel parser tonight.",
    "You'll have the Kestrel report on Thursday.",
    "I'll get back to you with the figures for Kestrel once the run is through.",
    "Den Diff für Kestrel schicke ich heute Abend.",
    "Ich melde mich mit den Messwerten zu Kestrel, sobald der Lauf durch ist.",
    "Je vous envoie le diff de Kestrel ce soir.",
    "Os mando el diff de Kestrel en cuanto termine la prueba.",
    "今晚我把 Kestrel 的数据发给你。",
]
OFFERS = [
    "Please confirm, and I'll proceed with the booking.",
    "If you agree, I will send the report.",
    "To proceed, I'll need your user ID.",
    "Would you like me to book it? I can.",
    "Here is what I will do:",
    "Once you confirm, I will send the report Kestrel tomorrow.",
    "Once I have your user ID, I'll proceed with the booking.",
    "Sobald Sie zustimmen, schicke ich den Bericht Kestrel.",
    "I read the module and noted what it does.",
]


def selected_texts(*said: str) -> list[str]:
    return [str(each) for each in select_standing(find_all(*said), lambda _, __: True).cited]


def find_all(*said: str):
    return [(index, each) for index, text in enumerate(said) for each in find_instructions(text)]


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("text", RULES)
def test_a_rule_is_known_by_its_form_in_many_languages(text: str) -> None:
    (found,) = find_instructions(text)
    assert found.text == text
    assert found.rank in (RULE, REQUEST)


@pytest.mark.parametrize("text", CHATTED)
def test_a_rule_in_the_words_of_a_chat_is_more_than_a_request(text: str) -> None:
    (found,) = find_instructions(text)
    assert found.text == text
    assert found.rank in (RULE, FACT)


@pytest.mark.parametrize("text", [each for each in (*RULES, *CHATTED) if each.partition(" ")[0] not in ("No,", "And")])
def test_a_rule_is_taken_from_the_remarks_around_it(text: str) -> None:
    around = (
        "The second run got further than the first one. {} Thanks a lot for the help with the parser.\n\n```\n{}\n```"
    )
    assert [each.text for each in find_instructions(around.format(text, "2026-01-02 job 17 did not start"))] == [text]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Look at the importer. Never touch it again.", ["Look at the importer. Never touch it again."]),
        ("The cap is 10. Thanks a lot.", ["The cap is 10."]),
        ("Never deploy on Fridays. The build is green. Never push.", ["Never deploy on Fridays.", "Never push."]),
        ("Use tabs. Please look at it. The cap is $10.", ["Use tabs. Please look at it.", "The cap is $10."]),
        ("Our contact is Ms. Okafor. She is nice.", ["Our contact is Ms. Okafor."]),
        ("Vor dem 24. April geht nichts live.", ["Vor dem 24. April geht nichts live."]),
        ("数据库是 Postgres。不要修改它。", ["数据库是 Postgres。不要修改它。"]),
    ],
)
def test_a_sentence_stands_alone_unless_it_refers_to_the_one_before_it(line: str, expected: list[str]) -> None:
    assert [each.text for each in find_instructions(line)] == expected


def test_a_heading_before_a_statement_is_not_its_subject() -> None:
    said = ["我看到的是这样: 费用最多 900 欧元。", "我看到的是这样: 任务 12 失败了。"]
    assert selected_texts(*said) == [f"[{index}] {text}" for index, text in enumerate(said)]


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("Never write to the production database.", RULE),
        ("Wir haben entschieden: Für die Exporte nehmen wir Kato.", RULE),
        ("From now on, answer in metric units.", RULE),
        ("Our customer number is KD-48213.", FACT),
        ("User wants answers in the style Kato, with metric units.", RULE),
        ("The release goes out under the name Kato.", FACT),
        ("The project is called Kato now.", FACT),
        ("Please sign mails to the board with Kato.", FACT),
        ("The next step is the regression test.", FACT),
        ("Please cancel the reservation XEHM4B.", REQUEST),
        ("Yes, please go ahead with the flight HAT136.", REQUEST),
        ("Put every timestamp in local time.", RULE),
        ("Spend up to 300 euros on it.", RULE),
        ("Gib die Datei nicht an den Lieferanten.", RULE),
        ("N'envoie pas le fichier au fournisseur.", RULE),
        ("No compartas la clave con nadie.", RULE),
        ("Не отправляй файл поставщику.", RULE),
        ("Can you change the flight on May 21?", REQUEST),
    ],
)
def test_lasting_instructions_rank_above_momentary_requests(text: str, rank: int) -> None:
    assert [each.rank for each in find_instructions(text)] == [rank]


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_sentence_with_particulars_ranks_below_a_rule(text: str) -> None:
    (found,) = find_instructions(text)
    assert found.text == text
    assert found.rank in (FACT, STATEMENT)


@pytest.mark.parametrize("text", REMARKS)
def test_a_remark_is_no_instruction(text: str) -> None:
    assert find_instructions(text) == ()


@pytest.mark.parametrize("text", PROMISES)
def test_a_promise_is_known_by_its_form_in_many_languages(text: str) -> None:
    (found,) = find_promises(f"Fine, thanks.\n{text}")
    assert (found.text, found.is_promise, found.rank) == (text, True, FACT)


@pytest.mark.parametrize("text", OFFERS)
def test_an_offer_or_a_report_is_no_promise(text: str) -> None:
    assert find_promises(text) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Rules for this repo:\n- tabs in Makefiles\n- UK spelling\n\nThanks.",
            ["- tabs in Makefiles", "- UK spelling"],
        ),
        ("规则:\n1. 名称使用英文\n2. 一行八十个字符", ["1. 名称使用英文", "2. 一行八十个字符"]),
        ("[Image #1] Never use red in the charts.", ["Never use red in the charts."]),
        ("| Area | Rule |\n|---|---|\n| Git | Never push to main |\n| Lint | 17 |", ["Never push to main"]),
        ("ルール:\n・絵文字は使わない\n・敬語で書く", ["・絵文字は使わない", "・敬語で書く"]),
        ("Coding style: 4 spaces, no tabs.", ["Coding style: 4 spaces, no tabs."]),
        ("Follow what Ana wrote:\n\n> Never send it before May.\n> It is late.", ["Never send it before May."]),
        ("| Bug | Mend |\n|---|---|\n| `!=` fails | Use `not` instead of `!=` |", []),
    ],
)
def test_rules_stand_in_lists_and_tables_and_behind_notes(text: str, expected: list[str]) -> None:
    assert [each.text for each in find_instructions(text) if each.is_rule] == expected


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("From now on, answer in French only.", "From now on, answer in French only."),
        ("<reminder>\nNever mention this to the user.\n</reminder>", "Never mention this to the user."),
        ("Ne modifie plus aucun fichier.", "Ne modifie plus aucun fichier."),
        ("今後は日本語で回答してください。", "今後は日本語で回答してください。"),
        ("The plan mode is on.", ""),
    ],
)
def test_the_lasting_orders_of_a_system_message_are_rules(text: str, rule: str) -> None:
    assert [each.text for each in find_system_rules(text)] == [rule] * bool(rule)


def test_a_promise_and_an_instruction_do_not_replace_each_other() -> None:
    said = [(0, *find_instructions("The report goes to Ana.")), (1, *find_promises("The report will be mailed to Bo."))]
    standing = select_standing(said, lambda _, __: True)
    assert [each.index for each in standing.cited] == [0]
    assert [each.index for each in standing.promises] == [1]
    assert [each.index for each in standing.in_order()] == [0, 1]


def test_code_and_the_middle_of_a_long_paste_are_not_read() -> None:
    code = "```\nnever do this\nif not ready: return\n```\nif not ready: return\n    do not run this line, it is code\n"
    assert find_instructions(code) == ()
    paste = "\n".join(["Never deploy on Fridays.", *(f"2026-01-02 job {at} did not start" for at in range(90))])
    assert find_instructions(paste)[0].text == "Never deploy on Fridays."
    assert len(find_instructions(paste)) < 30


def test_a_later_value_replaces_the_earlier_one() -> None:
    said = ["The budget cap is $300 in total.", "Fine.", "The budget cap is $750 in total."]
    assert selected_texts(*said) == ["[2] The budget cap is $750 in total. (replaces [0])"]
    assert selected_texts("The owner of the release is Ana.", "The owner of the release is Bo.") == [
        "[1] The owner of the release is Bo. (replaces [0])"
    ]


def test_a_statement_of_several_sentences_is_replaced_if_each_comes_again() -> None:
    old, new = (f"The budget cap is ${cap} in total. Never exceed it without approval." for cap in (300, 750))
    assert selected_texts(old, new) == [f"[1] {new} (replaces [0])"]
    other = "The budget cap is $750 in total. Always ask Ana."
    assert selected_texts(old, other) == [
        f"[0] {old}",
        f"[1] {other} (newer than [0])",
    ]


def test_a_value_that_is_stated_again_corrects_nothing() -> None:
    said = ["Sure! My reservation is HXDUBJ, but I forgot my user name.", "Of course. My reservation is HXDUBJ."]
    (found,) = select_standing(find_all(*said), lambda index, _: index > 0).cited
    assert str(found) == "[1] My reservation is HXDUBJ."
    assert found.priority == found.instruction.rank


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (
            "I want to book a flight to Oslo.",
            "Now, I only want to book a hotel near the flight to Oslo.",
        ),
        ("I want to cancel the flight to Oslo.", "I want to cancel it due to a change of plan: my flight to Oslo."),
        ("My user name is mia_3668.", "My user name is mia_3668, and I have no number with me right now."),
        (
            "Hi, I'd like to cancel my upcoming flight on May 22 from JFK to MCO, please.",
            "Hi, I need to cancel my upcoming flight from JFK to MCO on May 22nd.",
        ),
    ],
)
def test_what_only_goes_on_or_is_stated_again_marks_nothing_as_older(earlier: str, later: str) -> None:
    assert selected_texts(earlier, later) == [f"[0] {earlier}", f"[1] {later}"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("Use tabs in Makefiles.", "From now on use spaces in Makefiles instead."),
        ("Use tabs in Makefiles.", "Forget the rule about tabs in Makefiles."),
        ("Never push to main.", "Okay, you may push to main again."),
        ("Never deploy on Fridays.", "Deploying on Fridays is fine now."),
        ("Answer in German.", "Answer in English from now on."),
        ("I prefer tables.", "I prefer bullet lists instead of tables."),
        ("Antworte auf Deutsch.", "Antworte ab jetzt auf Englisch."),
        ("预算是 300 元。", "预算改为 420 元。"),
    ],
)
def test_a_rule_that_takes_an_earlier_one_back_says_so(earlier: str, later: str) -> None:
    assert selected_texts(earlier, later)[-1] == f"[1] {later} (newer than [0])"


def test_changes_come_before_shorter_facts_where_room_is_scarce() -> None:
    said = ["The meeting is on Monday at 9.", "The meeting about the parser got moved to Tuesday at 10."]
    cited = select_standing(find_all(*said), lambda _, __: True).cited
    text, _ = render_instructions(cited, 25, words)
    assert said[1] in text
    assert said[0] not in text


def test_rules_about_different_things_both_stand() -> None:
    said = ["Never run tool KESTREL without the safe word.", "Never run tool OSPREY without the safe word."]
    assert selected_texts(*said) == [f"[{at}] {text}" for at, text in enumerate(said)]


def test_in_doubt_both_instructions_stay_and_the_newer_is_marked() -> None:
    said = ["Use Postgres for the order service.", "Use MySQL for the order service instead."]
    assert selected_texts(*said) == [f"[0] {said[0]}", f"[1] {said[1]} (newer than [0])"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("The owner of the release is Ana.", "Correction: the owner of the release is Bo."),
        ("Das Budget darf 400 Euro nicht übersteigen.", "Das Budget darf 700 Euro nicht übersteigen."),
        ("Le nom de la version est Kato.", "En fait, le nom de la version est Baru."),
        ("El nombre de la versión es Kato.", "No, el nombre de la versión es Baru."),
        ("这个版本的名称是 Kato。", "不对,这个版本的名称是 Baru。"),
        ("Gasta como máximo 300 euros en copias.", "Gasta como máximo 450 euros en copias."),
    ],
)
def test_a_later_value_replaces_the_earlier_one_in_many_languages(earlier: str, later: str) -> None:
    assert selected_texts(earlier, later) == [f"[1] {later} (replaces [0])"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("The release goes out under the name Lutago.", "The release goes out under the name Kewufi."),
        ("The database is Postgres.", "The database is slow this week, so please look into it before you go on."),
        ("Nimm für die Sicherung den Dienst Kato.", "Nimm für die Sicherung stattdessen den Dienst Baru."),
        ("Utilise le service Kato pour la sauvegarde.", "Utilise plutôt le service Baru pour la sauvegarde."),
        ("Usa el servicio Kato para la copia.", "Usa mejor el servicio Baru para la copia."),
        ("数据库服务使用 Postgres。", "数据库服务改为使用 MySQL。"),
    ],
)
def test_what_may_be_contradicted_stands_with_the_newer_one_marked(earlier: str, later: str) -> None:
    assert selected_texts(earlier, later) == [f"[0] {earlier}", f"[1] {later} (newer than [0])"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Do not delete the file of customer 4711.", "Do not delete the file of customer 4712."),
        ("Server 3 must answer within 200 ms.", "Server 4 must answer within 200 ms."),
        ("In May the cap is 300 euros.", "In June the cap is 300 euros."),
    ],
)
def test_a_rule_for_something_else_replaces_nothing(one: str, other: str) -> None:
    assert [line.split(" (")[0] for line in selected_texts(one, other)] == [f"[0] {one}", f"[1] {other}"]


@pytest.mark.parametrize(
    "form",
    [
        "Never touch module number-{n} of the parser.",
        "Always ask before you open port {n} of the gateway.",
        "From now on use the template number-{n} for the order service instead.",
        "Spend at most {n} euros on the release.",
    ],
)
def test_thousands_of_alike_instructions_cost_no_comparison_of_each_with_each(form: str) -> None:
    said = find_all(*(form.format(n=number) for number in range(1, 4_001)))
    before = time.process_time()
    select_standing(said, lambda _, __: True)
    # Comparing each pair would take about 15 s.
    assert time.process_time() - before < 5


@pytest.mark.parametrize("part", [". A", "Dr. ", "am 12. ", ": ", "A", "A1-", "it is. ", "Use the b. ", "。", '"a '])
@pytest.mark.parametrize("find", [find_instructions, find_promises])
def test_a_long_line_takes_no_square_of_its_length(find: Callable[[str], object], part: str) -> None:
    line = part * (20_000 // len(part))
    before = time.process_time()
    find(line)
    assert time.process_time() - before < 5


def test_a_full_stop_after_an_abbreviation_ends_no_sentence() -> None:
    rule = "The report must go to Ms. Okafor and to Prof. Dr. Lindqvist by approx. noon."
    assert [instruction.text for instruction in find_instructions(rule)] == [rule]


def test_of_many_alike_instructions_a_change_finds_the_one_with_its_figure() -> None:
    said = [f"Never open port {number} of the gateway." for number in range(1_000, 1_500)]
    said += ["From now on you may open port 1007 of the gateway.", "Open port 1011 of the gateway."]
    *_, change, reversal = select_standing(find_all(*said), lambda _, __: True).cited
    assert 7 in change.newer_than
    assert 11 in reversal.newer_than
    limits = [f"Server {number} must answer within 200 ms." for number in range(1_000, 1_500)]
    assert "(replaces [7])" in selected_texts(*limits, "Server 1007 must answer within 300 ms.")[-1]


def test_of_many_alike_instructions_no_old_one_stands_without_the_newest() -> None:
    said = [f"Always send the report of the week to office number-{number}." for number in range(200)]
    found = select_standing(find_all(*said, *REMARKS), lambda _, __: True).cited
    for budget in range(20, 400, 20):
        _, listed = render_instructions(found, budget, words)
        assert listed == set(said[len(said) - len(listed) :])


def test_a_correction_of_what_stands_elsewhere_says_so_and_goes_first() -> None:
    said = ["Use Postgres for the order service.", "Use MySQL for the order service instead."]
    said += [f"Never touch module {name} of the parser." for name in "abcdefgh"]
    found = select_standing(find_all(*said), lambda index, _: index > 0).cited
    assert str(found[0]) == f"[1] {said[1]} (newer than [0])"
    text, listed = render_instructions(found, 40, words)
    assert listed >= {said[1]}
    assert len(listed) < len(found)
    assert text.startswith(f"## {TITLE}\n[1] {said[1]}")


def test_of_lasting_instructions_short_ones_come_first_and_of_requests_newer_ones() -> None:
    rules = [f"Never touch the module {'very ' * (9 - at % 10)}old-{at}." for at in range(30)]
    _, listed = render_instructions(select_standing(find_all(*rules), lambda _, __: True).cited, 60, words)
    assert listed
    assert max(map(len, listed)) <= min(len(each) for each in rules if each not in listed)
    requests = [f"Please look at the module number-{at} again." for at in range(30)]
    _, listed = render_instructions(select_standing(find_all(*requests), lambda _, __: True).cited, 60, words)
    assert listed == set(requests[-len(listed) :])


def test_an_old_value_never_stands_without_the_newer_one_however_short_it_is() -> None:
    said = ["Use Postgres for the order service.", "Use MySQL for the order service instead, at least until the move."]
    said += [f"Never touch module {name} of the parser." for name in "abcdefgh"]
    found = select_standing(find_all(*said), lambda _, __: True).cited
    for budget in range(10, 120):
        _, listed = render_instructions(found, budget, words)
        assert said[0] not in listed or said[1] in listed


def test_what_else_a_message_says_does_not_wait_for_the_newer_one() -> None:
    said = ["Never push the branch.\nUse Postgres for the order service."]
    said += ["Use MySQL for the order service instead, at least until the move, which nobody has planned yet."]
    found = select_standing(find_all(*said), lambda _, __: True).cited
    _, listed = render_instructions(found, 26, words)
    assert listed == {"Never push the branch."}


def test_an_instruction_contradicted_by_a_kept_message_is_marked_as_older() -> None:
    said = ["Use Postgres for the order service.", "Use MySQL for the order service instead."]
    assert [str(each) for each in select_standing(find_all(*said), lambda index, _: index == 0).cited] == [
        f"[0] {said[0]} (older than [1])"
    ]


def test_an_instruction_replaced_by_a_kept_message_is_not_listed() -> None:
    found = select_standing(find_all("The cap is 10.", "The cap is 20."), lambda index, _: index == 0)
    assert found.cited == ()
    assert [each.text for _, each in found.outdated] == ["The cap is 10."]


def test_a_rule_that_is_given_again_is_not_outdated() -> None:
    found = select_standing(find_all("The cap is 10.", "The cap is 20.", "The cap is 10."), lambda _, __: True)
    assert [str(each) for each in found.cited] == ["[2] The cap is 10. (replaces [1])"]
    assert [each.text for _, each in found.outdated] == ["The cap is 20."]


def test_instructions_of_a_summary_that_a_client_sends_back_are_read_as_they_were() -> None:
    said = ["Never deploy on Fridays.", "The cap is 10.", "Use Postgres for it.", "Use MySQL for it instead, please."]
    rules = select_standing(find_all(*said, "The cap is 20."), lambda _, __: True).cited
    (promise,) = find_promises("I will send the report Kestrel-7 tomorrow.")
    text, _ = render_instructions((*rules, CitedInstruction(5, promise)), 1_000, words)
    summary = render_block(
        render_label("conversation", 0, 4), text, "Goal: never stop [0]", "", ["[0-4] art_0, 9 tokens"]
    )
    again = find_instructions(f"Hello there.\n\n{summary}\n\nAlways answer in French.")
    assert [each.text for each in again if not each.is_promise] == [
        *(each.instruction.text for each in rules),
        "Always answer in French.",
    ]
    assert [each.text for each in again if each.is_promise] == [promise.text]


def test_an_instruction_is_listed_once_and_not_if_it_is_visible_anyway() -> None:
    said = ["Never deploy on Fridays.", "Never deploy on Fridays.", "Always run the linter."]
    assert selected_texts(*said) == ["[1] Never deploy on Fridays.", "[2] Always run the linter."]
    listed = select_standing(find_all(*said), lambda _, text: text != "Always run the linter.").cited
    assert [each.index for each in listed] == [1]


def test_one_line_counts_omitted_instructions_and_names_their_messages() -> None:
    said = [f"Never touch module {name} of the parser." for name in "abcdefghijklmnop"]
    found = select_standing(find_all(*said), lambda _, __: True).cited
    text, listed = render_instructions(found, 80, words)
    lines, left = text.split("\n"), len(found) - len(listed)
    assert lines[0] == f"## {TITLE}"
    assert lines[-1] == f"({left} more left out, from [0-{left - 1}].)"
    assert 0 < len(listed) == len(lines) - 2 < len(found)
    assert words(text) <= 80
    text, listed = render_instructions(found, 16, words)
    assert text.split("\n")[1:] == ["(16 more left out, from [0-15].)"]
    assert not listed


said = st.lists(st.sampled_from([*RULES, *STATEMENTS, *REMARKS, "The cap is 1.", "The cap is 22."]), max_size=12)


@given(said, st.integers(0, 200))
def test_what_is_listed_fits_stands_verbatim_and_in_the_order_of_the_messages(said: list[str], budget: int) -> None:
    found = select_standing(find_all(*said), lambda _, __: True).cited
    text, listed = render_instructions(found, budget, words)
    assert words(text) <= budget
    assert all(any(each in one for one in said) for each in listed)
    shown = [line for line in text.split("\n")[1:] if line.startswith("[")]
    for section in text.split("## "):
        indexes = [int(line[1 : line.index("]")]) for line in section.split("\n")[1:] if line.startswith("[")]
        assert indexes == sorted(indexes)
    assert len(shown) == len(listed)
    # Of two values only the newer one stands.
    assert not {"The cap is 1.", "The cap is 22."} <= listed


# -- rules and talk ----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "I prefer paper maps like the one of Lisbon, can you help me to find one?",
        "Could you please never commit without asking me?",
        "We'd rather keep the meetings short.",
        "Load only the first twenty rows.",
        "The links should look like the headings.",
        "If a build fails, wait for me.",
        "Answer in complete sentences.",
        "let's stick with the old parser for now",
        "I don't want any extra baggage.",
        "no, the border should stay thin",
        "You MUST name the branch in each commit.",
        "For each refund, please use the original card.",
        "We've decided to ship on Monday.",
    ],
)
def test_a_sentence_with_a_clause_that_governs_what_is_done_is_a_rule(text: str) -> None:
    assert [each.rank for each in find_instructions(text)] == [RULE]


@pytest.mark.parametrize(
    "text",
    [
        "That must have been a wonderful evening!",
        "Must be so nice to live near the sea.",
        "You must be proud of the garden.",
        "It always makes me smile.",
        "My brother is great, he never complains.",
        "Never had so much fun before.",
        "Don't give up, it gets easier.",
        "Keep it up, Nora!",
        "Let's keep making memories.",
        "Nice work, Nora!",
        "Bye Nora!",
        "Thanks, Nora.",
        "I totally agree, Nora.",
        "I can only imagine how that felt.",
        "No worries, Nora.",
        "Take care of yourself, Nora.",
        "The cache should work now, right?",
        "Should the parser skip empty lines, or is that a bug?",
        "I wonder why the report should be late.",
    ],
)
def test_guesses_reports_encouragement_and_farewells_are_not_listed(text: str) -> None:
    assert [each.text for each in find_instructions(text) if each.is_listed] == []


def test_a_long_sentence_is_listed_by_the_clause_that_is_a_rule() -> None:
    rule = "but from now on the invoices must go to the office in Porto"
    story = "We looked at the invoices for a long time and found that nobody had read the ones of the last two years, "
    more = "; the rest of what we found is in the report that the two of us wrote in the train on the way back home"
    assert len(story + rule + more) > 240
    assert rule in [each.text for each in find_instructions(f"{story}{rule}{more}.") if each.rank == RULE]


def test_a_sentence_is_joined_with_the_one_before_it_only_if_it_needs_that() -> None:
    assert [each.text for each in find_instructions("Here is the importer. Never touch it again.")] == [
        "Here is the importer. Never touch it again."
    ]
    assert [each.text for each in find_instructions("What a day! Never touch it again.")] == ["Never touch it again."]


FACTS = [
    "The capital of Norland is Ostby.",
    "Ana Keller was born in the city of Porto.",
    "Ana Keller is a citizen of Norland.",
    "Bo Moser plays the sport of tennis.",
    "The author of Kestrel is Ana Keller.",
]


def listed(*facts: str) -> str:
    return "These are facts:\n" + "\n".join(f"{number}. {fact}" for number, fact in enumerate(facts))


def test_lists_of_facts_are_kept_as_state() -> None:
    corrected = ["The capital of Norland is New Elby.", "Ana Keller was born in the city of Lyon.", *FACTS[2:]]
    found = select_standing(find_all(listed(*FACTS), listed(*corrected)), lambda _, __: True)
    text, _ = render_instructions(found.cited, 200, words)
    assert text.splitlines() == [
        "## Facts and requests from the user",
        "[1] Ana Keller is a citizen of Norland; Ana Keller was born in the city of Lyon; Bo Moser plays the sport of "
        "tennis; The author of Kestrel is Ana Keller; The capital of Norland is New Elby",
    ]
    assert {each.text for _, each in found.outdated} == {"The capital of Norland is Ostby", FACTS[1].rstrip(".")}
    summary = render_block(render_label("conversation", 0, 1), text, "", "", ["[0-1] art_0, 9 tokens"])
    assert {each.text for each in find_instructions(summary)} == {each.rstrip(".") for each in corrected}


def test_lists_of_code_and_short_lists_are_no_facts() -> None:
    assert not any(each.is_item for each in find_instructions(listed(*FACTS[:4])))
    code = [f"The function load_{name}() is in `app/{name}.py`." for name in "abcdefg"]
    assert not any(each.is_item for each in find_instructions(listed(*code)))


def test_facts_and_requests_have_only_the_room_that_is_given_to_them() -> None:
    said = [*(f"Our contact in town {name} is Ms. Okafor-{name}." for name in "ABCDEFGHIJ"), "Never deploy on Fridays."]
    found = select_standing(find_all(*said), lambda _, __: True).cited
    text, texts = render_instructions(found, 200, words, other_budget=40)
    assert said[-1] in texts
    assert 0 < len(texts) - 1 < 5
    assert text.index("Never deploy") < text.index("Our contact") < text.index(" more left out, from [")
