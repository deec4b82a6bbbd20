"""Reads the forms of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from accordion.http.api_requests import read_body
from accordion.model.errors import BadRequest

Form = Mapping[str, str]
_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_BYTES: Final = 64 * 1024
_MAX_FIELDS: Final = 20


async def read_form(request: Request) -> dict[str, str]:
    """Reads the fields of a form. Raises BadRequest and BodyTooLarge."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise BadRequest(f"Send the form as {_TYPE}.", param="content-type")
    try:
        text = (await read_body(request, _MAX_BYTES)).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise BadRequest(f"The form cannot be read: {error}.", param="body") from error
