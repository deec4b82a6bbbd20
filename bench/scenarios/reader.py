"""A real model reads what is left: paired questions about recorded conversations, each asked with the full history,
through Accordion with both writers, with the newest messages only, and with nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from statistics import median
from typing import Any, Final

import httpx
from rich.progress import Progress

from bench.endpoint import (
    QUESTION,
    SUMMARY,
    TURN,
    Endpoint,
    EndpointRelay,
    Messages,
    ModelCall,
    accordion_before,
    answers_file,
    ask,
    dollars,
)
from bench.judging import is_right, show_interval
from bench.question_sets import ANNOUNCEMENT, CHARACTERS, KINDS, QuestionSet, ReaderQuestion, sets_for
from bench.questions import normalize
from bench.report import Cell, Table
from bench.run_settings import RunSettings

FULL, EXTRACTIVE, BY_MODEL = "the full history", "Accordion, extractive writer", "Accordion, the model as writer"
NEWEST, NOTHING = "the newest messages", "nothing"
ARMS: Final = (FULL, EXTRACTIVE, BY_MODEL, NEWEST, NOTHING)
FAILED: Final = "failed with status"
"""The beginning of a reply in place of one that was refused."""
_ANSWER: Final = {"max_tokens": 32, "temperature": 0, "seed": 1}


@dataclass
class ReaderAnswer:
    """The model's answer to one question in one arm, with the calls that it took.

    `is_in_prompt`: what answers the question stood there; None for a control.
    """

    conversation: str
    kind: str
    arm: str
    question: str
    expected: str
    form: str
    reply: str
    is_right: bool
    is_in_prompt: bool | None = None
    calls: list[ModelCall] = field(default_factory=list)


def run(setting: RunSettings) -> list[Table]:
    endpoint = Endpoint.from_options(setting.endpoint, setting.model, setting.key_env)
    sets, window, note = sets_for(setting, 8, 24)
    arms = [arm for arm in ARMS if not setting.only or any(each.lower() in arm.lower() for each in setting.only)]
    with EndpointRelay(endpoint, answers_file(endpoint)) as relay:
        answers = ReaderRun(relay, window, arms, setting.context).ask_all(sets)
    rows = [{**asdict(each), "calls": len(each.calls)} for each in answers]
    answers_file(endpoint).with_name("reader.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    table = table_of(answers, endpoint.model)
    failed = sum(each.reply.startswith(FAILED) for each in answers)
    asked = {(each.conversation, each.question) for each in answers}
    table.notes.append(f"{len(asked)} questions about {len({name for name, _ in asked})} {note}")
    table.notes.append(f"{len(answers)} answers, {failed} failed")
    return [table]


class ReaderRun:
    """Asks all questions in all arms; one Accordion runs for each of its arms."""

    def __init__(self, relay: EndpointRelay, window: int, arms: Sequence[str], context: int) -> None:
        self._relay, self._window, self._arms, self._context = relay, window, arms, context
        self._client, self._urls = httpx.Client(), dict[str, str]()
        self._sent = list[int]()
        """Characters of messages that Accordion sent for each question of this conversation."""

    def ask_all(self, sets: Sequence[QuestionSet]) -> list[ReaderAnswer]:
        """Returns the answers; if the user interrupts the run, those so far.

        All questions of one conversation in one arm follow each other, for the prompt cache.
        """
        answers = list[ReaderAnswer]()
        with ExitStack() as stack, Progress() as progress:
            self._start(stack)
            bar = progress.add_task("questions", total=len(self._arms) * sum(len(each.questions) for each in sets))
            with suppress(KeyboardInterrupt):
                for each, arm in product(sets, self._arms):
                    for answer in self._ask_arm(each, arm):
                        answers.append(answer)
                        progress.advance(bar)
        return answers

    def _start(self, stack: ExitStack) -> None:
        for arm in self._arms:
            if arm in (EXTRACTIVE, BY_MODEL):
                context = accordion_before(self._relay, self._window, by_model=arm == BY_MODEL)
                self._urls[arm] = stack.enter_context(context)

    def _ask_arm(self, whole: QuestionSet, arm: str) -> Iterator[ReaderAnswer]:
        messages = self._messages(whole, arm)
        if messages is None:
            return
        if arm == EXTRACTIVE:
            self._sent.clear()
        url, session, summaries = self._urls.get(arm, self._relay.url), f"reader-{whole.id}", list[ModelCall]()
        if arm in self._urls:
            self._replay(whole.messages, url, session, has_summaries=arm == BY_MODEL)
            summaries = self._relay.take()
        for question in whole.questions:
            asked = [*messages, {"role": "user", "content": question.text}]
            try:
                reply = ask(self._client, url, asked, QUESTION, session, **_ANSWER)
            except httpx.HTTPStatusError as error:
                reply = f"{FAILED} {error.response.status_code}"
            calls = [*summaries, *self._relay.take()]
            summaries, prompt = [], calls[-1].messages if calls else "[]"
            if arm == EXTRACTIVE:
                self._sent.append(len(prompt))
            fields = whole.id, whole.kind, arm, question.text, question.expected, question.form, reply
            yield ReaderAnswer(*fields, is_right(question, reply), is_in_prompt(question, prompt), calls)

    def _messages(self, whole: QuestionSet, arm: str) -> Messages | None:
        """Returns the messages in front of the question; None if the full history does not fit."""
        system = [each for each in whole.messages[:1] if each["role"] == "system"]
        if arm == NOTHING:
            return [*system, *ANNOUNCEMENT]
        if arm == NEWEST:
            return newest(whole.messages, int(median(self._sent or [self._window])))
        size = len(json.dumps(whole.messages, ensure_ascii=False)) / CHARACTERS
        return None if arm == FULL and size > self._context else whole.messages

    def _replay(self, messages: Messages, url: str, session: str, *, has_summaries: bool) -> None:
        """Sends the turns of a conversation as its client did; the next turn waits for summaries of the last."""
        for at, message in enumerate(messages[:-1]):
            if message["role"] != "assistant" and messages[at + 1]["role"] == "assistant":
                ask(self._client, url, messages[: at + 1], TURN, session, **_ANSWER)
                if has_summaries:
                    self._relay.wait()


def is_in_prompt(question: ReaderQuestion, messages: str) -> bool | None:
    """Whether all that answers a question stands in messages, given as JSON, outside of the question itself."""
    texts = "\n".join(str(each.get("content") or "") for each in json.loads(messages)).replace(question.text, "")
    return all(each in normalize(texts) for each in question.evidence) if question.evidence else None


def newest(messages: Messages, characters: int) -> Messages:
    """Returns the system prompt and the newest messages of at most so many characters, without results of calls that
    are cut off."""
    system = [each for each in messages[:1] if each["role"] == "system"]
    total, start = len(json.dumps(system, ensure_ascii=False)), len(messages)
    for at in range(len(messages) - 1, len(system) - 1, -1):
        total += len(json.dumps(messages[at], ensure_ascii=False))
        if total > characters:
            break
        start = at
    while start < len(messages) and messages[start]["role"] == "tool":
        start += 1
    return [*system, *messages[start:]]


# -- the table ---------------------------------------------------------------------------------------------------------


def table_of(answers: Sequence[ReaderAnswer], model: str) -> Table:
    columns = (
        *("prompt", "right, %", *KINDS, "controls", "against the newest, points", "answer in the prompt, %"),
        *("tokens a question", "cached, %", "written", "seconds", "for summaries", "dollars"),
    )
    table = Table(f"Questions that {model} answers", columns)
    for arm in ARMS:
        if own := [each for each in answers if each.arm == arm]:
            table.rows.append([arm, *_quality(own), _difference(own, answers), _visible(own), *_cost(own, model)])
    table.notes.append(
        "right: with the 95 % interval over conversations; controls: questions whose answer never stood there, right "
        "if the model says so; the newest messages have as many characters as Accordion's prompts"
    )
    return table


def _quality(answers: Sequence[ReaderAnswer]) -> Iterator[Cell]:
    real = [each for each in answers if each.form != "unknown"]
    yield show_interval(_by_conversation(real))
    for kind in KINDS:
        yield show_interval(_by_conversation([each for each in real if each.kind == kind]))
    yield show_interval(_by_conversation([each for each in answers if each.form == "unknown"]))


def _by_conversation(answers: Sequence[ReaderAnswer]) -> Mapping[str, Sequence[float]]:
    found = defaultdict[str, list[float]](list)
    for each in answers:
        found[each.conversation].append(float(each.is_right))
    return found


def _difference(own: Sequence[ReaderAnswer], answers: Sequence[ReaderAnswer]) -> Cell:
    """Returns the paired difference to the newest messages, without controls."""
    others = {(each.conversation, each.question): each.is_right for each in answers if each.arm == NEWEST}
    found = defaultdict[str, list[float]](list)
    for each in own:
        other = others.get((each.conversation, each.question))
        if other is not None and each.form != "unknown" and each.arm != NEWEST:
            found[each.conversation].append(float(each.is_right) - float(other))
    return show_interval(found, is_difference=True)


def _visible(answers: Sequence[ReaderAnswer]) -> Cell:
    shares = [each.is_in_prompt for each in answers if each.is_in_prompt is not None]
    return 100 * sum(shares) / len(shares) if shares else None


def _cost(answers: Sequence[ReaderAnswer], model: str) -> Iterator[Any]:
    calls = [call for each in answers for call in each.calls]
    asked = [call for call in calls if call.purpose != SUMMARY]
    tokens = sum(call.input for call in asked)
    yield round(tokens / len(answers))
    yield 100 * sum(call.cached for call in asked) / max(1, tokens)
    yield sum(call.output for call in asked) / len(answers)
    yield sum(call.seconds for call in asked) / len(answers)
    yield round(sum(call.input + call.output for call in calls if call.purpose == SUMMARY))
    yield dollars(calls, model)
