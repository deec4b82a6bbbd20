"""Recognizes a provider's "too long" errors, and reads the limit from them.

One grammar (overflow_text.py) serves all providers, since gateways pass on each other's errors: as text, in strings
within JSON, in arrays and in streams. Rate limits, limits of the output alone, and limits of bytes or counts are not
overflows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from accordion.accounting.overflow_text import names_other_limit, read_text

LONGEST_BODY = 65_536
"""Maximum number of characters of text that are searched."""
LONGEST_JSON = 1 << 20
"""Maximum number of characters of a body that is parsed as JSON: some servers echo the whole request in errors."""
DEEPEST = 8
MOST_NODES = 500
"""Maximum depth and number of JSON values that are read."""

OTHER_ERROR_STATUSES = frozenset({401, 402, 403, 404, 405, 407, 408, 409, 410, 415, 429, 451, 503, 504, 529})
"""Statuses that never mean an overflow, whatever the text."""

_TOO_LARGE_CODE = "request too large"
"""Anthropic's code for a body with too many bytes: a compaction helps there, too."""
_TEXT_FIELD = re.compile(
    r"(?:message|msg|errors?|details?|raw|response|resp|metadata|cause)$|^(?:code|type|stop_reason|n_ctx|n_prompt_tokens"
    r"|delta)$",
    re.IGNORECASE,
)
"""Matches the name of a field with an error's text, code or figures, of any server. Others may echo the request."""
_CODE_FIELDS = frozenset({"code", "type", "stop_reason"})
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")

# The texts of a 413 from servers and gateways before the provider, most of them in HTML.
_TOO_LARGE = re.compile(r"\b(?:entity|payload|content|body) (?:is )?too (?:large|long)", re.IGNORECASE)
_OLLAMA_ERROR = "no user query found in messages"  # Ollama drops the oldest messages silently and then fails with a 500


@dataclass(frozen=True, slots=True)
class WindowOverflow:
    """An error that says that a request was too long.

    `limit` is the window or input limit that it names, `requested` the size of the request, and `output` the requested
    output, which counts towards the limit. All are tokens, None if the error does not say; an error that names only
    the sum has it in `requested`. `is_guessed`: the error did not mention a window, and only its status and our own
    estimate suggest an overflow.
    """

    limit: int | None = None
    requested: int | None = None
    output: int | None = None
    is_guessed: bool = False
    words: str = field(default="", compare=False)
    """The words of the error that were recognized; empty if it has none."""

    def is_quoted_from(self, sent: bytes) -> bool:
        """Whether the request contains the words too, so that the error may only quote it."""
        return bool(self.words) and self.words.encode() in sent

    def without_quoted_figures(self, sent: bytes) -> WindowOverflow:
        """Returns the overflow without its figures if they may be a quotation from the request."""
        return WindowOverflow(is_guessed=self.is_guessed, words=self.words) if self.is_quoted_from(sent) else self


def read_overflow(status: int, body: str, *, is_near_window: bool = False) -> WindowOverflow | None:
    """Returns the overflow that an error reports, or None if it is another error.

    `body` is a response's body, an event of a stream (HTTP 200), or the text of an error. A 400 or 413 with an empty
    body (Cerebras, Mistral), and a 413 whose text only repeats the status, count only if `is_near_window` says that the
    request is near its window by our own estimate.
    """
    if status in OTHER_ERROR_STATUSES:
        return None
    if not body.strip():
        return WindowOverflow(is_guessed=True) if is_near_window and status in (400, 413) else None
    texts, codes, sizes = _read_error(body if len(body) <= LONGEST_JSON else body[:LONGEST_BODY])
    codes = {_CAMEL_CASE.sub(" ", code).replace("_", " ") for code in codes}
    if any(map(names_other_limit, (*texts, *codes))):
        return None
    overflows = [
        WindowOverflow(found.limit, found.requested, found.output, words=found.words)
        for found in map(read_text, texts)
        if found is not None
    ]
    is_coded = _TOO_LARGE_CODE in codes or any(map(read_text, codes))
    if not overflows and (is_coded or (status >= 500 and any(_OLLAMA_ERROR in text for text in texts))):
        overflows = [WindowOverflow()]
    if overflows:
        # A gateway's own text may be general, while the error that it passes on names the limit. llama.cpp names it in
        # separate fields, whatever its text (its pull request 15780).
        overflow = next((each for each in overflows if each.limit), overflows[0])
        limit, requested = sizes.get("n_ctx"), sizes.get("n_prompt_tokens")
        return overflow if overflow.limit else replace(overflow, limit=limit, requested=overflow.requested or requested)
    if is_near_window and status == 413 and any(_TOO_LARGE.search(text) for text in texts):
        return WindowOverflow(is_guessed=True)
    return None


def _read_error(body: str) -> tuple[list[str], set[str], dict[str, int]]:
    """Returns all texts, all codes, and the sizes given as numbers."""
    texts, codes, sizes = [], set(), {}
    remaining = LONGEST_BODY
    for key, value in _walk(body):
        if isinstance(value, str) and key in _CODE_FIELDS:
            codes.add(value)
        elif isinstance(value, str):
            texts.append(value[:remaining])
            remaining -= len(texts[-1])
        elif key in ("n_ctx", "n_prompt_tokens") and type(value) is int and 0 < value < 2**53:
            sizes[key] = value
    return texts, codes, sizes


def _walk(body: str) -> Iterator[tuple[str, Any]]:
    """Yields the relevant leaves with their field names. Strings that contain JSON are parsed too.

    Fields that echo the request are left out.
    """
    queue: deque[tuple[str, Any, int]] = deque([("message", body, 0)])
    node_count = 0
    while queue and node_count < MOST_NODES:
        node_count += 1
        key, value, depth = queue.popleft()
        parsed = _parse_embedded_json(value) if isinstance(value, str) and key not in _CODE_FIELDS else value
        if isinstance(parsed, dict | list) and depth >= DEEPEST:
            continue
        if isinstance(parsed, list):
            queue += [(key, item, depth + 1) for item in islice(parsed, MOST_NODES)]
        elif isinstance(parsed, dict):
            queue += [(name, item, depth + 1) for name, item in parsed.items() if _TEXT_FIELD.search(name)]
        else:
            yield key, parsed


def _parse_embedded_json(text: str) -> Any:
    """Returns the JSON in a string or in the last event of a stream, else the string itself."""
    stripped = text.strip()
    if stripped.startswith(("event:", "data:")):
        stripped = stripped.rsplit("data:", 1)[-1].strip()
    start = stripped.find("{")
    candidates = (stripped, stripped[start:]) if start > 0 else (stripped,)
    for candidate in candidates:
        if candidate[:1] in ("{", "["):
            try:
                return msgspec.json.decode(candidate)
            except (msgspec.DecodeError, RecursionError):
                continue
    return text
