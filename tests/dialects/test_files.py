"""Files sent inline, in each dialect: what they are and how long, read from the files themselves."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.conversation import Media
from proxy.dialects.base import Dialect
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.messages import Messages
from proxy.dialects.responses import Responses
from tests.pdfs import packed, scanned

PDF = "application/pdf"
Put = Callable[[str, str], tuple[Dialect, dict[str, Any]]]


def chat(data: str, kind: str) -> tuple[Dialect, dict[str, Any]]:
    return ChatCompletions(), {"type": "file", "file": {"filename": "it", "file_data": f"data:{kind};base64,{data}"}}


def responses(data: str, kind: str) -> tuple[Dialect, dict[str, Any]]:
    return Responses(), {"type": "input_file", "filename": "it", "file_data": f"data:{kind};base64,{data}"}


def messages(data: str, kind: str) -> tuple[Dialect, dict[str, Any]]:
    return Messages(), {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}}


EACH = pytest.mark.parametrize("put", [chat, responses, messages])


def read(put: Put, data: bytes | str, kind: str = PDF) -> Media:
    dialect, part = put(data if isinstance(data, str) else base64.b64encode(data).decode(), kind)
    (found,) = dialect.message(json.dumps({"role": "user", "content": [part]}).encode()).parts
    assert isinstance(found, Media)
    return found


@EACH
@pytest.mark.parametrize("pdf", [scanned(10, 200_000), packed(10)])
def test_the_pages_of_a_pdf_are_read_from_it(put: Put, pdf: bytes) -> None:
    assert read(put, pdf) == Media("file", PDF, len(pdf), pages=10)
    assert read(put, pdf, "application/octet-stream").pages == 10


@EACH
def test_a_pdf_broken_into_lines_has_its_pages(put: Put) -> None:
    assert read(put, base64.encodebytes(scanned(10, 200_000)).decode()).pages == 10


@EACH
def test_a_pdf_that_cannot_be_read_has_none(put: Put) -> None:
    assert read(put, b"%PDF-1.7\n" + bytes(90_000)).pages == 0
    assert read(put, "JVBERi0xLjcK" + "A" * 1_048_577 + "=" * 7).pages == 0


def test_a_bare_base64_file_has_its_pages() -> None:
    data = base64.b64encode(scanned(3)).decode()
    part = {"type": "input_file", "filename": "a.PDF", "file_data": data}
    (found,) = Responses().message(json.dumps({"role": "user", "content": [part]}).encode()).parts
    assert found == Media("file", PDF, len(scanned(3)), pages=3)
