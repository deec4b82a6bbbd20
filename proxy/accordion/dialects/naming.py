"""The model that a request names where no dialect reads it: in its target, in a form (RFC 7578) or a JSON document.

Of a large upload only the beginning is there. What names its model later than that names none.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, unquote_plus

from accordion.core.http import Inbound
from accordion.dialects.spans import named_model, with_model

_FORM = re.compile(rb"\s*multipart/form-data\s*;", re.IGNORECASE)
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
# All known clients write the name first.
_MODEL = re.compile(rb'^content-disposition:\s*form-data\s*;\s*name=(?:"model"|model)\s*(?:;.*)?\r?$', re.I | re.M)
_QUERY = re.compile(r"(?<![^&])model=([^&]*)")
_MODELS, _REALTIME = "/v1/models/", "/v1/realtime"


def named_by(inbound: Inbound) -> str | None:
    """The model that a request's target names: one that is looked up, or that is spoken with. None where it names none,
    or would change what it names."""
    path = inbound.path
    if path.startswith(_MODELS):
        return unquote(path[len(_MODELS) :]) or None if inbound.method == "GET" else None
    spoken = path == _REALTIME or path.startswith(f"{_REALTIME}/")
    if spoken and (found := _QUERY.search(inbound.query)):
        return unquote_plus(found[1]) or None
    return None


def renamed_by(target: str, model: str) -> str:
    """The same with another model named, and all else as it was; for what `named_by` found one in."""
    path, mark, query = target.partition("?")
    if path.startswith(_MODELS):
        return f"{_MODELS}{quote(model, safe=':')}{mark}{query}"
    return path + mark + _QUERY.sub(lambda _: f"model={quote(model, safe='')}", query, count=1)


def named_in(body: bytes, kind: bytes) -> str | None:
    """The model that a body, or the beginning of one, names; None where it names none. `kind` is its Content-Type."""
    start, end = _value_span(body, kind)
    if not end:
        return named_model(body)
    try:
        return body[start:end].decode() or None
    except UnicodeDecodeError:
        return None


def renamed_in(body: bytes, kind: bytes, model: str) -> bytes:
    """The same with another model named, and every other byte as it was; for what `named_in` found one in."""
    start, end = _value_span(body, kind)
    if not end:
        return with_model(body, model)
    return body[:start] + model.encode() + body[end:]


def _value_span(body: bytes, kind: bytes) -> tuple[int, int]:
    """Where the value of a form's first field `model` stands; `(0, 0)` where it does not stand there whole."""
    boundary = _BOUNDARY.search(kind) if _FORM.match(kind) else None
    if boundary is None:
        return 0, 0
    mark = b"\r\n--" + (boundary[1] or boundary[2])
    # The first part may stand at the very beginning, where no line ends before it.
    first = -2 if body.startswith(mark[2:]) else body.find(mark)
    at = first + len(mark)
    while first != -1 and not body.startswith(b"--", at):
        head = body.find(b"\r\n\r\n", at)
        end = body.find(mark, head + 4)
        if head < 0 or end < 0:
            break
        if _MODEL.search(body, at, head) is not None:
            return head + 4, end
        at = end + len(mark)
    return 0, 0
