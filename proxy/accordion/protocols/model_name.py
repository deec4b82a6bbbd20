"""Finds and replaces the model of a request that no protocol reads: in its target, a form (RFC 7578) or a JSON
document.

Only the beginning of a large upload is available. A model named after that is not found.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, unquote_plus

from accordion.model.http import Inbound
from accordion.protocols.json_spans import find_model, with_model

_MULTIPART_FORM = re.compile(rb"\s*multipart/form-data\s*;", re.IGNORECASE)
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
# All known clients write the field's name first.
_MODEL = re.compile(rb'^content-disposition:\s*form-data\s*;\s*name=(?:"model"|model)\s*(?:;.*)?\r?$', re.I | re.M)
_QUERY = re.compile(r"(?<![^&])model=([^&]*)")
_MODELS, _REALTIME = "/v1/models/", "/v1/realtime"
MODEL_METHOD = re.compile(
    r"(/v1(?:(?:alpha|beta)\d*)?/(?:[^?]*/)?models/)([^/?]+?)((?::|%3A)(?:generateContent|streamGenerateContent|countTokens"
    r"|batchGenerateContent|embedContent|batchEmbedContents|asyncBatchEmbedContent|predict|predictLongRunning))"
)
"""A method of a model in Google's API: the path before the model, the model, and the method with its colon."""


def model_in_target(inbound: Inbound) -> str | None:
    """Returns the model in a request's target: of a lookup (`GET /v1/models/…`), a method of a model (Google's
    `POST /v1beta/models/…:generateContent`), or a realtime session. None for other targets and methods."""
    path = inbound.path
    if inbound.method == "POST" and (match := MODEL_METHOD.fullmatch(path)):
        return unquote(match[2])
    if path.startswith(_MODELS):
        return unquote(path[len(_MODELS) :]) or None if inbound.method == "GET" else None
    is_realtime = path == _REALTIME or path.startswith(f"{_REALTIME}/")
    if is_realtime and (match := _QUERY.search(inbound.query)):
        return unquote_plus(match[1]) or None
    return None


def replace_model_in_target(target: str, model: str) -> str:
    """Replaces the model in a target in which `model_in_target` finds one; all else stays as it was."""
    path, question_mark, query = target.partition("?")
    if match := MODEL_METHOD.fullmatch(path):
        return f"{match[1]}{quote(model, safe='')}{match[3]}{question_mark}{query}"
    if path.startswith(_MODELS):
        return f"{_MODELS}{quote(model, safe=':')}{question_mark}{query}"
    return path + question_mark + _QUERY.sub(lambda _: f"model={quote(model, safe='')}", query, count=1)


def model_in_body(body: bytes, content_type: bytes) -> str | None:
    """Returns the model in a body, or in the beginning of one; None where there is none."""
    start, end = _value_span(body, content_type)
    if not end:
        return find_model(body)
    try:
        return body[start:end].decode() or None
    except UnicodeDecodeError:
        return None


def replace_model_in_body(body: bytes, content_type: bytes, model: str) -> bytes:
    """Replaces the model in a body in which `model_in_body` finds one; every other byte stays as it was."""
    start, end = _value_span(body, content_type)
    if not end:
        return with_model(body, model)
    return body[:start] + model.encode() + body[end:]


def _value_span(body: bytes, content_type: bytes) -> tuple[int, int]:
    """Returns the span of the value of a form's first field `model`; `(0, 0)` where it is not there completely."""
    boundary = _BOUNDARY.search(content_type) if _MULTIPART_FORM.match(content_type) else None
    if boundary is None:
        return 0, 0
    delimiter = b"\r\n--" + (boundary[1] or boundary[2])
    # The first delimiter may be at the very beginning, without a line end before it.
    first = -2 if body.startswith(delimiter[2:]) else body.find(delimiter)
    position = first + len(delimiter)
    while first != -1 and not body.startswith(b"--", position):
        head = body.find(b"\r\n\r\n", position)
        end = body.find(delimiter, head + 4)
        if head < 0 or end < 0:
            break
        if _MODEL.search(body, position, head) is not None:
            return head + 4, end
        position = end + len(delimiter)
    return 0, 0
