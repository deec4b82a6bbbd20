"""AWS's event stream as a provider writes it and as a strict client reads it: with botocore, which checks lengths and
checksums. Events are given as server-sent events, as the other providers of the tests write them."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from botocore.eventstream import EventStreamBuffer

from accordion.protocols.sse import read_events

KIND = "application/vnd.amazon.eventstream"


def frame(payload: bytes, **headers: str) -> bytes:
    """A frame; the names of headers without their colons, with `_` for `-`."""
    block = b""
    for name, value in headers.items():
        key, text = b":" + name.replace("_", "-").encode(), value.encode()
        block += bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(text)) + text
    prelude = struct.pack(">II", 16 + len(block) + len(payload), len(block))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + block + payload
    return head + struct.pack(">I", zlib.crc32(head))


def event(kind: str, payload: bytes) -> bytes:
    """The frame of an event."""
    return frame(payload, event_type=kind, content_type="application/json", message_type="event")


def failure(kind: str, message: str) -> bytes:
    """The frame of an exception."""
    payload = json.dumps({"message": message}).encode()
    return frame(payload, exception_type=kind, content_type="application/json", message_type="exception")


def chunk(data: bytes, number: int = 0) -> bytes:
    """An event of the model's own stream, padded as Bedrock does it."""
    pad = "abcdefghijklmnopqrstuvwxyz"[: number % 26]
    return event("chunk", json.dumps({"bytes": base64.b64encode(data).decode(), "p": pad}).encode())


def frames_of(target: str, stream: bytes) -> list[bytes]:
    """A stream of server-sent events as the frames that it is at a path of Bedrock's."""
    out = []
    for number, each in enumerate(read_events(stream)):
        if each.name == b"error":
            error = json.loads(each.data)["error"]
            out.append(failure("validationException", error["message"]))
        elif target.endswith("/converse-stream"):
            out.append(event(each.name.decode(), each.data))
        else:
            out.append(chunk(each.data, number))
    return out


def is_framed(target: str) -> bool:
    """Whether streams have frames at this path."""
    return target.startswith("/model/") and target.endswith("-stream")


def read(data: bytes) -> list[tuple[dict[str, str], Any]]:
    """The headers and the decoded payload of each frame. Raises where one is not valid, or the last is not whole."""
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    found = [(each.headers, json.loads(each.payload)) for each in buffer]
    assert not buffer._data, "the last frame is not whole"
    return found


def converse_blocks(data: bytes) -> list[Any]:
    """The blocks of a message of the Converse API, as AWS's clients put them together from a stream."""
    blocks: dict[int, Any] = {}
    names = [headers[":event-type"] for headers, _ in read(data)]
    assert (names[0], names[-2:]) == ("messageStart", ["messageStop", "metadata"]), names
    for _, payload in read(data):
        at = payload.get("contentBlockIndex", -1)
        if call := payload.get("start", {}).get("toolUse"):
            blocks[at] = {"toolUse": {**call, "input": ""}}
        for kind, piece in payload.get("delta", {}).items():
            if kind == "text":
                blocks.setdefault(at, {"text": ""})["text"] += piece
            elif kind == "toolUse":
                blocks[at][kind]["input"] += piece["input"]
            else:
                reasoned = blocks.setdefault(at, {kind: {"reasoningText": {}}})[kind]["reasoningText"]
                reasoned |= {name: reasoned.get(name, "") + text for name, text in piece.items()}
    assert list(blocks) == list(range(len(blocks))), list(blocks)
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"] or "{}")
    return list(blocks.values())


def events(data: bytes) -> list[Any]:
    """The events in the chunks of a stream."""
    return [json.loads(base64.b64decode(payload["bytes"])) for _, payload in read(data)]
