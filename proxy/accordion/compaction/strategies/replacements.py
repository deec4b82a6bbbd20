"""What may be configured to stand in place of a result: a template, or a function."""

from __future__ import annotations

import importlib
import logging
import re
import string
from collections.abc import Callable
from functools import partial

_log = logging.getLogger("accordion")

FIELDS = ("tool_name", "call_id", "result_length", "artifact_id")

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Writer = Callable[[str, str, str, str], str | None]
"""Of a tool's name, the call id, the result's text and its artifact id; None where the result is to stay."""


def writer_of(replacement: str) -> Writer:
    """What a template, or the name `module:function`, stands for. Raises ValueError where it is wrong."""
    if _FUNCTION.fullmatch(replacement):
        return partial(_called, _imported(replacement))
    try:
        for _, name, spec, conversion in string.Formatter().parse(replacement):
            if name is not None and (name not in FIELDS or spec or conversion):
                allowed = ", ".join(f"{{{field}}}" for field in FIELDS)
                raise ValueError(f"unknown placeholder {{{name}}}; there are {allowed}")
    except ValueError as error:
        raise ValueError(f"the template is wrong: {error}") from None
    return partial(_formatted, replacement)


def _formatted(template: str, tool_name: str, call_id: str, text: str, artifact: str) -> str:
    return template.format(tool_name=tool_name, call_id=call_id, result_length=len(text), artifact_id=artifact)


def _called(function: Callable[[str, str, str], object], name: str, call_id: str, text: str, _kept: str) -> str | None:
    """A failure is one result's own: it stays as it is."""
    try:
        written = function(name, call_id, text)
    except Exception as error:
        # What it says may quote the conversation.
        _log.error(
            "a replacement function failed; the result of %r stays in the request: %s", name, type(error).__name__
        )
        return None
    if isinstance(written, str):
        return written
    _log.error("a replacement function returned no text; the result of %r stays in the request", name)
    return None


def _imported(named: str) -> Callable[[str, str, str], object]:
    module, _, name = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ValueError(f"{named} cannot be imported: {error}") from None
    if not callable(found):
        raise ValueError(f"{named} is not a function")
    return found  # type: ignore[no-any-return]  # what it gives is checked where it is called
