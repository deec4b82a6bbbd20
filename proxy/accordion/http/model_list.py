"""`GET /v1/models` with configured models: these first, then the provider's; and `GET /v1/models/{name}` for each."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing
from typing import Any

import msgspec

from accordion.model.errors import AccordionError
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Headers
from accordion.pipeline.relay import content_type_and_encoding
from accordion.protocols.content_encoding import decode_body
from accordion.protocols.model_name import model_in_target
from accordion.protocols.registry import family_for

# A provider's list takes some 100 KB. A larger one is ignored.
_MAX_LIST = 4 * 2**20
# The provider's refusal is passed on, so that a wrong key does not look valid.
_REFUSALS = (401, 403, 429)
_REPLACED = (b"content-length", b"content-encoding", b"content-type", b"etag")


def is_model_request(inbound: Inbound) -> bool:
    """Returns whether a request is for one model or for the first page of the model list."""
    if inbound.method != "GET" or not inbound.path.startswith("/v1/models"):
        return False
    is_first_page = (
        inbound.path == "/v1/models" and "after_id=" not in inbound.query and "before_id=" not in inbound.query
    )
    return is_first_page or model_in_target(inbound) is not None


async def answer_with_configured(outbound: Outbound, inbound: Inbound, models: Collection[str]) -> Outbound:
    """Returns the provider's answer to a model request with the configured models."""
    anthropic = family_for(inbound.path, inbound.headers_by_name) == "anthropic"
    name = model_in_target(inbound)
    if name is None:
        names = tuple(name for name in models if "*" not in name)
        return await _add_configured(outbound, names, anthropic=anthropic) if names else outbound
    return await _rename_to_configured(outbound, name, anthropic=anthropic) if name in models else outbound


async def _add_configured(outbound: Outbound, names: tuple[str, ...], *, anthropic: bool) -> Outbound:
    """Adds the configured models before the provider's list, or returns them alone if the provider gives no list.

    A refusal by the provider is passed on, and so is a list of another shape, such as Codex's catalog. The shape is the
    client's: OpenAI's list object or Anthropic's page.
    """
    if outbound.status in _REFUSALS and not isinstance(outbound.body, bytes):
        return outbound
    provider_list, body = await _read_object(outbound)
    if provider_list is not None and not _is_list(provider_list):
        return Outbound(outbound.status, outbound.headers, body)
    page = provider_list if provider_list is not None else {"data": []}
    configured = [_anthropic_model(name) if anthropic else _openai_model(name) for name in names]
    page["data"] = [*configured, *(entry for entry in page["data"] if entry.get("id") not in names)]
    if anthropic:
        page.setdefault("has_more", False)
        page["first_id"] = names[0]
        page.setdefault("last_id", page["data"][-1]["id"])
    else:
        page.setdefault("object", "list")
    return _json_outbound(page, outbound.headers if provider_list is not None else ())


async def _rename_to_configured(outbound: Outbound, name: str, *, anthropic: bool) -> Outbound:
    """Returns the provider's description of a model under its configured name.

    Makes one if the provider gives none, or gives it in another protocol's shape.
    """
    if outbound.status in _REFUSALS and not isinstance(outbound.body, bytes):
        return outbound
    configured = _anthropic_model(name) if anthropic else _openai_model(name)
    description, _ = await _read_object(outbound)
    if description is None or description.get("type" if anthropic else "object") != "model":
        return _json_outbound(configured, ())
    return _json_outbound({**description, "id": name}, outbound.headers)


def _json_outbound(page: dict[str, Any], headers: Headers) -> Outbound:
    body = msgspec.json.encode(page)
    other_headers = tuple(pair for pair in headers if pair[0].lower() not in _REPLACED)
    return Outbound(
        200, (*other_headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))), body
    )


def _is_list(page: dict[str, Any]) -> bool:
    """Whether an answer is a list of models as OpenAI and Anthropic write it."""
    data = page.get("data")
    return isinstance(data, list) and all(isinstance(entry, dict) for entry in data)


async def _read_object(outbound: Outbound) -> tuple[dict[str, Any] | None, bytes]:
    """Reads the JSON object of the provider's response, None if there is none, and its bytes."""
    chunks, size = list[bytes](), 0
    if isinstance(outbound.body, bytes):
        return None, outbound.body
    try:
        async with aclosing(outbound.body) as body:
            async for chunk in body:
                chunks.append(chunk)
                size += len(chunk)
                if size > _MAX_LIST:
                    return None, b""
        # Also an error is read to its end, so that the ledger has it and its connection can be reused.
        raw = b"".join(chunks)
        decoded = decode_body(raw, content_type_and_encoding(outbound.headers)[1], _MAX_LIST)
        page = msgspec.json.decode(decoded or b"") if outbound.status == 200 else None
    except (AccordionError, msgspec.MsgspecError, UnicodeError):
        return None, b""
    return page if isinstance(page, dict) else None, raw


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "accordion"}


def _anthropic_model(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
