"""Conversations in five languages in which users state rules, limits, preferences, facts, decisions and corrections,
and assistants promise something. They are made, or planted in recorded runs of agents. In recorded chats, people also
say what they prefer and what has changed as they talk: in passing, and in front of a question.

Each statement holds a value that nobody can guess. A statement survives a compaction if its value stands in the list
that would be sent; a correction survives only if its old value does not stand there alone.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("rule", "limit", "preference", "fact", "decision", "promise", "correction", "correction of the opening")
_CORRECTED = ("correction", "correction of the opening")
LANGUAGES = ("English", "German", "French", "Spanish", "Chinese")

_STATED = {
    "English": {
        "rule": ("Never run the job {v} on production.", "Do not share the file {v} with the vendor."),
        "limit": ("Spend at most {n} euros on {v}.", "{v} must answer within {n} milliseconds."),
        "preference": ("I prefer the layout {v} for reports.", "Please sign mails to the board with {v}."),
        "fact": ("Our contact at the bank is Ms. {v}.", "The staging host is {v}.internal."),
        "correction": ("The release goes out under the name {v}.",),
        "decision": ("We decided to use {v} for the exports.",),
        "promise": ("I will send the report {v} tomorrow.",),
        "correction of the opening": (
            "Use the service {v} for the invoices.",
            "No, use the service {v} for the invoices instead.",
        ),
    },
    "German": {
        "rule": ("Starte den Job {v} niemals in Produktion.", "Gib die Datei {v} nicht an den Lieferanten."),
        "limit": ("Gib höchstens {n} Euro für {v} aus.", "{v} muss in {n} Millisekunden antworten."),
        "preference": ("Ich mag für Berichte lieber die Vorlage {v}.", "Bitte unterschreibe Briefe mit {v}."),
        "fact": ("Unsere Ansprechpartnerin bei der Bank ist Frau {v}.", "Der Testserver heißt {v}.internal."),
        "correction": ("Der Name der Ausgabe ist {v}.",),
        "decision": ("Wir haben entschieden: Für die Exporte nehmen wir {v}.",),
        "promise": ("Ich werde den Bericht {v} morgen schicken.",),
        "correction of the opening": (
            "Nimm für die Rechnungen den Dienst {v}.",
            "Nein, nimm für die Rechnungen stattdessen den Dienst {v}.",
        ),
    },
    "French": {
        "rule": (
            "Ne lance jamais la tâche {v} en production.",
            "Il ne faut pas envoyer le fichier {v} au fournisseur.",
        ),
        "limit": ("Dépense au plus {n} euros pour {v}.", "{v} doit répondre en {n} millisecondes."),
        "preference": ("Je préfère la mise en page {v} pour les rapports.", "Signe plutôt les lettres avec {v}."),
        "fact": ("Notre contact à la banque est Mme {v}.", "Le serveur de test est {v}.internal."),
        "correction": ("Le nom de la version est {v}.",),
        "decision": ("Nous avons décidé d'utiliser {v} pour les exports.",),
        "promise": ("Je vais envoyer le rapport {v} demain.",),
        "correction of the opening": (
            "Utilise le service {v} pour les factures.",
            "Non, utilise plutôt le service {v} pour les factures.",
        ),
    },
    "Spanish": {
        "rule": ("Nunca ejecutes la tarea {v} en producción.", "No envíes sin permiso el archivo {v} al proveedor."),
        "limit": ("Gasta como máximo {n} euros en {v}.", "{v} debe responder en {n} milisegundos."),
        "preference": ("Prefiero el formato {v} para los informes.", "Por favor, firma las cartas con {v}."),
        "fact": ("Nuestro contacto en el banco es la señora {v}.", "El servidor de pruebas es {v}.internal."),
        "correction": ("El nombre de la versión es {v}.",),
        "decision": ("Hemos decidido usar {v} para las exportaciones.",),
        "promise": ("Voy a enviar el informe {v} mañana.",),
        "correction of the opening": (
            "Usa el servicio {v} para las facturas.",
            "No, usa mejor el servicio {v} para las facturas.",
        ),
    },
    "Chinese": {
        "rule": ("不要在生产环境运行任务 {v}。", "禁止把文件 {v} 发给供应商。"),
        "limit": ("{v} 的费用不得超过 {n} 欧元。", "{v} 必须在 {n} 毫秒内响应。"),
        "preference": ("报告请使用 {v} 版式。", "给董事会的邮件请署名 {v}。"),
        "fact": ("银行的联系人是 {v} 女士。", "测试服务器是 {v}.internal。"),
        "correction": ("这个版本的名称是 {v}。",),
        "decision": ("我们决定导出时使用 {v}。",),
        "promise": ("我会明天发送报告 {v}。",),
        "correction of the opening": ("发票服务使用 {v}。", "不对,发票服务改为使用 {v}。"),
    },
}
# What people say in chats: first what they prefer, then what changes, before and after, each with what asks for it.
_PREFERRED = (
    ("I prefer working with {v} over spreadsheets because it syncs with my phone, can you help me plan the week?",
     "Which tool do I prefer for planning?"),
    ("I tend to learn better from worked examples in {v}, so could you explain compound interest that way?",
     "In which form do I learn better?"),
    ("Long explanations tire me, so I like answers as a {v} list. How do I start with budgeting?",
     "How do I like answers?"),
    ("I'm vegetarian and can't stand {v}, what could I cook for ten people?", "What food can I not stand?"),
    ("My preference is to meet at the {v} cafe rather than online, could you draft a message to Tom?",
     "Where do I prefer to meet?"),
    ("I've always gone for {v} paint on my models since it dries slowly, do you think it would work on wood?",
     "Which paint do I use on my models?"),
    ("When you recommend books, stick to the {v} series or things like it, what should I read next?",
     "Which books should you recommend?"),
    ("I like to keep my mornings free for {v}, so which times would you offer to the client?",
     "What do I keep my mornings free for?"),
    ("I don't enjoy crowded places, so a small town like {v} would be much better for me, any ideas?",
     "What kind of place would be better for me?"),
    ("Could you always show prices in {v} when we talk about the trip?", "How do I want prices shown?"),
    ("I'd rather have the summaries in the {v} format, they are easier to skim on the train.",
     "Which format do I want for summaries?"),
    ("I'm more of a {v} person when it comes to exercise, so what would a first week look like?",
     "What exercise do I like?"),
)  # fmt: skip
_CHANGED = (
    ("The budget for the garden project is ${n}.",
     "After talking to my sister we raised the garden project budget to ${n}, how should we split it?",
     "What is the budget for the garden project?"),
    ("My flight to Lisbon leaves on {d}.",
     "The airline moved my flight to Lisbon to {d}, do I need to call the hotel?", "When is my flight to Lisbon?"),
    ("The book club has {n} members.", "The book club has grown to {n} members, can you suggest a bigger place?",
     "How many members does the book club have?"),
    ("I run about {n} kilometers a month.", "I'm now running {n} kilometers a month, what should I eat before?",
     "How far do I run in a month?"),
    ("The team meets in the {v} room.", "The team meets in the {v} room since Monday, the old one was too loud.",
     "Where does the team meet?"),
    ("I'm using {v} for my blog.", "I switched my blog to {v} last week, any idea how to move the images?",
     "What do I use for my blog?"),
    ("My manager is {v}.", "{v} took over as my manager this month, how should I introduce myself?",
     "Who is my manager?"),
    ("The deadline for my thesis is {d}.", "My thesis deadline got extended to {d}, can we redo the plan?",
     "When is my thesis due?"),
    ("I have finished {n} lessons of the course.",
     "I've finished {n} lessons of the course so far, what should come next?",
     "How many lessons of the course have I finished?"),
    ("My test coverage is at {n} points.", "With the new tests my coverage has reached {n} points, is that enough?",
     "What is my test coverage?"),
    ("The rent for the studio is ${n} a month.",
     "Actually the rent for the studio is ${n} a month, they had told me the wrong figure.",
     "What is the rent for the studio?"),
    ("My daughter's teacher is Mrs. {v}.", "My daughter's new teacher is Mrs. {v}, what should I ask her?",
     "Who is my daughter's teacher?"),
)  # fmt: skip
CHAT_KINDS = ("preference", "changed value")
_REMARKS = {
    "English": (
        "Looking at the importer again this morning.",
        "The tests look fine so far, thanks.",
        "Tell me about it.",
    ),
    "German": ("Ich sehe mir den Import heute noch einmal an.", "Die Tests sehen gut aus, danke.", "Erzähl mir mehr."),
    "French": ("Je regarde encore le module ce matin.", "Les tests ont bonne mine, merci.", "Raconte-moi la suite."),
    "Spanish": ("Estoy mirando otra vez el módulo.", "Las pruebas van bien, gracias.", "Cuéntame más del asunto."),
    "Chinese": ("今天上午再看看导入模块。", "测试看起来很好,谢谢。", "继续说说这个模块。"),
}
_ANSWER = "I read the module and noted what it does. The next part looks similar to the one before it, number {n}."


@dataclass(frozen=True)
class Statement:
    """What a user stated, of which kind, with its value and, where it was corrected, the old value."""

    kind: str
    text: str
    value: str
    old: str = ""
    earlier: str = ""
    """The text with the old value."""
    question: str = ""
    """What asks for the value."""

    def survives(self, sent: str) -> bool:
        return self.value in sent or self.value.lower() in sent

    def is_stale(self, sent: str) -> bool:
        """Whether only the old value is left."""
        return bool(self.old) and (self.old in sent or self.old.lower() in sent) and not self.survives(sent)


@dataclass(frozen=True)
class Conversation:
    """What a client has before the first compaction, what it adds before each of the others, and what is looked for."""

    language: str
    rounds: list[list[dict[str, Any]]]
    statements: list[Statement]


def made(language: str, seed: int, rounds: int, turns: int) -> Conversation:
    """A conversation of about 120 turns with statements of each kind in its first two thirds, and of so many turns
    without any before each other compaction."""
    chance = random.Random(f"{language}/{seed}")
    statements = _statements(language, chance)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You help with a software project."}]
    messages += _with_corrected_statements(_remark(language, chance), statements)
    for turn in _turns(language, statements, chance):
        messages += [message for _ in range(3) for message in _remark(language, chance)] + turn
    messages += [message for _ in range(12) for message in _remark(language, chance)]
    more = [[message for _ in range(turns) for message in _remark(language, chance)] for _ in range(rounds - 1)]
    return Conversation(language, [messages, *more], statements)


def planted(language: str, seed: int, rounds: int, recorded: Sequence[dict[str, Any]]) -> Conversation:
    """A recorded run with statements at places all over its first half. The other half comes between compactions."""
    chance = random.Random(f"{language}/{seed}/planted")
    statements = _statements(language, chance)
    first = next(at for at, message in enumerate(recorded) if message["role"] == "user")
    messages = [
        *recorded[:first],
        *_with_corrected_statements([dict(recorded[first])], statements),
        *recorded[first + 1 :],
    ]
    half = len(messages) // 2
    # Nothing may stand between a call and its results.
    free = [at for at in range(first + 2, half) if messages[at]["role"] != "tool"]
    turns = list(_turns(language, statements, chance))
    places = sorted(chance.choices(free, k=len(turns)))
    before, done = list[dict[str, Any]](), 0
    for place, turn in zip(places, turns, strict=True):
        before += [*messages[done:place], *turn]
        done = place
    rest = messages[done:]
    ends = [round((half - done) + (len(rest) - half + done) * number / rounds) for number in range(1, rounds + 1)]
    ends = [_legal(rest, end) for end in ends]
    parts = [rest[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return Conversation(language, [before + parts[0], *parts[1:]], statements)


def chatted(seed: int, chats: Sequence[Sequence[dict[str, Any]]]) -> Conversation:
    """Recorded chats, one behind the other, with what people say in passing added to their messages."""
    chance = random.Random(f"chat/{seed}")
    messages = [{**message} for chat in chats for message in chat]
    statements = [_chat_statement(text, text, asked, "preference", chance) for text, asked in _PREFERRED]
    statements += [_chat_statement(*each, "changed value", chance) for each in _CHANGED]
    places = [at for at, message in enumerate(messages[:-40]) if message["role"] == "user" and at]
    for each in statements:
        earlier, later = sorted(chance.sample(places, 2))
        for at, text in ((earlier, each.earlier), (later, each.text)):
            if text:
                parts = [messages[at]["content"], text]
                messages[at]["content"] = " ".join(parts if chance.random() < 0.5 else reversed(parts))
    return Conversation("English", [messages], statements)


def _chat_statement(earlier: str, text: str, question: str, kind: str, chance: random.Random) -> Statement:
    value, old = (
        pronounceable(chance)
        if "{v}" in text
        else str(chance.randrange(200, 9_000))
        if "{n}" in text
        else _date(chance)
        for _ in range(2)
    )
    if kind == "preference":
        value, earlier = value.lower(), ""
    stated, before = (each.format(v=said, n=said, d=said) for each, said in ((text, value), (earlier, old)))
    return Statement(kind, stated, value, old if earlier else "", before, question)


def recordings(folder: Path, names: Sequence[str], characters: int) -> Iterator[list[dict[str, Any]]]:
    """Recorded runs of so many characters, one after another; short ones of a file are joined."""
    for name in names:
        joined: list[dict[str, Any]] = []
        with gzip.open(folder / f"{name}.jsonl.gz", "rt") as file:
            for run in map(json.loads, file):
                # A later run has no system prompt and no new opening.
                joined += run["messages"] if not joined else [m for m in run["messages"] if m["role"] != "system"]
                sizes = [len(json.dumps(message)) for message in joined]
                if sum(sizes) >= characters:
                    yield list(_first(joined, sizes, characters))
                    joined = []


def _first(messages: Sequence[dict[str, Any]], sizes: Sequence[int], characters: int) -> Iterator[dict[str, Any]]:
    total = 0
    for message, size in zip(messages, sizes, strict=True):
        total += size
        if total > characters and message["role"] != "tool":
            return
        yield message


def _legal(messages: Sequence[dict[str, Any]], end: int) -> int:
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return end


def _statements(language: str, chance: random.Random) -> list[Statement]:
    found: list[Statement] = []
    for kind in KINDS:
        texts = _STATED[language][kind]
        for text in texts[-1:] if kind == "correction of the opening" else texts:
            value, old = pronounceable(chance), pronounceable(chance) if kind in _CORRECTED else ""
            stated = text.format(v=value, n=chance.randrange(200, 900))
            found.append(Statement(kind, stated, value, old, texts[0].format(v=old, n="") if old else ""))
    return found


def _with_corrected_statements(messages: list[dict[str, Any]], statements: Sequence[Statement]) -> list[dict[str, Any]]:
    """Adds the statements that are corrected later to the first message."""
    stated = [each.earlier for each in statements if each.kind == "correction of the opening"]
    messages[0]["content"] = "\n\n".join([str(messages[0]["content"]), *stated])
    return messages


def _turns(language: str, statements: Sequence[Statement], chance: random.Random) -> Iterator[list[dict[str, Any]]]:
    """Each statement with what answers it; what is corrected comes some turns before."""
    turns: list[tuple[float, list[dict[str, Any]]]] = []
    for each in statements:
        at = chance.random()
        if each.kind == "promise":
            asked = _remark(language, chance)[0]
            turns.append((at, [asked, {"role": "assistant", "content": each.text}]))
            continue
        turns.append((at, [{"role": "user", "content": each.text}, _answer(chance)]))
        if each.kind == "correction":
            turns.append((at * chance.random(), [{"role": "user", "content": each.earlier}, _answer(chance)]))
    yield from (turn for _, turn in sorted(turns, key=lambda pair: pair[0]))


def _remark(language: str, chance: random.Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": chance.choice(_REMARKS[language])}, _answer(chance)]


def _answer(chance: random.Random) -> dict[str, str]:
    return {"role": "assistant", "content": _ANSWER.format(n=chance.randrange(10**6))}


def _date(chance: random.Random) -> str:
    return f"{chance.choice(('March', 'May', 'July', 'October'))} {chance.randrange(2, 30)}"


def pronounceable(chance: random.Random) -> str:
    return "".join(chance.choice("BCDFGHKLMNPRSTVWZ") + chance.choice("aeiou") for _ in range(3)).capitalize()
