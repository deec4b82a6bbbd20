"""From LiteLLM's exceptions to errors in the client's words.

The classes are known by name, so that nothing here needs LiteLLM. Their texts are a chain of class names, the
provider's body and, at times, a traceback; what the provider said is taken out of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from traceback import walk_tb

from accordion.accounting.overflow import read_overflow
from accordion.core.errors import AccordionError, Unreachable, UpstreamError, UpstreamTimeout
from accordion.core.ports import Headers
from accordion.models.translate_reply import cut, kept_headers
from accordion.models.translate_request import Ask

# status: OpenAI's type and code, Anthropic's type
_WORDS: dict[int, tuple[str, str | None, str]] = {
    400: ("invalid_request_error", None, "invalid_request_error"),
    401: ("invalid_request_error", "invalid_api_key", "authentication_error"),
    403: ("invalid_request_error", "permission_denied", "permission_error"),
    404: ("invalid_request_error", "model_not_found", "not_found_error"),
    413: ("invalid_request_error", "request_too_large", "request_too_large"),
    422: ("invalid_request_error", None, "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
    500: ("server_error", None, "api_error"),
    502: ("server_error", "upstream_error", "api_error"),
    503: ("server_error", "overloaded", "overloaded_error"),
    529: ("server_error", "overloaded", "overloaded_error"),
}
_UNREACHABLE = {
    "ConnectError",
    "ConnectTimeout",
    "ClientConnectorError",
    "ClientConnectorDNSError",
    "ClientHttpProxyError",
    "ConnectionTimeoutError",
}
_REASONS = {
    "ClientConnectorCertificateError": (
        "Its certificate is not trusted; SSL_CERT_FILE may name a file of trusted certificates."
    ),
    "ClientConnectorDNSError": "Its name could not be resolved.",
    "ClientProxyConnectionError": "The HTTP proxy on the way did not answer. Check HTTPS_PROXY and NO_PROXY.",
    "ClientHttpProxyError": "The HTTP proxy on the way refused it. Check HTTPS_PROXY and NO_PROXY.",
}
"""Why a provider could not be reached, by what aiohttp raised. Its own texts name the HTTP proxy, password and all."""
_CUT = {"ReadError", "RemoteProtocolError", "ClientPayloadError", "ClientOSError"}
_TIMEOUT = {"Timeout", "TimeoutError", "ReadTimeout", "APITimeoutError", "SocketTimeoutError", "ServerTimeoutError"}
_LABEL = re.compile(r"\s*(?:litellm\.)?\w*(?:Error|Exception|Timeout)\s*(?::|-)\s*")
_TAIL = re.compile(
    r"\nTraceback \(most|\nReceived Messages=|\nThis looks like a bug in LiteLLM|\. Handle with `litellm"
    r"|(?:\bEither provide one,? or |\bIf you want to drop [\w ]{1,80}, |\bPass [^\n]{0,80} or )?"
    r"\b(?:set|enable) [`'\"]litellm\b",
    re.IGNORECASE,
)
"""Where a text goes on with what is of no use to a client.

Like all patterns here it is looked for in texts that a client or a provider wrote, of any length, on the one loop that
serves all translations: the time that one takes must go by the length alone.
"""
_MAKING = {"builtins", "json", "litellm", "pydantic_core"}
"""The packages whose errors alone lead to a request that could not be made; those of others reach further out."""
_TRANSLATING = re.compile(
    r"transform|translat|optional_params|(?:update|fix_openai)_messages|validate_chat_completion|built_in_tools"
    r"|^fit$|^refuse$"
)
"""The functions, LiteLLM's and ours, that turn over what a client says. Others find the provider, its address and keys.
"""
_LONGEST_REASON = 300
"""How much is told of why a request could not be translated, in characters: LiteLLM quotes what it was given."""
_LONGEST_TEXT = 64 << 10
"""How much is told of what a provider said, in characters: some quote the whole request."""
# How much was sent and how much fits, in the words of several providers.
_LIMIT, _USED = (
    r"maximum context length is (?P<limit>\d+) tokens",
    r"(?:resulted in|requested(?: about)?|has) (?P<used>\d+)",
)
_OVERFLOWS = (
    re.compile(f"{_LIMIT}.{{0,300}}?{_USED}"),
    re.compile(r"input token count \((?P<used>\d+)\) exceeds the maximum number of tokens allowed \((?P<limit>\d+)\)"),
)
_DROP = re.compile(r"\.? To drop ")
_SHORTEST_SECRET = 8
"""How long a credential is at the least that is taken out of a text, in characters."""
_USER_INFO = re.compile(r"://[^\s'\"@:/]*:(?!\d{1,5}/)[^\s'\"]{0,200}@")
"""A user and a password in a URL, such as an HTTP proxy's; digits before a slash are a port."""
_SECRET = re.compile(r"key|secret|token|password|credential|authorization", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error to be answered with, its headers and the id that it is known by."""

    error: AccordionError
    headers: Headers
    request_id: str


def read_problem(raised: Exception, ask: Ask, *, begun: bool, sent: bool) -> Problem:
    """What is said to the client about an exception.

    `begun` where a part of the answer was given already; `sent` where a request was on the wire.
    """
    cause = getattr(raised, "original_exception", None)
    if isinstance(cause, Exception) and isinstance(getattr(cause, "status_code", None), int):
        raised = cause
    said = getattr(raised, "litellm_response_headers", None)
    headers = kept_headers(said) if isinstance(said, Mapping) else ()
    error = _error(raised, ask, begun=begun, sent=sent)
    ids = [value.decode("latin-1") for name, value in headers if name in (b"request-id", b"x-request-id")]
    if ids or not ask.request_id:
        return Problem(error, headers, "".join(ids[:1]))
    named = b"request-id" if ask.dialect == "messages" else b"x-request-id"
    return Problem(error, (*headers, (named, ask.request_id.encode())), ask.request_id)


def _error(raised: Exception, ask: Ask, *, begun: bool, sent: bool) -> AccordionError:
    names = {cls.__name__ for cls in type(raised).__mro__}
    causes = [*_causes(raised)]
    if (ours := next((cause for cause in causes if isinstance(cause, AccordionError)), None)) is not None:
        return ours
    status = getattr(raised, "status_code", None)
    if isinstance(status, int) and status < 400:
        status = 502  # the provider's, whose answer LiteLLM could not read
    if not sent and (refusal := _unsent(causes, ask)) is not None:
        return refusal
    if "ContextWindowExceededError" in names:
        return _worded(ask, 400, _overflow(_said(raised), ask.dialect), "context_length_exceeded")
    chain = {cls.__name__ for error in causes for cls in type(error).__mro__}
    refused = isinstance(status, int) and status < 500 and not names & _TIMEOUT
    if not refused and (lost := _lost(chain, begun=begun)) is not None:
        return lost
    if not isinstance(status, int):
        return UpstreamError(f"LiteLLM could not translate this request or its answer ({type(raised).__name__}).")
    if begun and status >= 500 and "APIConnectionError" in names:
        return cut()
    text, kind = _provider_words(_said(raised))
    if kind == "overloaded_error":
        return _worded(ask, 529 if ask.dialect == "messages" else 503, text)
    if any(getattr(error, "status_code", None) == 413 for error in causes):
        status = 413  # LiteLLM makes a 400 of it; a request may be folded for its size
    return _worded(ask, 502 if "APIConnectionError" in names else status, text)


def _unsent(causes: list[BaseException], ask: Ask) -> AccordionError | None:
    """What is said of a request that was never sent. None: what went wrong on the way says it, or who is not let in.

    It is the client's doing where LiteLLM broke off in what it makes of a request, else the configuration's: an
    address, an account or a package that is not there. LiteLLM's own class says little then: it goes by words, and
    finds those that it looks for in what the client quotes.
    """
    kinds = {type(error) for error in causes}
    roots = [error for error in causes if type(error).__module__ != "litellm.exceptions"]
    names = {type(error).__name__ for error in roots}
    # An answer was there where the wire is not watched: the operator may have LiteLLM use another transport.
    if "HTTPStatusError" in names or any(isinstance(error, OSError) for error in causes) or _lost(names, begun=False):
        return None
    text = _without_secrets(_said(causes[0]), ask)
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    theirs = packages <= _MAKING and any(map(_is_translating, causes))
    if any(isinstance(error, ImportError) for error in causes) or not (theirs or any(map(_is_unsayable, causes))):
        return None if getattr(causes[0], "status_code", None) in (401, 403) else _misconfigured(text, ask)
    if any(getattr(error, "status_code", None) in (401, 403) for error in roots):
        return None
    names = {kind.__name__ for kind in kinds}
    if "UnsupportedParamsError" in names:
        text = text[: found.start()] if (found := _DROP.search(text)) else text
        text += ". Leave it out, or set `drop_params: true` in the model's `litellm_params`."
        return _worded(ask, 400, text, "unsupported_parameter")
    if "ImageFetchError" in names:
        text = "This model's provider does not take this image or file by its address: send it as a `data:` URL."
        return _worded(ask, 400, text)
    absent = any(isinstance(error, KeyError) and str(error) == text for error in causes)
    said = f"{text} is missing" if absent else _reason(text)
    return _worded(ask, 400, f"This request cannot be translated for this model's provider{f' ({said})' * bool(said)}.")


def _is_translating(error: BaseException) -> bool:
    """Whether the error came up in what LiteLLM makes of a request."""
    return any(_TRANSLATING.search(frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__))


def _is_unsayable(error: BaseException) -> bool:
    """Whether JSON cannot say what stands in the request, or it is of a type that LiteLLM checks."""
    if isinstance(error, UnicodeEncodeError):
        return True
    return isinstance(error, ValueError) and (
        str(error).startswith("Out of range float") or type(error).__module__.startswith("pydantic_core")
    )


def _misconfigured(text: str, ask: Ask) -> AccordionError:
    reason = _reason(text)
    said = f" LiteLLM says: {reason}." if reason else ""
    return _worded(ask, 502, f"The model `{ask.route.name}` could not be asked as `model_list` has it.{said}")


def _reason(text: str) -> str:
    """As much as is told of why nothing was sent; nothing where that reads as an overflow."""
    reason = text[:_LONGEST_REASON].rstrip(".")
    return reason if read_overflow(400, reason) is None else ""


def _lost(chain: set[str], *, begun: bool) -> AccordionError | None:
    """What happened on the way to the provider, by the names of everything that led to an error; None: nothing."""
    if not begun and chain & _UNREACHABLE:
        reasons = [reason for name, reason in _REASONS.items() if name in chain]
        return Unreachable(" ".join(["The provider could not be reached.", *reasons[:1]]))
    if chain & _TIMEOUT:
        return UpstreamTimeout("The provider did not answer in time.")
    return cut() if chain & _CUT else None


def _worded(ask: Ask, status: int, text: str, code: str | None = None) -> AccordionError:
    words = _WORDS.get(status) or _WORDS[400 if status < 500 else 500]
    error = AccordionError(_without_secrets(text, ask)[:_LONGEST_TEXT])
    error.status = status
    error.type, error.code, error.anthropic_type = words[0], code or words[1], words[2]
    return error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to an exception, itself first. LiteLLM leaves the chain by a field of its own."""
    found, seen = [error], set[int]()
    while found:
        error = found.pop()
        if id(error) not in seen:
            seen.add(id(error))
            yield error
            before = (error.__cause__ or error.__context__, getattr(error, "original_exception", None))
            found += [cause for cause in before if isinstance(cause, BaseException)]


def _said(raised: BaseException) -> str:
    """The exception's text without tracebacks and LiteLLM's labels."""
    text = str(getattr(raised, "message", None) or raised)
    if (tail := _TAIL.search(text)) is not None:
        text = text[: tail.start()]
    start = 0
    while match := _LABEL.match(text, start):
        start = match.end()
    return text[start:].strip() or f"The provider refused the request ({type(raised).__name__})."


def _without_secrets(text: str, ask: Ask) -> str:
    """The text without credentials. A short one is a placeholder, and as likely as not a word of the text."""
    named = [value for name, value in (*ask.route.extra_headers, *ask.route.options) if _SECRET.search(name)]
    for secret in (ask.credential, ask.route.api_key, *named):
        if isinstance(secret, str) and len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return _USER_INFO.sub("://***@", text)


def _provider_words(text: str) -> tuple[str, str]:
    """The message and the type of an error body that stands in a text; the text itself where there is none."""
    start = text.find("{")
    if start < 0:
        return text, ""
    try:
        body = json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return text, ""
    error = body.get("error", body)
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error["message"], str(error.get("type", ""))
    return (error, "") if isinstance(error, str) else (text, "")


def _overflow(text: str, dialect: str) -> str:
    """What was too long; for Messages in Anthropic's words, by which its clients know it."""
    message = _provider_words(text)[0]
    if dialect != "messages" or message.startswith("prompt is too long"):
        return message
    for pattern in _OVERFLOWS:
        if found := pattern.search(message):
            return f"prompt is too long: {found['used']} tokens > {found['limit']} maximum"
    return f"prompt is too long: {message}"
