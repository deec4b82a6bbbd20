"""Users' rules survive one compaction after another, through the whole product."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from accordion.config import Settings
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.errors import SummaryFailed
from accordion.model.http import Inbound
from accordion.summaries.author import Summary, SummaryAuthor
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.instructions import TITLE
from accordion.summaries.prompts import load_prompts
from tests.fakes import FakeTasks
from tests.summary_samples import FakeSummarizer, line, message, sources, task
from tests.tiers import examples

SUBJECTS = {
    "en": ("release", "database", "report", "invoice", "backup", "gateway", "parser", "customer"),
    "de": ("Ausgabe", "Datenbank", "Bericht", "Rechnung", "Sicherung", "Zugang", "Umzug", "Kundschaft"),
    "fr": ("version", "base", "rapport", "facture", "sauvegarde", "passerelle", "analyse", "client"),
    "es": ("entrega", "datos", "informe", "factura", "copia", "puerta", "lector", "cuenta"),
    "zh": ("版本", "数据库", "报告", "发票", "备份", "网关", "解析器", "客户"),
}
STATED = {
    "en": (
        ("The name of the {s} is {v}.", "No, the name of the {s} is {v}."),
        ("Use {v} for the {s} service.", "Use {v} for the {s} service instead."),
        ("Spend at most {n} euros on the {s}.", "Spend at most {n} euros on the {s}."),
        ("The {s} must go out under the name {v}.", "From now on the {s} must go out under the name {v}."),
    ),
    "de": (
        ("Der Name für {s} ist {v}.", "Nein, der Name für {s} ist {v}."),
        ("Gib höchstens {n} Euro für {s} aus.", "Gib höchstens {n} Euro für {s} aus."),
        ("Nimm für {s} immer {v} als Dienst.", "Nimm für {s} stattdessen {v} als Dienst."),
    ),
    "fr": (
        ("Le nom du {s} est {v}.", "En fait, le nom du {s} est {v}."),
        ("Dépense au plus {n} euros pour {s}.", "Dépense au plus {n} euros pour {s}."),
        ("Utilise toujours {v} comme service {s}.", "Utilise plutôt {v} comme service {s}."),
    ),
    "es": (
        ("El nombre de {s} es {v}.", "No, el nombre de {s} es {v}."),
        ("Gasta como máximo {n} euros en {s}.", "Gasta como máximo {n} euros en {s}."),
        ("Usa siempre {v} como servicio {s}.", "Usa mejor {v} como servicio {s}."),
    ),
    "zh": (
        ("{s} 的名称是 {v}。", "不对,{s} 的名称是 {v}。"),
        ("{s} 的费用不得超过 {n} 欧元。", "{s} 的费用不得超过 {n} 欧元。"),
        ("{s} 服务必须使用 {v}。", "{s} 服务改为使用 {v}。"),
    ),
}
FORMS = [(language, number) for language, forms in STATED.items() for number in range(len(forms))]
ARTIFACT = re.compile(r"art_[0-9a-f]{12}")


@dataclass
class RuleHistory:
    """The messages so far, and the values of each subject, the newest last."""

    chance: random.Random
    messages: list[dict[str, Any]] = field(default_factory=list)
    values: dict[tuple[str, str, int], list[str]] = field(default_factory=dict)

    def say(self, text: str) -> None:
        answer = f"I read that part of the module and noted what it does; number {self.chance.randrange(10**6)}."
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def remark(self, turns: int) -> None:
        for _ in range(turns):
            self.say("Looking at the importer again this morning.")

    def rule(self, at: int, form: tuple[str, int]) -> None:
        language, number = form
        subject = SUBJECTS[language][at]
        values = self.values.setdefault((subject, *form), [])
        # No value is a part of another one.
        letters = "".join(self.chance.choice("bcdfgklmnprst") + self.chance.choice("aeiou") for _ in range(4))
        figure = str(10**5 + self.chance.randrange(9 * 10**5))
        text = STATED[language][number][bool(values)]
        values.append(figure if "{n}" in text else letters.capitalize())
        self.say(text.format(s=subject, v=values[-1], n=values[-1]))


async def forward(
    pipeline: OfflinePipeline, messages: list[dict[str, Any]], *newest: dict[str, Any], asked: bool = False
) -> str:
    newest = newest or ({"role": "user", "content": "Please go on."},)
    body = json.dumps({"model": "measured", "messages": [*messages, *newest]})
    headers = ((b"content-type", b"application/json"), (b"x-accordion-session", b"what-users-ruled"))
    headers += ((b"x-accordion-compact", b"now"),) if asked else ()
    prepared = await pipeline.process(
        Inbound("POST", "/v1/chat/completions", "", headers, body.encode(), "1"), pipeline.caller
    )
    return json.dumps(json.loads(prepared.rewritten_body or body)["messages"], ensure_ascii=False)


def instruction_texts(history: RuleHistory, *values: str) -> list[str]:
    return [m["content"] for m in history.messages if any(value in m["content"] for value in values)]


async def check(pipeline: OfflinePipeline, history: RuleHistory) -> None:
    text = await forward(pipeline, history.messages)
    archived = ""
    for values in history.values.values():
        *old, live = values
        if live in text:
            continue
        assert not any(each in text for each in old), (
            f"an old one stands alone: {instruction_texts(history, *values)} in {text}"
        )
        assert " more left out, from [" in text, (
            f"{live} is neither listed nor named: {instruction_texts(history, live)} in {text}"
        )
        if not archived:
            named = ARTIFACT.findall(text[text.index(" more left out, from [") :])
            archived = "\n".join([await pipeline.text_of(each, pipeline.caller) or "" for each in dict.fromkeys(named)])
        assert live in archived, f"{live} cannot be read"


statements = st.tuples(st.integers(0, 7), st.sampled_from(FORMS))


Rounds = list[list[tuple[int, tuple[str, int]]]]


@given(st.integers(0, 10**6), st.lists(st.lists(statements, max_size=14), min_size=5, max_size=5), st.booleans(),
       st.sampled_from([1_500, 2_500, 4_000]))  # fmt: skip
@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_a_rule_is_listed_or_named_and_an_old_value_is_never_alone(
    seed: int, rounds: Rounds, in_opening: bool, window: int
) -> None:
    asyncio.run(five_compactions(RuleHistory(random.Random(seed)), rounds, in_opening, window))


async def five_compactions(history: RuleHistory, rounds: Rounds, in_opening: bool, window: int) -> None:
    rooms = OfflinePipeline(Settings(), window)
    try:
        if in_opening and rounds[-1]:
            history.rule(*rounds[-1][0])
        for stated in rounds:
            for subject, form in stated:
                history.remark(1)
                history.rule(subject, form)
            history.remark(window // 60)
            await check(rooms, history)
    finally:
        await rooms.close()


async def test_rules_have_room_beside_a_result_that_fills_the_window() -> None:
    rooms = OfflinePipeline(Settings(), 4_000)
    try:
        policy = "\n".join(f"Section {at}: an agent takes care of part {at} of the trip." for at in range(70))
        ruled = RuleHistory(random.Random(3), [{"role": "system", "content": policy}])
        ruled.remark(1)
        for subject in range(8):
            for form in (("en", 0), ("en", 1), ("fr", 0)):
                ruled.rule(subject, form)
                ruled.remark(1)
        ruled.remark(60)
        flights = "\n".join(f"flight {at} leaves at {at % 24}:15 and costs {at * 7 % 500} dollars" for at in range(400))
        newest = [{"role": "user", "content": "Look for a flight."}, *calls("search", to="SEA")]
        newest[-1]["content"] = flights
        text = await forward(rooms, ruled.messages, *newest)
        assert "characters are left out here" in text
        assert [value for value in ruled.values.values() if value[-1] not in text] == []
    finally:
        await rooms.close()


OPENED = "[Excerpts from this conversation's archive"
FORBIDDEN = "Never run the job Kestrel on production."


async def many_rules(rooms: OfflinePipeline) -> RuleHistory:
    """A conversation whose first rule has no place in the window, after its compaction."""
    ruled = RuleHistory(random.Random(1))
    ruled.remark(2)
    ruled.say(FORBIDDEN)
    for at in range(300):
        ruled.say(f"Never touch module number-{at}.")
    assert FORBIDDEN not in await forward(rooms, ruled.messages)
    ruled.messages.append({"role": "user", "content": "Please go on."})
    ruled.messages.append({"role": "assistant", "content": "I looked at the next part."})
    return ruled


def calls(name: str, /, **arguments: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "The job has 3 steps."},
    ]


@pytest.mark.parametrize(
    ("newest", "comes"),
    [
        ([{"role": "user", "content": "Now run that job on production."}], True),
        ([{"role": "user", "content": "Bitte starte jetzt Kestrel."}], True),
        ([{"role": "user", "content": "Have a look."}, *calls("describe_job", name="Kestrel")], True),
        ([{"role": "user", "content": "Have a look."}, *calls("run", job="all", target="production")], True),
        ([{"role": "user", "content": "Which tests did you look at?"}], False),
        ([{"role": "user", "content": "Have a look."}, *calls("list_files", path="docs")], False),
    ],
)
async def test_a_rule_without_a_place_comes_back_when_the_turn_speaks_of_it(
    newest: list[dict[str, Any]], comes: bool
) -> None:
    rooms = OfflinePipeline(Settings(), 4_000)
    try:
        ruled = await many_rules(rooms)
        text = await forward(rooms, ruled.messages, *newest)
        assert (FORBIDDEN in text) == comes
        if comes:
            assert re.search(rf"{re.escape(OPENED)}.*> \[4\] standing instruction from the user: {FORBIDDEN}", text)
            # It stays, and does not come twice.
            again = await forward(rooms, [*ruled.messages, *newest], {"role": "assistant", "content": "Done."}, *newest)
            assert again.count(FORBIDDEN) == 1
    finally:
        await rooms.close()


# What people state in passing, with the value that must be left, and what the assistant promises.
CHATTED = {
    "en": (
        ("btw the tables starting with crm_ belong to another team, hands off those.", "crm_"),
        ("Nobody restarts the Halvorsen box without asking me first, got it?", "Halvorsen"),
        ("We've got 42 requests a minute on the Tavarin API, so keep it below that.", "Tavarin"),
        ("Oops, I gave you the wrong room, it's Ravel 3.", "Ravel"),
        ("I'm sending the diff for the Sorrel parser tonight.", "Sorrel"),
    ),
    "de": (
        ("Ach ja, am Ordner legacy_fibu wird bitte nichts angefasst.", "legacy_fibu"),
        ("Finger weg vom Server Hagedorn, da läuft die Inventur.", "Hagedorn"),
        ("Mehr als 350 Euro im Monat will Frau Tressel dafür nicht zahlen.", "Tressel"),
        ("Ich hab mich vertan, die Abnahme macht Frau Okonjo.", "Okonjo"),
        ("Den Diff für den Parser Sauerampfer schicke ich heute Abend.", "Sauerampfer"),
    ),
    "fr": (
        ("Au fait, on ne touche pas aux tables paie_, c'est un autre service.", "paie_"),
        ("Que personne ne pousse sur la branche quai-7 avant vendredi.", "quai-7"),
        ("Le client nous laisse 1200 appels par heure sur l'API Corvin, pas un de plus.", "Corvin"),
        ("Je me suis trompé tout à l'heure, le serveur de recette c'est recette-b.", "recette-b"),
        ("Je vous envoie le diff du parseur Oseille ce soir.", "Oseille"),
    ),
    "es": (
        ("Por cierto, las carpetas de nomina_2019 ni tocarlas.", "nomina_2019"),
        ("Que nadie toque el bucket Villarrica hasta que nos contesten.", "Villarrica"),
        ("Me gusta más que los informes vayan en formato Encina.", "Encina"),
        ("Perdona, me equivoqué antes: la sala es la Ravel.", "Ravel"),
        ("Esta noche os mando el diff del analizador Acedera.", "Acedera"),
    ),
    "zh": (
        ("对了,salary_ 开头的表是人事部的,别动。", "salary_"),
        ("海鹰那台服务器谁都别碰,正在盘点。", "海鹰"),
        ("我更喜欢日期写成 ISO 格式。", "ISO"),
        ("刚才说错了,发票寄到苏州办公室。", "苏州"),
        ("今晚我把酸模解析器的 diff 发给你。", "酸模"),
    ),
}
CHAT = {
    "en": ("The second run got further than the first one.", "That part reads fine now, thanks a lot."),
    "de": ("Der zweite Lauf kam weiter als der erste.", "Der Worker hängt immer noch ab und zu."),
    "fr": ("Le deuxième essai est allé plus loin.", "Il bloque toujours de temps en temps."),
    "es": ("La segunda vez llegó más lejos que la primera.", "Esto es lo que veo yo en el registro."),
    "zh": ("第二次跑得比第一次远。", "这一段现在读起来不错,谢谢。"),
}
PASTED = (
    "```\n2026-03-11 09:14:02 WARN connection 7 recycled\n2026-03-11 09:14:02 ERROR job 88213 did not finish\n```",
    "```python\ndef load(path):\n    # never called twice\n    return json.loads(open(path).read())\n```",
)


@pytest.mark.parametrize("language", CHATTED)
async def test_rules_in_the_words_of_a_chat_survive_five_compactions(language: str) -> None:
    pipeline, history = OfflinePipeline(Settings(), 4_000), RuleHistory(random.Random(language))
    try:
        history.remark(1)
        *ruled, promised = CHATTED[language]
        for text, _ in ruled:
            before, after = CHAT[language]
            history.say(f"{before} {text} {after}\n\n{history.chance.choice(PASTED)}")
        history.say(CHAT[language][0])
        history.messages[-1]["content"] += f" {promised[0]}"
        for _ in range(5):
            for _ in range(60):
                history.say(f"{history.chance.choice(CHAT[language])}\n\n{history.chance.choice(PASTED)}")
            text = await forward(pipeline, history.messages)
        assert "[Record of message" in text
        assert [each for each in CHATTED[language] if each[1] not in text] == []
    finally:
        await pipeline.close()


# Rules of unlike subjects, so that none replaces another one.
LASTING = (
    "Never restart the Halvorsen machine without asking me.",
    "I prefer metric units in every report.",
    "Answer in at most three sentences.",
    "Use tabs, not spaces, in Makefiles.",
    "The invoices must go to Ms. Okafor.",
    "Bitte ändere niemals das Passwort von Tressel.",
    "Nimm für Karten immer den Dienst Sorrel.",
    "Ne touche jamais au dossier archive.",
    "Signe toujours les lettres avec Corvin.",
    "Nunca envíes correos a Villarrica.",
    "不要修改数据库的结构。",
    "绝对禁止重启海鹰服务器。",
)
WAYS = ("asked for", "automatic", "mid-generation", "adopted")
"""How a history is compacted: a client asks for it; it fills the window; calls fill it; the client takes the list that
was sent as its history."""


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 3)), min_size=3, max_size=7),
)
@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_the_same_rules_stand_in_order_after_any_compactions(seed: int, steps: list[tuple[str, int]]) -> None:
    asyncio.run(compact_in_any_way(RuleHistory(random.Random(seed)), steps))


async def compact_in_any_way(history: RuleHistory, steps: list[tuple[str, int]], window: int = 8_000) -> None:
    pipeline, stated = OfflinePipeline(Settings(), window), list[str]()
    rules = history.chance.sample(LASTING, len(LASTING))
    try:
        history.remark(2)
        for way, count in steps:
            for _ in range(min(count, len(rules))):
                stated.append(rules.pop())
                history.say(f"The second run got further than the first one. {stated[-1]}")
                history.remark(2)
            newest: list[dict[str, Any]] = [{"role": "user", "content": "Please go on."}]
            if way in {"automatic", "adopted"}:
                history.remark(window // 40)
            if way == "mid-generation":
                newest += [{**each} for _ in range(4) for each in calls("read", path=f"f{history.chance.random()}.py")]
                for at, each in enumerate(newest[1:]):
                    if each["role"] == "tool":
                        each["content"] = "\n".join(f"line {line} of part {at}" for line in range(window // 20))
            text = await forward(pipeline, history.messages, *newest, asked=way == "asked for")
            places = [text.find(json.dumps(rule, ensure_ascii=False)[1:-1]) for rule in stated]
            assert -1 not in places, f"{stated[places.index(-1)]} is gone after {way} in {text}"
            assert places == sorted(places), f"the rules changed their order in {text}"
            if way == "adopted":
                history.messages = json.loads(text)[:-1]
    finally:
        await pipeline.close()


WRITERS = ("extractive", "brief model", "wordy model", "failing model")


@given(st.integers(0, 10**6), st.lists(st.tuples(st.sampled_from(WRITERS), st.integers(0, 4)), min_size=2, max_size=6))
@settings(max_examples=examples(50), deadline=None)
def test_every_writer_lists_the_same_rules_in_order(seed: int, rounds: list[tuple[str, int]]) -> None:
    asyncio.run(write_by_turns(random.Random(seed), rounds))


async def write_by_turns(chance: random.Random, rounds: list[tuple[str, int]]) -> None:
    said, stated, summary = [message("user", "Look at the importer.")], list[str](), Summary("")
    rules = chance.sample(LASTING, len(LASTING))
    extractor = ExtractiveWriter()
    for writer, count in rounds:
        for _ in range(min(count, len(rules))):
            stated.append(rules.pop())
            said += [
                message("user", f"The run got further. {stated[-1]}"),
                message("assistant", "I read the next part."),
            ]
        said += [
            message("user", f"Part {chance.random()} reads fine."),
            message("assistant", "The importer has a loop."),
        ]
        given_task = task(
            sources=sources(said),
            budget=700,
            prior_narrative=summary.narrative,
            prior_until=summary.narrative_end,
        )
        author = SummaryAuthor(
            FakeSummarizer([model_answer(writer, len(said) - 1)]), extractor, FakeTasks(), load_prompts()
        )
        try:
            summary = author.write_extractive(given_task) if writer == "extractive" else await author.write(given_task)
        except SummaryFailed:
            summary = author.write_extractive(given_task)
        section = summary.text.partition(f"## {TITLE}\n")[2].partition("\n## ")[0].partition("\n\n")[0]
        assert [re.sub(r"^\[\d+\] ", "", each) for each in section.splitlines()] == stated


def model_answer(writer: str, newest: int) -> dict[str, Any] | SummaryFailed:
    """What a model answers: a few lines, many lines, or nothing."""
    if writer == "failing model":
        return SummaryFailed("the provider is down")
    lines = [line(f"The importer has a loop{' and another one' * at}", newest) for at in range(1, 25)]
    return {
        "overview": [line("The importer has a loop", newest)],
        "outcomes": {"discoveries": lines if writer == "wordy model" else lines[:2]},
        "continuation": {"state": [line("The next part was read", newest)]},
    }
