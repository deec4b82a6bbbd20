import json
from collections.abc import Iterable, Iterator
from sys import getsizeof

import pytest

from accordion.model.conversation import Message, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.providers.models.tokenizer import DEFAULT_ENCODING, TiktokenCounter
from tests.archive.archive_setup import TENANT

CAPACITY = 1_000_000


@pytest.mark.parametrize("letter", ["a", "é", "’", "😀"])
def test_the_cache_of_written_messages_counts_their_bytes(letter: str) -> None:
    reader = WrittenMessageReader(CAPACITY)
    read = reader.reader_for(OpenAIChat(), TENANT)
    for number in range(100):
        text = letter + "a" * 20_000 + str(number)
        read(json.dumps({"role": "user", "content": text}, ensure_ascii=False).encode())
    taken = [getsizeof(message.wire) + getsizeof(message.parts[0].text) for _, message in reader._messages.items()]
    assert CAPACITY / 2 < sum(taken) <= CAPACITY


@pytest.mark.parametrize("letter", ["é", "’", "😀"])
def test_a_text_is_kept_without_its_utf8_form(letter: str) -> None:
    text, counter = letter + "words of a text " * 100, TiktokenCounter()
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": json.dumps(text)}}
    entries = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": text},
    ]
    read = WrittenMessageReader(CAPACITY).reader_for(OpenAIChat(), TENANT)
    body = json.dumps({"model": "any", "messages": entries}, ensure_ascii=False).encode()
    client = BodyReader().read(OpenAIChat(), body, TENANT).messages
    for message in [*client, *(read(each.wire) for each in client)]:
        for each in texts_of(message.parts):
            counter.count(each, DEFAULT_ENCODING)
            assert getsizeof(each) == getsizeof(each[:1] + each[1:])


def texts_of(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ToolResult):
            yield from texts_of(part.parts)
        elif isinstance(part, Text | Reasoning):
            yield part.text
        elif isinstance(part, ToolCall):
            yield part.arguments


def test_the_size_of_a_message_covers_every_text_in_it() -> None:
    texts = ["’" * 1_000, "é" * 1_000, "😀" * 1_000, "a" * 1_000]
    result = ToolResult("call", (Text(texts[0]), Text(texts[3])))
    parts = (Text(texts[0]), Reasoning(texts[1]), ToolCall("call", "read", texts[2]), result)
    message = Message(b"key", "user", parts, b"{}")
    taken = sum(map(getsizeof, [*texts, texts[0], texts[3]]))
    assert taken < message.size < taken + 2_000
