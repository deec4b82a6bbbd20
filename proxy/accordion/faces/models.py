"""`GET /v1/models` where models are configured: they come first, then what the provider lists. And each by its name."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec

from accordion.core.errors import AccordionError
from accordion.core.http import Outbound
from accordion.core.ports import Headers
from accordion.dialects.encodings import Decoder
from accordion.relay import content

# A provider's list is some 100 KB; of a larger one nothing is shown.
_MOST = 4 * 2**20
# A wrong key must not look right.
_TELLING = (401, 403, 429)
_REPLACED = (b"content-length", b"content-encoding", b"content-type", b"etag")


async def with_configured(out: Outbound, names: tuple[str, ...], *, anthropic: bool) -> Outbound:
    """The provider's list with the configured models before it; these alone where the provider gives no list.

    A provider that refuses the caller is not talked over. The shape is that of whoever asks: OpenAI's list object, or
    Anthropic's page.
    """
    if out.status in _TELLING and not isinstance(out.body, bytes):
        return out
    listed = await _listed(out)
    page = listed if listed is not None else {"data": []}
    own = [_anthropic(name) if anthropic else _openai(name) for name in names]
    page["data"] = [*own, *(entry for entry in page["data"] if entry.get("id") not in names)]
    if anthropic:
        page.setdefault("has_more", False)
        page["first_id"] = names[0]
        page.setdefault("last_id", page["data"][-1]["id"])
    else:
        page.setdefault("object", "list")
    return _told(page, out.headers if listed is not None else ())


async def as_configured(out: Outbound, name: str, *, anthropic: bool) -> Outbound:
    """What the provider says of a configured model, under the name that it has here. Where it says nothing, or not in
    the shape of whoever asks, what is known here."""
    if out.status in _TELLING and not isinstance(out.body, bytes):
        return out
    told, own = await _page(out), _anthropic(name) if anthropic else _openai(name)
    if told is None or told.get("type" if anthropic else "object") != "model":
        return _told(own, ())
    return _told({**told, "id": name}, out.headers)


def _told(page: dict[str, Any], headers: Headers) -> Outbound:
    body = msgspec.json.encode(page)
    kept = tuple(pair for pair in headers if pair[0].lower() not in _REPLACED)
    return Outbound(200, (*kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))), body)


async def _listed(out: Outbound) -> dict[str, Any] | None:
    page = await _page(out)
    data = page.get("data") if page is not None else None
    return page if isinstance(data, list) and all(isinstance(entry, dict) for entry in data) else None


async def _page(out: Outbound) -> dict[str, Any] | None:
    """The object that the provider answered with; None where it gave none."""
    decoder, pieces, size = Decoder(content(out.headers)[1], _MOST), [], 0
    if isinstance(out.body, bytes):
        return None
    try:
        async with aclosing(out.body) as body:
            async for piece in body:
                pieces.append(decoder.feed(piece))
                size += len(pieces[-1])
                if size > _MOST:
                    return None
        # Read to its end in any case, so that it is in the ledger and its connection can serve again.
        page = msgspec.json.decode(b"".join(pieces)) if out.status == 200 else None
    except (AccordionError, msgspec.MsgspecError, UnicodeError):
        return None
    return page if isinstance(page, dict) else None


def _openai(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "accordion"}


def _anthropic(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
