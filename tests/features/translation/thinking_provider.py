"""Scripted answers for the translator: of a provider that thinks, and takes back a thought only as it signed it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from accordion.features.translation.translator import LiteLLMTranslator
from accordion.model.ports import Route
from tests.features.translation.translator_setup import PROTOCOLS, Provider, TranslatorSetup
from tests.loopback import Answer, Loopback, Recorded, Script, events, replies_events, replies_json

Block = dict[str, Any]

_USAGE = {"input_tokens": 11, "output_tokens": 5}
_BASE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-of-the-day", "stop_sequence": None}


@asynccontextmanager
async def answer_with(script: Script) -> AsyncIterator[tuple[TranslatorSetup, Loopback]]:
    """A setup whose provider answers by `script`."""
    translator = LiteLLMTranslator(PROTOCOLS)
    try:
        async with Loopback(script) as server:
            yield TranslatorSetup(translator, Provider(), server.url), server
    finally:
        await translator.close()


def leading(base: str, model: str, **options: object) -> Route:
    return Route("r", "litellm", base_url=base, model=model, options=(*options.items(),))


def thinking(*pieces: str, signature: str = "sig-1") -> Block:
    """A thinking block whose text is streamed in these pieces; with none it is told by its signature alone."""
    return {"type": "thinking", "pieces": pieces, "signature": signature}


def redacted(data: str = "sealed-1") -> Block:
    return {"type": "redacted_thinking", "data": data}


def text(*pieces: str) -> Block:
    return {"type": "text", "pieces": pieces}


def call(number: int = 1) -> Block:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {"q": number}}


def whole(block: Block) -> Block:
    """The block as it stands in an answer that is not streamed."""
    if "pieces" not in block:
        return block
    bare = {name: value for name, value in block.items() if name != "pieces"}
    return bare | {block["type"]: "".join(block["pieces"])}


def thoughts(blocks: list[Block]) -> list[Block]:
    """Those of the blocks that a client must send back as they came."""
    return [whole(block) for block in blocks if "thinking" in block["type"]]


def thinker(*blocks: Block, stop: str = "end_turn") -> Script:
    """Answers with these blocks, streamed if asked so. A history that holds other thoughts than these is refused."""
    content = [whole(block) for block in blocks]
    ended = {"stop_reason": stop, "stop_sequence": None}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**_BASE, "content": [], "stop_reason": None, "usage": _USAGE}}
    ]
    for index, block in enumerate(blocks):
        told += _streamed(index, block)
    told += [{"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]
    streamed = replies_events(b"".join(events(event, done=False, named=True) for event in told))
    document = replies_json({**_BASE, **ended, "content": content, "usage": _USAGE})

    async def script(request: Recorded, answer: Answer) -> None:
        asked = request.json()
        if _sent_back(asked) and _sent_back(asked) != thoughts([*blocks]):
            error = {"type": "invalid_request_error", "message": "messages.1: `thinking` blocks cannot be modified"}
            await replies_json({"type": "error", "error": error}, 400)(request, answer)
            return
        await (streamed if asked.get("stream") else document)(request, answer)

    return script


def chunks(*deltas: dict[str, Any]) -> Script:
    """A stream of Chat Completions; the first chunk says nothing, as those of most servers do."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in ({"role": "assistant"}, *deltas)]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    return replies_events(events(*({**base, "choices": [choice]} for choice in choices)))


def _sent_back(asked: dict[str, Any]) -> list[Block]:
    said = [entry["content"] for entry in asked["messages"] if entry["role"] == "assistant"]
    return thoughts([block for content in said if isinstance(content, list) for block in content])


def _streamed(index: int, block: Block) -> list[dict[str, Any]]:
    kind = block["type"]
    if kind == "tool_use":
        opening = block | {"input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    elif kind == "redacted_thinking":
        opening, deltas = block, []
    else:
        opening = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        deltas = [{"type": f"{kind}_delta", kind: piece} for piece in block["pieces"]]
    if kind == "thinking":
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return [
        {"type": "content_block_start", "index": index, "content_block": opening},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]
