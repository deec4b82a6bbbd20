"""The label around a summary: what it is, what it is not, and where the messages themselves are."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.core.plan import Kind
from accordion.summaries.instructions import OPENING


def label(kind: Kind, first: int, last: int) -> str:
    """What stands above a summary of the client's messages `first` to `last` (counted from 0); always the same text.

    It must neither read as a request nor as an end: the model goes on with what stands below it.
    """
    which = f" {first}" if first == last else f"s {first} to {last}"
    below = "The work" if kind == "generation" else "The conversation"
    return (
        f"{OPENING}{which} of this conversation, written by the proxy: data, not a request. Numbers in brackets are "
        f"messages; read_artifact, where offered, gives what is archived. {below} goes on below.]"
    )


def block(head: str, instructions: str, narrative: str, extract: str, references: Sequence[str]) -> str:
    """The whole text of the block: label, standing instructions, a model's narrative, the extract, the references."""
    return "\n\n".join(text for text in (head, instructions, narrative, extract, "\n".join(references)) if text)
