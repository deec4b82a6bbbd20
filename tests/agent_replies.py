"""The replies of an agent's model, and its tool in each protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.loopback import events
from tests.reply_parts import ReplyCall, ReplyText, ReplyThought, ScriptedReply, reply_document
from tests.writers import WRITERS

Json = dict[str, Any]
TOOL = "read_file"
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_ABOUT = "Reads a file of the repository."
TOOLS = {name: [writer.tool(TOOL, _ABOUT, _SCHEMA)] for name, writer in WRITERS.items()}
"""What a client offers, by protocol."""


@dataclass(frozen=True)
class AgentReply:
    """A reply of the model: `calls` are call ids, `text` may be empty, `thought` is the reasoning."""

    number: int
    calls: tuple[str, ...]
    text: str
    thought: str | None
    tokens: int

    @property
    def signature(self) -> str:
        return f"c2lnbmF0dXJl{self.number:06d}+/="

    def scripted(self, protocol_name: str) -> ScriptedReply:
        """Its pieces; Chat Completions has no reasoning that goes back to the provider."""
        thoughts = (
            [] if self.thought is None or protocol_name == "chat" else [ReplyThought(self.thought, self.signature)]
        )
        texts = [ReplyText(self.text)] if self.text else []
        calls = [ReplyCall(call, TOOL, f'{{"path": "src/{call}/main.py"}}') for call in self.calls]
        return ScriptedReply(self.number, (*thoughts, *texts, *calls), self.tokens, 20)


def streamed_error(protocol_name: str, said: Json) -> bytes:
    """An error that comes as an event of a reply that began with 200."""
    if protocol_name == "messages":
        return events(said, done=False, named=True)
    if protocol_name == "converse":
        return events({"type": "error", "error": said}, done=False, named=True)
    if protocol_name == "responses":
        response = reply_document("responses", ScriptedReply(0, (), 0, 0), {})
        begun = {"type": "response.created", "sequence_number": 0, "response": response}
        return events(begun, {"type": "error", "sequence_number": 1, **said}, done=False, named=True)
    return events(said, done=False)
