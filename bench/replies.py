"""The upstream's answers as ready-made bytes: JSON of Chat Completions, Messages and Responses, and server-sent events
of the first two."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Final

ANSWER: Final = "The tests pass; the change is in place and nothing else was touched."

CHAT_JSON: Final = (
    '{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"gpt-4.1","choices":'
    '[{"index":0,"message":{"role":"assistant","content":"' + ANSWER + '","refusal":null},"logprobs":null,'
    '"finish_reason":"stop"}],"usage":{"prompt_tokens":%9d,"completion_tokens":16,"total_tokens":%9d},'
    '"system_fingerprint":"fp_bench"}'
)
CHAT_CALL_JSON: Final = (
    '{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"gpt-4.1","choices":'
    '[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_read_%d","type":"function",'
    '"function":{"name":"read_artifact","arguments":"{\\"id\\":\\"%s\\"}"}}]},"logprobs":null,'
    '"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":%d,"completion_tokens":16,"total_tokens":%d}}'
)
MESSAGES_JSON: Final = (
    '{"id":"msg_bench","type":"message","role":"assistant","model":"claude-sonnet-4-6","content":'
    '[{"type":"text","text":"' + ANSWER + '"}],"stop_reason":"end_turn","stop_sequence":null,'
    '"usage":{"input_tokens":%9d,"output_tokens":16}}'
)
RESPONSES_JSON: Final = (
    '{"id":"resp_%016x","object":"response","created_at":1760000000,"status":"completed","model":"gpt-4.1","output":'
    '[{"type":"message","id":"msg_%016x","status":"completed","role":"assistant","content":[{"type":"output_text",'
    '"text":"' + ANSWER + '","annotations":[]}]}],"usage":{"input_tokens":%9d,"output_tokens":16,'
    '"total_tokens":%9d}}'
)
CHAT_EVENT: Final = (
    'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1760000000,"model":"gpt-4.1",'
    '"choices":[{"index":0,"delta":{%s},"finish_reason":%s}]%s}\n\n'
)
CHAT_USAGE: Final = ',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
MESSAGE_START: Final = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_bench","type":"message",'
    '"role":"assistant","model":"claude-sonnet-4-6","content":[],"stop_reason":null,"stop_sequence":null,'
    '"usage":{"input_tokens":%d,"output_tokens":1}}}\n\n'
)
MESSAGE_DELTA: Final = (
    'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    '"usage":{"output_tokens":%d}}\n\n'
)
JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_numbers = count(1)
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def plain(body: bytes) -> bytes:
    return JSON_HEAD % (len(body), body)


def answer(protocol_name: str, size: int) -> bytes:
    """A short reply to a request of `size` bytes."""
    tokens = size // 4
    if protocol_name == "responses":
        number = next(_numbers)
        text = RESPONSES_JSON % (number, number, tokens, tokens + 16)
    else:
        text = CHAT_JSON % (tokens, tokens + 16) if protocol_name == "chat" else MESSAGES_JSON % tokens
    return plain(text.encode())


def read_call(artifact: str, size: int) -> bytes:
    """A chat reply that calls `read_artifact`, to a request of `size` bytes."""
    return plain((CHAT_CALL_JSON % (next(_numbers), artifact, size // 4, size // 4 + 16)).encode())


def parts(protocol_name: str, size: int) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Headers and body of the same."""
    head, _, body = answer(protocol_name, size).partition(b"\r\n\r\n")
    lines = (line.partition(b": ") for line in head.split(b"\r\n")[1:])
    return tuple((name, value) for name, _, value in lines), body


@lru_cache(maxsize=64)
def stream(protocol_name: str, size: int, events: int) -> list[bytes]:
    """Head with the first event, then one chunk an event, the last with the stream's end."""
    texts = stream_parts(protocol_name, size, events)
    chunks = [b"%x\r\n%b\r\n" % (len(text), text) for text in (each.encode() for each in texts)]
    return [STREAM_HEAD + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


def stream_parts(protocol_name: str, size: int, events: int) -> list[str]:
    """The events of such a stream."""
    return _chat(size, events) if protocol_name == "chat" else _messages(size, events)


def _chat(size: int, events: int) -> list[str]:
    first = CHAT_EVENT % ('"role":"assistant","content":""', "null", "")
    words = [CHAT_EVENT % (f'"content":" word{n}"', "null", "") for n in range(events - 3)]
    usage = CHAT_USAGE % (size // 4, events, size // 4 + events)
    last = CHAT_EVENT % ("", '"stop"', usage)
    return [first, *words, last, "data: [DONE]\n\n"]


def _messages(size: int, events: int) -> list[str]:
    start = (
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"text","text":""}}\n\n'
    )
    words = [
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        f'"delta":{{"type":"text_delta","text":" word{n}"}}}}\n\n'
        for n in range(events - 5)
    ]
    stop = 'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    end = 'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    return [MESSAGE_START % (size // 4), start, *words, stop, MESSAGE_DELTA % events, end]
