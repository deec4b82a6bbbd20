"""Conversations in five languages in which users state rules, limits, preferences, facts and corrections.

Each statement holds a value that nobody can guess. A statement survives a compaction if its value stands in the list
that would be sent; a correction survives only if its old value does not stand there alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("rule", "limit", "preference", "fact", "correction")
LANGUAGES = ("English", "German", "French", "Spanish", "Chinese")

_STATED = {
    "English": {
        "rule": ("Never run the job {v} on production.", "Do not share the file {v} with the vendor."),
        "limit": ("Spend at most {n} euros on {v}.", "{v} must answer within {n} milliseconds."),
        "preference": ("I prefer the layout {v} for reports.", "Please sign mails to the board with {v}."),
        "fact": ("Our contact at the bank is Ms. {v}.", "The staging host is {v}.internal."),
        "correction": ("The release goes out under the name {v}.",),
    },
    "German": {
        "rule": ("Starte den Job {v} niemals in Produktion.", "Gib die Datei {v} nicht an den Lieferanten."),
        "limit": ("Gib höchstens {n} Euro für {v} aus.", "{v} muss in {n} Millisekunden antworten."),
        "preference": ("Ich mag für Berichte lieber die Vorlage {v}.", "Bitte unterschreibe Briefe mit {v}."),
        "fact": ("Unsere Ansprechpartnerin bei der Bank ist Frau {v}.", "Der Testserver heißt {v}.internal."),
        "correction": ("Der Name der Ausgabe ist {v}.",),
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
    },
    "Spanish": {
        "rule": ("Nunca ejecutes la tarea {v} en producción.", "No envíes sin permiso el archivo {v} al proveedor."),
        "limit": ("Gasta como máximo {n} euros en {v}.", "{v} debe responder en {n} milisegundos."),
        "preference": ("Prefiero el formato {v} para los informes.", "Por favor, firma las cartas con {v}."),
        "fact": ("Nuestro contacto en el banco es la señora {v}.", "El servidor de pruebas es {v}.internal."),
        "correction": ("El nombre de la versión es {v}.",),
    },
    "Chinese": {
        "rule": ("不要在生产环境运行任务 {v}。", "禁止把文件 {v} 发给供应商。"),
        "limit": ("{v} 的费用不得超过 {n} 欧元。", "{v} 必须在 {n} 毫秒内响应。"),
        "preference": ("报告请使用 {v} 版式。", "给董事会的邮件请署名 {v}。"),
        "fact": ("银行的联系人是 {v} 女士。", "测试服务器是 {v}.internal。"),
        "correction": ("这个版本的名称是 {v}。",),
    },
}
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

    def survives(self, sent: str) -> bool:
        return self.value in sent

    def is_stale(self, sent: str) -> bool:
        """Whether only the old value is left."""
        return bool(self.old) and self.old in sent and self.value not in sent


@dataclass(frozen=True)
class Conversation:
    """A client's whole list, and what is looked for in what is sent of it."""

    language: str
    messages: list[dict[str, str]]
    statements: list[Statement]

    def grown(self, turns: int, chance: random.Random) -> Conversation:
        """The same with more turns of remarks behind it."""
        more = [message for _ in range(turns) for message in _remark(self.language, chance)]
        return Conversation(self.language, [*self.messages, *more], self.statements)


def conversation(language: str, seed: int) -> Conversation:
    """A conversation of about a hundred turns with two statements of each kind in its first two thirds."""
    chance = random.Random(f"{language}/{seed}")
    messages = [{"role": "system", "content": "You help with a software project."}]
    statements: list[Statement] = []
    for kind, text in _texts(language, chance):
        for _ in range(3):
            messages += _remark(language, chance)
        old = _value(chance) if kind == "correction" else ""
        if old:
            messages += [{"role": "user", "content": text.format(v=old)}, _answer(chance)]
            messages += [message for _ in range(4) for message in _remark(language, chance)]
        value = _value(chance)
        stated = text.format(v=value, n=chance.randrange(200, 900))
        statements.append(Statement(kind, stated, value, old))
        messages += [{"role": "user", "content": stated}, _answer(chance)]
    return Conversation(language, messages, statements).grown(12, chance)


def _texts(language: str, chance: random.Random) -> Iterator[tuple[str, str]]:
    found = [(kind, text) for kind in KINDS for text in _STATED[language][kind]]
    chance.shuffle(found)
    yield from found


def _remark(language: str, chance: random.Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": chance.choice(_REMARKS[language])}, _answer(chance)]


def _answer(chance: random.Random) -> dict[str, str]:
    return {"role": "assistant", "content": _ANSWER.format(n=chance.randrange(10**6))}


def _value(chance: random.Random) -> str:
    return "".join(chance.choice("BCDFGHKLMNPRSTVWZ") + chance.choice("aeiou") for _ in range(3)).capitalize()
