"""Precision and recall of the classes of sentences, on labelled sentences of recorded conversations.

labelled_sentences.md says how they were chosen and labelled. `python -m tests.summaries.labelled_sentences` prints all.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accordion.summaries.instructions import Instruction, find_instructions, find_promises
from accordion.summaries.sentence_forms import FACT, REQUEST, RULE
from tests.recordings import RECORDINGS, read_recording

LABELS = ("rule", "correction", "fact", "request", "promise", "remark")
STANDING = frozenset({"rule", "correction"})
_FILE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True)
class LabelledSentence:
    """A sentence with its labels, and the one that the classifier gives it."""

    text: str
    sample: str
    labels: frozenset[str]
    found: str
    is_held_out: bool

    @property
    def is_disputed(self) -> bool:
        """Whether readers may differ on whether it is a standing instruction."""
        return bool(self.labels & STANDING) and not self.labels <= STANDING


@dataclass(frozen=True)
class Accuracy:
    """Counts of sentences of one class."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + self.missed)


def missing_recordings() -> list[str]:
    """The recordings with labelled sentences that are not at hand."""
    names = {row["recording"] for row in _rows()}
    return sorted(name for name in names if not _path(name).exists())


def read_labelled_sentences() -> Iterator[LabelledSentence]:
    """Yields all labelled sentences. The recordings must be at hand."""
    for row in _rows():
        place = [row[column] for column in ("recording", "conversation", "message", "start")]
        message = read_recording(_path(row["recording"]))[int(row["conversation"])][int(row["message"])]
        text = message["content"][int(row["start"]) : int(row["start"]) + int(row["length"])]
        is_held_out = hashlib.sha256("/".join(place).encode()).digest()[0] % 3 == 0
        found = _classify(text, message["role"], message["content"])
        yield LabelledSentence(text, row["sample"], frozenset(row["labels"].split()), found, is_held_out)


def measure_standing(sentences: Iterable[LabelledSentence]) -> Accuracy:
    """Counts rules and corrections together, as the section of standing instructions lists them."""
    counts: Counter[tuple[bool, bool]] = Counter(
        (each.found in STANDING, bool(each.labels & STANDING)) for each in sentences if not each.is_disputed
    )
    return Accuracy(counts[True, True], counts[True, False], counts[False, True])


def measure_label(sentences: Sequence[LabelledSentence], label: str) -> Accuracy:
    """Counts one label. A sentence with several labels cannot be missed."""
    found = [each for each in sentences if each.found == label]
    right = sum(label in each.labels for each in found)
    return Accuracy(
        right, len(found) - right, sum(each.labels == {label} and each.found != label for each in sentences)
    )


def _classify(text: str, role: str, message: str) -> str:
    if role == "assistant":
        return "promise" if any(_overlap(text, each) for each in find_promises(message)) else "remark"
    instructions = [each for each in find_instructions(message) if _overlap(text, each)]
    best = max(instructions, key=lambda each: each.rank, default=None)
    if best is None or best.rank < REQUEST:
        return "remark"
    if best.rank == RULE:
        return "correction" if best.is_correction else "rule"
    return "fact" if best.rank == FACT else "request"


def _overlap(text: str, instruction: Instruction) -> bool:
    return text in instruction.text or instruction.text in text


def _rows() -> list[dict[str, str]]:
    with _FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _path(name: str) -> Path:
    return RECORDINGS / f"{name}.jsonl.gz"


def main() -> None:
    sentences = list(read_labelled_sentences())
    first = [each for each in sentences if each.sample in {"random", "likely"}]
    parts = {
        "tuned on": [each for each in first if not each.is_held_out],
        "held out": [each for each in first if each.is_held_out],
        "later": [each for each in sentences if each.sample == "later"],
        "last": [each for each in sentences if each.sample == "last"],
        "all": sentences,
    }
    for name, part in parts.items():
        print(f"{name}: {len(part)} sentences, {dict(Counter(' or '.join(sorted(each.labels)) for each in part))}")
        accuracies = {"standing instruction": measure_standing(part)}
        accuracies |= {label: measure_label(part, label) for label in LABELS}
        for label, accuracy in accuracies.items():
            print(
                f"  {label:20} right {accuracy.right:3} wrong {accuracy.wrong:3} missed {accuracy.missed:3}  "
                f"precision {accuracy.precision:5.1%} recall {accuracy.recall:5.1%}"
            )


if __name__ == "__main__":
    main()
