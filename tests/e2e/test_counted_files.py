"""What only looks large goes on as it came: files count by what is in them, not by their bytes."""

import base64
import json
import random
from typing import Any

from tests.e2e.protocol_samples import CHAT, EACH, GEMINI, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.raw_client import Reply, post
from tests.loopback import replies_json
from tests.pdfs import scanned_pdf
from tests.proxy_process import Proxy
from tests.writers import LISTS


def part(protocol: ProtocolSamples, pdf: bytes) -> dict[str, Any]:
    data = base64.b64encode(pdf).decode()
    url = "data:application/pdf;base64," + data
    return {
        GEMINI.name: {"inlineData": {"mimeType": "application/pdf", "data": data}},
        CHAT.name: {"type": "file", "file": {"filename": "scan.pdf", "file_data": url}},
        RESPONSES.name: {"type": "input_file", "filename": "scan.pdf", "file_data": url},
        MESSAGES.name: {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": data},
        },
    }[protocol.name]


async def asked(proxy: Proxy, protocol: ProtocolSamples, *parts: dict[str, Any]) -> tuple[Reply, bool]:
    """The answer, and whether the provider saw the request as it came."""
    question = "What does it say?"
    if protocol is GEMINI:
        entry = {"role": "user", "parts": [*parts, {"text": question}]}
    else:
        text = {"type": "input_text" if protocol is RESPONSES else "text", "text": question}
        entry = {"role": "user", "content": [*parts, text]}
    body = json.dumps(json.loads(protocol.body()) | {LISTS[protocol.name]: [entry]}).encode()
    # What would be reported would correct the counts of other tests.
    async with proxy.provider(replies_json({})) as provider:
        reply = await post(proxy, protocol.path, body)
    return reply, [request.body for request in provider.requests] == [body]


@EACH
async def test_a_scan_of_ten_pages_goes_on_as_it_came(proxy: Proxy, protocol: ProtocolSamples):
    reply, untouched = await asked(proxy, protocol, part(protocol, scanned_pdf(10, 450_000)))
    assert reply.status == 200
    assert untouched
    # Gemini counts 258 tokens for a page.
    least = 2_580 if protocol is GEMINI else 15_000
    assert least < int(reply.header("x-accordion-tokens") or 0) < 35_000
    assert reply.header("x-accordion-compaction") is None


@EACH
async def test_a_film_of_a_kind_that_nobody_knows_goes_on_as_it_came(proxy: Proxy, protocol: ProtocolSamples):
    film = base64.b64encode(random.Random(1).randbytes(1_200_000)).decode()
    kind = {"mimeType": "film/odd", "data": film} if protocol is GEMINI else {"type": "base64", "data": film}
    odd = {"inlineData": kind} if protocol is GEMINI else {"type": "film", "source": kind}
    reply, untouched = await asked(proxy, protocol, odd)
    assert reply.status == 200
    assert untouched
    assert int(reply.header("x-accordion-tokens") or 0) < 6_000


@EACH
async def test_what_is_not_understood_never_has_a_request_refused(proxy: Proxy, protocol: ProtocolSamples):
    reply, untouched = await asked(proxy, protocol, {"type": "points", "at": [[0.125, 0.25]] * 120_000})
    assert reply.status == 200
    assert untouched
