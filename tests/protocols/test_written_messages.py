import json
from sys import getsizeof

import pytest

from accordion.model.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.written_messages import WrittenMessageReader
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


def test_the_size_of_a_message_covers_every_text_in_it() -> None:
    texts = ["’" * 1_000, "é" * 1_000, "😀" * 1_000, "a" * 1_000]
    result = ToolResult("call", (Text(texts[0]), Text(texts[3])))
    parts = (Text(texts[0]), Reasoning(texts[1]), ToolCall("call", "read", texts[2]), result)
    message = Message(b"key", "user", parts, b"{}")
    taken = sum(map(getsizeof, [*texts, texts[0], texts[3]]))
    assert taken < message.size < taken + 2_000
