"""Recognizes a provider's "too long" errors, and reads the limit from them.

One list of phrases serves all providers, since gateways pass on each other's errors: as text, in strings within JSON,
in arrays and in streams. Rate limits, limits of the output alone, and limits of bytes or counts are not overflows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any

import msgspec

LONGEST_BODY = 65_536
"""Maximum number of characters of text that are searched."""
LONGEST_JSON = 1 << 20
"""Maximum number of characters of a body that is parsed as JSON: some servers echo the whole request in errors."""
DEEPEST = 8
MOST_NODES = 500
"""Maximum depth and number of JSON values that are read."""

OTHER_ERROR_STATUSES = frozenset({401, 402, 403, 404, 405, 407, 408, 409, 410, 415, 429, 451, 503, 504, 529})
"""Statuses that never mean an overflow, whatever the text."""

CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "request_too_large",
        "tokens_limit_reached",
    }
)
_TEXT_FIELDS = frozenset(
    {"message", "error", "errors", "detail", "details", "msg", "raw", "response", "metadata", "cause"}
)
_CODE_FIELDS = frozenset({"code", "type", "stop_reason"})

# A whole number, with the k or m that some providers write for thousands and millions.
_FIGURE = r"\d[\d,_]{0,14}(?:(?:\.\d{1,6})?[km]\b)?(?![.,]?\d|[km]\b)"
_UNITS = {"k": 1_000, "m": 1_000_000}
_LIMIT, _SIZE = rf"(?P<limit>{_FIGURE})", rf"(?P<requested>{_FIGURE})"
_OUTPUT, _TOTAL = rf"(?P<output>{_FIGURE})", rf"(?P<total>{_FIGURE})"
_NO_UNIT = r"(?! ?(?:[kmg]i?b|bytes|char|images|pages))"

# The first match decides. Sources: reference texts of the providers' errors, with one test for each.
_PHRASES = (
    rf"prompt is too long:? {_SIZE} tokens > {_LIMIT} maximum",  # Anthropic
    rf"input length and `?max_tokens`? exceed context limit: {_SIZE} \+ {_OUTPUT} > {_LIMIT}",
    rf"input token count(?: \(?{_SIZE}\)?)? exceeds the maximum number of tokens allowed \(?{_LIMIT}\)?",  # Gemini
    rf"request \({_SIZE} tokens\) exceeds the available context size \({_LIMIT} tokens\)",  # llama.cpp
    rf"input tokens exceed the configured limit of {_LIMIT} tokens(?:.{{0,40}}?resulted in {_SIZE})?",  # OpenAI
    rf"current length is {_SIZE} while limit is {_LIMIT}",  # Cerebras (cline#5140)
    rf"maximum context length is {_LIMIT}.{{0,200}}?requested {_OUTPUT} output tokens"
    rf"(?: and your prompt contains (?:at least )?{_SIZE} input tokens)?",  # vLLM
    rf"is too large: {_OUTPUT}\..{{0,60}}?maximum context length is {_LIMIT} tokens and your request has {_SIZE}",
    rf"maximum context length is {_LIMIT}.{{0,200}}?requested (?:about )?{_TOTAL} tokens"
    rf" \([^()]{{0,200}}?{_OUTPUT} (?:in|for) the (?:completion|output)\)",  # OpenAI, DeepSeek, OpenRouter
    rf"maximum context length of {_LIMIT}.{{0,200}}?: {_SIZE} tokens from the input messages and {_OUTPUT} tokens"
    r" for the completion",  # SGLang
    rf"maximum context length (?:is|of) {_LIMIT}.{{0,200}}?(?:resulted in|requested(?: about| a total of)?|"
    rf"request has|contains(?: at least)?) {_SIZE}",  # OpenAI, OpenRouter, vLLM, SGLang
    rf"prompt is too long: {_SIZE}, model maximum context length: {_LIMIT}",  # Fireworks
    rf"(?:input length \(?{_SIZE}\)? )?exceeds (?:the )?(?:model'?s )?maximum (?:context|allowed input) length"
    rf" (?:of )?\(?{_LIMIT}{_NO_UNIT}",  # Poolside (pi#4943), proxies (pi#5677)
    rf"maximum context length (?:is|of|:) ?{_LIMIT}",
    rf"prompt contains {_SIZE} tokens.{{0,80}}? {_LIMIT} maximum context length",  # Mistral
    rf"maximum prompt length is {_LIMIT}(?:.{{0,60}}?contains {_SIZE})?",  # xAI
    rf"\b(?:prompt|input|context)\b[\w ]{{0,30}}?(?: of {_SIZE})? exceeds the limit of {_LIMIT}"
    rf"{_NO_UNIT}",  # Copilot
    rf"exceeded model token limit(?:: {_LIMIT}(?: \(requested: {_SIZE}\))?)?",  # Moonshot
    rf"inputs` tokens \+ `max_new_tokens` must be <= {_LIMIT}(?:.{{0,20}}?given: {_SIZE}"
    rf"(?:.{{0,30}}? and {_OUTPUT})?)?",  # TGI
    rf"tokens in the prompt cannot exceed {_LIMIT}",  # Cohere
    rf"input token count is {_SIZE} but (?:the )?model only supports up to {_LIMIT}",  # Vertex
    rf"prompt \(length {_SIZE}\) is longer than the maximum model length of {_LIMIT}",  # vLLM
    rf"input \({_SIZE} tokens\) is longer than the model's context length \({_LIMIT} tokens\)",  # SGLang
    rf"range of input length should be \[\d{{1,9}}, ?{_LIMIT}\]",  # DashScope
    rf"context length is only {_LIMIT} tokens",  # vLLM
    rf"prompt too long:? {_SIZE} tokens exceeds max_seq_len {_LIMIT}",  # Atlas (inference-atlas#186)
    # SiliconFlow (NovelForge#136)
    rf"number of input tokens \({_SIZE}\) has exceeded max_prompt_tokens \({_LIMIT}\)",
    rf"requested tokens(?: \({_SIZE}\))? exceed context window of {_LIMIT}",  # llama-cpp-python (its issue 120)
    rf"body too large for [\w./: -]{{1,80}} model\. max size: {_LIMIT} tokens",  # GitHub Models (cline#2115)
    rf"prompt tokens \({_SIZE}\) exceeds? (?:customer )?model maximum \({_LIMIT}\)",  # Bedrock (strands#3722)
    rf"keep the first {_SIZE} tokens when .{{0,80}}?context length of only {_LIMIT}",  # LM Studio (its issue 546)
    rf"greater than the context length \(n_keep: {_SIZE} ?>=? ?n_ctx: {_LIMIT}\)",  # LM Studio (openhuman#3550)
    # TensorRT-LLM (tensorrtllm_backend#141, TensorRT-LLM#9277)
    rf"prompt length \({_SIZE}\) exceeds maximum (?:sequence|input) length \({_LIMIT}\)",
    rf"sum of prompt length \([\d.]{{1,15}}\).{{0,40}}? should not exceed max_num_tokens \({_LIMIT}\)",
    r"tokens in request more than max tokens allowed",  # GLM (opencode#27519)
    r"exceeds? the (?:model'?s )?context (?:window|length)",
    r"exceeds the available context size",  # llama.cpp
    r"input length.{0,80}? exceeds? .{0,40}?context length",
    r"prompt too long; exceeded (?:max )?context length",  # Ollama
    r"prompt exceeds max length",  # z.ai
    r"context window exceeds limit",  # MiniMax
    r"greater than the context length",  # LM Studio
    r"input is too long for (?:the )?requested model",  # Bedrock
    r"reduce the length of the (?:messages|prompt)",  # Groq
    r"context[_ ](?:length|window)[_ ]exceeded",  # a code within a text
    r"\bprompt is too long\b",
)
_OTHER_LIMIT = re.compile(
    r"rate.?limit|per.minute|per.day|\bTPM\b|\bRPM\b|quota|billing|too many requests", re.IGNORECASE
)
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
    if any("rate_limit" in code or "quota" in code for code in codes):
        return None
    for text in texts:
        if _OTHER_LIMIT.search(text):
            return None
    overflows = [overflow for overflow in map(_match, texts) if overflow is not None]
    if not overflows and (CODES & codes or (status >= 500 and any(_OLLAMA_ERROR in text for text in texts))):
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


@cache
def _compiled_phrases() -> tuple[re.Pattern[str], ...]:
    """Returns the phrases, which are compiled for the first error: it takes as long as hundreds of small requests."""
    return tuple(re.compile(phrase, re.IGNORECASE | re.DOTALL) for phrase in _PHRASES)


def _match(text: str) -> WindowOverflow | None:
    for phrase in _compiled_phrases():
        match = phrase.search(text)
        if match is None:
            continue
        figures = {name: _number(value) for name, value in match.groupdict().items() if value}
        output = figures.get("output")
        requested = figures.get("requested") or max(0, figures.get("total", 0) - (output or 0)) or None
        return WindowOverflow(figures.get("limit"), requested, output, words=match[0])
    return None


def _number(figure: str) -> int:
    unit = _UNITS.get(figure[-1].lower(), 1)
    return round(float(re.sub(r"[^\d.]", "", figure)) * unit)


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
            queue += [(name, item, depth + 1) for name, item in parsed.items() if _is_relevant(name)]
        else:
            yield key, parsed


def _is_relevant(name: str) -> bool:
    return name in _TEXT_FIELDS or name in _CODE_FIELDS or name in ("n_ctx", "n_prompt_tokens", "delta")


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
