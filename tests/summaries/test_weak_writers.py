"""A weak model keeps to no form and mixes truth with invention: whole true lines are used, and nothing invented is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Text
from accordion.summaries.checks import check
from accordion.summaries.evidence import Evidence, gather_evidence
from accordion.summaries.extractive import SourceMessage
from accordion.summaries.schema import decode_answer
from accordion.summaries.sentence_forms import split_sentences
from tests.recordings import RECORDINGS, read_recording, transcripts
from tests.summary_samples import conversation, message, sources, words

_PLAIN = re.compile(r"[A-Z][\w ,/.;-]{30,180}\.")
INVENTED = ("4817", "Zebulon", "made_up_module.py", "giraffes")


class WeakLine(NamedTuple):
    """A line of a weak model: its text, the messages that it cites, and whether the messages say so."""

    text: str
    cited: tuple[int, ...]
    is_true: bool


def render_citations(cited: Sequence[int], style: int) -> str:
    numbers = [str(index) for index in cited]
    joined = f"{cited[0]}-{cited[-1]}" if len(cited) > 3 else ", ".join(numbers)
    return (
        f"[{joined}]",
        f"({', '.join(f'm{number}' for number in numbers)})",
        f"(messages {joined})",
        f"[message {joined}].",
        f"[{'] ['.join(numbers)}]",
    )[style]


def render_answer(lines: Sequence[WeakLine], form: int, style: int) -> str:
    entries: list[dict[str, Any]] = [
        {"section": "Found", "text": each.text, "sources": list(each.cited)} for each in lines
    ]
    cited_texts = [f"{each.text} {render_citations(each.cited, style)}" for each in lines]
    if form < 3:
        shape: Any = ({"lines": entries}, {"outcomes": {"discoveries": entries}}, {"found": cited_texts})[form]
        return f"Here is the record:\n```json\n{json.dumps(shape, indent=form)}\n```\nI hope this helps!"
    if form == 3:
        return "\n".join(map(json.dumps, entries))
    start = ("- ", "1. ", "Found: ", "**Found:** ")[form - 4]
    return "\n".join(["## Found", *(start + text for text in cited_texts), "That is all."])


def invent(truth: WeakLine, kind: int, unknown_index: int) -> WeakLine:
    """Makes a line that the messages do not support of one that they do."""
    texts = (
        f"{truth.text} for 4817 of them",
        f"{truth.text}, says Zebulon",
        f"{truth.text} in made_up_module.py",
        "Many giraffes galloped quietly through sunny meadows",
        f"{truth.text} for giraffes",
        f"{' '.join(truth.text.split()[:4])} with giraffes galloping quietly through sunny meadows",
    )
    return WeakLine(texts[kind], (unknown_index,) if kind == 4 else truth.cited, is_true=False)


@cache
def record(number: int) -> tuple[Evidence, tuple[WeakLine, ...]]:
    """The evidence of messages, and true lines: a sentence of each. Number 0 is invented, the others are recorded."""
    covered: tuple[SourceMessage, ...] = conversation()
    if number:
        path = transcripts()[(number - 1) % len(transcripts())]
        entries = read_recording(path, 1)[0][1:80]
        covered = sources([message(each["role"], each["content"]) for each in entries if each["content"]], 1)
    truths = []
    for source in covered:
        text = "\n".join(part.text for part in source.message.parts if isinstance(part, Text))
        sentences = (sentence for row in text.split("\n")[:5] for sentence in split_sentences(row))
        fitting = [each.rstrip(".") for each in sentences if _PLAIN.fullmatch(each) and "user" not in each]
        truths += [WeakLine(each, (source.index,), is_true=True) for each in fitting[:1]]
    return gather_evidence(covered), tuple(truths)


RECORDS = [0, *([1, 2, 4, 6, 9] if RECORDINGS.is_dir() else [])]


@pytest.mark.parametrize("number", RECORDS)
@given(data=st.data())
def test_of_a_weak_models_answer_whole_true_lines_stay_and_nothing_invented(number: int, data: st.DataObject) -> None:
    evidence, truths = record(number)
    chosen = data.draw(st.lists(st.sampled_from(truths), min_size=1, max_size=6, unique=True))
    lies = data.draw(st.lists(st.tuples(st.sampled_from(truths), st.integers(0, 5)), max_size=6))
    unknown_index = max(evidence.citable) + 7
    lines = [*chosen, *(invent(truth, kind, unknown_index) for truth, kind in lies)]
    lines = data.draw(st.permutations(lines))
    if data.draw(st.booleans()):
        # A weak model cites everything.
        lines = [each._replace(cited=tuple(range(unknown_index))) for each in lines if each.is_true]
    answer = render_answer(lines, data.draw(st.integers(0, 7)), data.draw(st.integers(0, 4)))
    length = data.draw(st.just(len(answer)) | st.integers(len(answer) // 2, len(answer)))
    try:
        read_lines = decode_answer(answer[:length], "conversation")
    except ValueError:
        assert length < len(answer)
        return
    checked = check(read_lines, "conversation", evidence, limit=10_000, count=words)
    assert not [word for word in INVENTED if word in checked.text]
    assert all(len(each.sources) <= 6 for each in checked.lines)
    if length == len(answer):
        assert {each.text for each in chosen} <= {each.text for each in checked.lines}
        assert checked.is_usable is (len(checked.lines) >= 3)
