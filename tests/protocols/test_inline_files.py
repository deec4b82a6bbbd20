"""Files sent inline, in each protocol: what they are and how long, read from the files themselves."""

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from accordion.accounting.media_tokens import media_rules
from accordion.model.conversation import Media, Opaque
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.base import WireProtocol
from accordion.protocols.gemini.protocol import Gemini
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from tests.pdfs import packed_pdf, scanned_pdf

PDF = "application/pdf"
Put = Callable[[str, str], tuple[WireProtocol, dict[str, Any]]]


def chat(data: str, kind: str) -> tuple[WireProtocol, dict[str, Any]]:
    return OpenAIChat(), {"type": "file", "file": {"filename": "it", "file_data": f"data:{kind};base64,{data}"}}


def responses(data: str, kind: str) -> tuple[WireProtocol, dict[str, Any]]:
    return OpenAIResponses(), {"type": "input_file", "filename": "it", "file_data": f"data:{kind};base64,{data}"}


def messages(data: str, kind: str) -> tuple[WireProtocol, dict[str, Any]]:
    return AnthropicMessages(), {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}}


def gemini(data: str, kind: str) -> tuple[WireProtocol, dict[str, Any]]:
    return Gemini(), {"inlineData": {"mimeType": kind, "data": data}}


EACH = pytest.mark.parametrize("put", [chat, responses, messages, gemini])


def read(put: Put, data: bytes | str, kind: str = PDF) -> Media:
    protocol, part = put(data if isinstance(data, str) else base64.b64encode(data).decode(), kind)
    content = "parts" if protocol.name == "gemini" else "content"
    (found,) = protocol.read_message(json.dumps({"role": "user", content: [part]}).encode()).parts
    assert isinstance(found, Media)
    return found


@EACH
@pytest.mark.parametrize("pdf", [scanned_pdf(10, 200_000), packed_pdf(10)])
def test_the_pages_of_a_pdf_are_read_from_it(put: Put, pdf: bytes) -> None:
    assert read(put, pdf) == Media("file", PDF, len(pdf), pages=10)
    assert read(put, pdf, "application/octet-stream").pages == 10


@EACH
def test_a_pdf_broken_into_lines_has_its_pages(put: Put) -> None:
    assert read(put, base64.encodebytes(scanned_pdf(10, 200_000)).decode()).pages == 10


@EACH
def test_a_pdf_that_cannot_be_read_has_none(put: Put) -> None:
    assert read(put, b"%PDF-1.7\n" + bytes(90_000)).pages == 0
    assert read(put, "JVBERi0xLjcK" + "A" * 1_048_577 + "=" * 7).pages == 0


CODE = ("def handler(request):\n    return request.bödy\n" * 3_000).encode()


@EACH
@pytest.mark.parametrize(
    ("kind", "read_as"),
    [
        ("text/x-python", "text/x-python"),
        ("application/javascript", "text/javascript"),
        ("application/x-sh", "text/x-sh"),
        ("application/json", "text/json"),
        ("application/octet-stream", "text/plain"),
        ("model/odd", "text/plain"),
        ("", "text/plain"),
    ],
)
def test_a_file_that_is_text_is_known_as_such_whatever_it_is_called(put: Put, kind: str, read_as: str) -> None:
    assert read(put, CODE, kind) == Media("file", read_as, len(CODE))
    assert media_rules("gpt-5").tokens(read(put, CODE, kind)) == -(-len(CODE) // 4)


@EACH
def test_a_text_cut_within_a_character_at_the_end_of_what_is_looked_at_is_text(put: Put) -> None:
    for start in ("", "a", "aa"):
        assert read(put, (start + "€" * 40_000).encode(), "application/odd").media_type == "text/odd"


@EACH
@pytest.mark.parametrize("data", [b"PK\x03\x04" + bytes(9_000), b"abc\0def", b"\xff\xfea\0b\0", b"caf\xe9 " * 50])
def test_a_file_that_is_no_text_keeps_its_type(put: Put, data: bytes) -> None:
    assert read(put, data, "application/zip") == Media("file", "application/zip", len(data))


BLOB = base64.b64encode(random.Random(1).randbytes(9_000)).decode()


@pytest.mark.parametrize("held", [BLOB, f"data:video/mp4;base64,{BLOB}", BLOB.replace("A", "A\n")])
@pytest.mark.parametrize("protocol", [OpenAIChat(), OpenAIResponses(), AnthropicMessages()])
def test_base64_in_a_part_that_is_not_understood_is_told_from_the_rest_of_it(protocol: WireProtocol, held: str) -> None:
    part = {"type": "hologram", "of": {"sides": [held, "front, in short words. " * 100]}, "also": held, "id": "A" * 99}
    (found,) = protocol.read_message(json.dumps({"role": "user", "content": [part]}).encode()).parts
    assert found == Opaque("hologram", len(msgspec.json.encode(part)), (len(held), len(held)))


def test_base64_in_an_item_that_is_not_understood_is_told_too() -> None:
    item = json.dumps({"type": "recording", "call_id": "c", "video": BLOB}).encode()
    assert OpenAIResponses().read_message(item).parts == (Opaque("recording", len(item), (len(BLOB),)),)


def test_what_only_begins_like_base64_does_not_keep_one_busy() -> None:
    part = {"type": "hologram", "text": "a" * 2_000 + "\n" * 1_000_000 + "!"}
    (found,) = AnthropicMessages().read_message(json.dumps({"role": "user", "content": [part]}).encode()).parts
    assert isinstance(found, Opaque)
    assert found.runs == ()


def test_a_bare_base64_file_has_its_pages() -> None:
    data = base64.b64encode(scanned_pdf(3)).decode()
    part = {"type": "input_file", "filename": "a.PDF", "file_data": data}
    (found,) = OpenAIResponses().read_message(json.dumps({"role": "user", "content": [part]}).encode()).parts
    assert found == Media("file", PDF, len(scanned_pdf(3)), pages=3)
