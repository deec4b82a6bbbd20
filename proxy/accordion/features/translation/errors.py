"""Converts LiteLLM's exceptions to errors for the client.

The classes are matched by name, so that this module does not import LiteLLM. Their texts consist of class names, the
provider's body and sometimes a traceback; the provider's message is extracted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from traceback import walk_tb

from accordion.accounting.overflow import read_overflow
from accordion.features.translation.channel import TranslationRequest
from accordion.features.translation.responses import truncation_error, useful_headers
from accordion.model.errors import AccordionError, Unreachable, UpstreamError, UpstreamTimeout
from accordion.model.ports import Headers
from accordion.model.secret_names import is_secret_name
from accordion.providers.trusted_certificates import advise_on_certificates

# status: OpenAI's type and code, Anthropic's type
_TYPES_BY_STATUS: dict[int, tuple[str, str | None, str]] = {
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
    "ClientConnectorDNSError": "Its name could not be resolved.",
    "ClientProxyConnectionError": "The HTTP proxy on the way did not answer. Check HTTPS_PROXY and NO_PROXY.",
    "ClientHttpProxyError": "The HTTP proxy on the way refused it. Check HTTPS_PROXY and NO_PROXY.",
}
"""The reasons for failed connections by aiohttp's errors, whose own texts contain the HTTP proxy's password."""
_DISCONNECTIONS = {"ReadError", "RemoteProtocolError", "ClientPayloadError", "ClientOSError"}
_TIMEOUT = {"Timeout", "TimeoutError", "ReadTimeout", "APITimeoutError", "SocketTimeoutError", "ServerTimeoutError"}
_LABEL = re.compile(r"\s*(?:litellm\.)?\w*(?:Error|Exception|Timeout)\s*(?::|-)\s*")
_TEXT_END = re.compile(
    r"\nTraceback \(most|\nReceived Messages=|\nThis looks like a bug in LiteLLM|\. Handle with `litellm"
    r"|(?:\bEither provide one,? or |\bIf you want to drop [\w ]{1,80}, |\bPass [^\n]{0,80} or )?"
    r"\b(?:set|enable) [`'\"]litellm\b",
    re.IGNORECASE,
)
"""The beginning of the part of a text that is useless to a client.

Like all patterns here, it searches texts of any length that a client or a provider wrote, on the one loop for all
translations. So its time must be linear in the length.
"""
_TRANSLATION_PACKAGES = {"builtins", "json", "litellm", "pydantic_core"}
"""The packages whose errors mean that the request could not be translated. Errors of others have other causes."""
_TRANSLATION_FUNCTION = re.compile(
    r"transform|translat|optional_params|(?:update|fix_openai)_messages|validate_chat_completion|built_in_tools"
    r"|^fit$|^refuse$"
)
"""The functions of LiteLLM and Accordion that translate a request. Others find the provider, its address and keys."""
_MAX_REASON_LENGTH = 300
"""The longest reason for a failed translation, in characters: LiteLLM quotes its input."""
_MAX_TEXT_LENGTH = 64 << 10
"""The longest message of a provider, in characters: some quote the whole request."""
_DROP_HINT = re.compile(r"\.? To drop ")
_MIN_SECRET_LENGTH = 8
"""The shortest credential that is removed from a text, in characters."""
_USER_INFO = re.compile(r"://[^\s'\"@:/]*:(?!\d{1,5}/)[^\s'\"]{0,200}@")
"""A user and a password in a URL, such as an HTTP proxy's; digits before a slash are a port."""


@dataclass(frozen=True, slots=True)
class TranslationProblem:
    """An error response: the error, its headers and its request id."""

    error: AccordionError
    headers: Headers
    request_id: str


def read_problem(
    exception: Exception, request: TranslationRequest, *, has_begun: bool, is_sent: bool
) -> TranslationProblem:
    """Returns the error response for an exception.

    `has_begun`: the client already has a part of the response. `is_sent`: a request was sent to the provider.
    """
    cause = getattr(exception, "original_exception", None)
    if isinstance(cause, Exception) and isinstance(getattr(cause, "status_code", None), int):
        exception = cause
    raw_headers = getattr(exception, "litellm_response_headers", None)
    headers = useful_headers(raw_headers) if isinstance(raw_headers, Mapping) else ()
    error = _classify(exception, request, has_begun=has_begun, is_sent=is_sent)
    ids = [value.decode("latin-1") for name, value in headers if name in (b"request-id", b"x-request-id")]
    if ids or not request.request_id:
        return TranslationProblem(error, headers, "".join(ids[:1]))
    id_header = b"request-id" if request.protocol_name == "messages" else b"x-request-id"
    return TranslationProblem(error, (*headers, (id_header, request.request_id.encode())), request.request_id)


def _classify(exception: Exception, request: TranslationRequest, *, has_begun: bool, is_sent: bool) -> AccordionError:
    names = {cls.__name__ for cls in type(exception).__mro__}
    causes = [*_causes(exception)]
    if (own_error := next((cause for cause in causes if isinstance(cause, AccordionError)), None)) is not None:
        return own_error
    status = getattr(exception, "status_code", None)
    if isinstance(status, int) and status < 400:
        status = 502  # the provider's, whose answer LiteLLM could not read
    if not is_sent and (refusal := _error_before_sending(causes, request)) is not None:
        return refusal
    if "ContextWindowExceededError" in names:
        return _provider_error(
            request, 400, _overflow_text(_error_text(exception), request.protocol_name), "context_length_exceeded"
        )
    chain = {cls.__name__ for error in causes for cls in type(error).__mro__}
    refused = isinstance(status, int) and status < 500 and not names & _TIMEOUT
    if not refused and (connection_error := _connection_error(chain, has_begun=has_begun)) is not None:
        return connection_error
    if not isinstance(status, int):
        return UpstreamError(f"LiteLLM could not translate this request or its answer ({type(exception).__name__}).")
    if has_begun and status >= 500 and "APIConnectionError" in names:
        return truncation_error()
    text, kind = _provider_words(_error_text(exception))
    if kind == "overloaded_error":
        return _provider_error(request, 529 if request.protocol_name == "messages" else 503, text)
    if any(getattr(error, "status_code", None) == 413 for error in causes):
        status = 413  # LiteLLM makes a 400 of it; a request may be compacted for its size
    return _provider_error(request, 502 if "APIConnectionError" in names else status, text)


def _error_before_sending(causes: list[BaseException], request: TranslationRequest) -> AccordionError | None:
    """Returns the error for a request that was never sent; None for a failed connection or a refused credential.

    The client caused the error if LiteLLM failed while translating the request. Otherwise the configuration did: an
    address, an account or a package is missing. LiteLLM's own class is unreliable then: LiteLLM chooses it by words,
    which may be in the client's text.
    """
    kinds = {type(error) for error in causes}
    roots = [error for error in causes if type(error).__module__ != "litellm.exceptions"]
    names = {type(error).__name__ for error in roots}
    # A response without a recorded request: the operator may have configured another transport for LiteLLM.
    if (
        "HTTPStatusError" in names
        or any(isinstance(error, OSError) for error in causes)
        or _connection_error(names, has_begun=False)
    ):
        return None
    text = _without_secrets(_error_text(causes[0]), request)
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    is_client_error = packages <= _TRANSLATION_PACKAGES and any(map(_is_translation_error, causes))
    if any(isinstance(error, ImportError) for error in causes) or not (
        is_client_error or any(map(_is_unrepresentable, causes))
    ):
        return None if getattr(causes[0], "status_code", None) in (401, 403) else _configuration_error(text, request)
    if any(getattr(error, "status_code", None) in (401, 403) for error in roots):
        return None
    names = {kind.__name__ for kind in kinds}
    if "UnsupportedParamsError" in names:
        text = text[: match.start()] if (match := _DROP_HINT.search(text)) else text
        text += ". Leave it out, or set `drop_params: true` in the model's `litellm_params`."
        return _provider_error(request, 400, text, "unsupported_parameter")
    if "ImageFetchError" in names:
        text = "This model's provider does not take this image or file by its address: send it as a `data:` URL."
        return _provider_error(request, 400, text)
    absent = any(isinstance(error, KeyError) and str(error) == text for error in causes)
    reason = f"{text} is missing" if absent else _reason(text)
    return _provider_error(
        request, 400, f"This request cannot be translated for this model's provider{f' ({reason})' * bool(reason)}."
    )


def _is_translation_error(error: BaseException) -> bool:
    """Whether the error was raised while LiteLLM translated a request."""
    return any(_TRANSLATION_FUNCTION.search(frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__))


def _is_unrepresentable(error: BaseException) -> bool:
    """Whether the request has a value that JSON cannot represent, or a type that LiteLLM rejects."""
    if isinstance(error, UnicodeEncodeError):
        return True
    return isinstance(error, ValueError) and (
        str(error).startswith("Out of range float") or type(error).__module__.startswith("pydantic_core")
    )


def _configuration_error(text: str, request: TranslationRequest) -> AccordionError:
    reason = _reason(text)
    quotation = f" LiteLLM says: {reason}." if reason else ""
    return _provider_error(
        request, 502, f"The model `{request.route.name}` could not be asked as `model_list` has it.{quotation}"
    )


def _reason(text: str) -> str:
    """Returns the shortened reason why nothing was sent; empty if it reads like an overflow."""
    reason = text[:_MAX_REASON_LENGTH].rstrip(".")
    return reason if read_overflow(400, reason) is None else ""


def _connection_error(chain: set[str], *, has_begun: bool) -> AccordionError | None:
    """Returns the error of the connection, by the names of all causes; None if the connection did not fail."""
    if not has_begun and chain & _UNREACHABLE:
        reasons = [reason for name, reason in _REASONS.items() if name in chain][:1]
        if "ClientConnectorCertificateError" in chain:
            reasons = [f"Its certificate is not trusted; {advise_on_certificates()}."]
        return Unreachable(" ".join(["The provider could not be reached.", *reasons]))
    if chain & _TIMEOUT:
        return UpstreamTimeout("The provider did not answer in time.")
    return truncation_error() if chain & _DISCONNECTIONS else None


def _provider_error(request: TranslationRequest, status: int, text: str, code: str | None = None) -> AccordionError:
    words = _TYPES_BY_STATUS.get(status) or _TYPES_BY_STATUS[400 if status < 500 else 500]
    error = AccordionError(_without_secrets(text, request)[:_MAX_TEXT_LENGTH])
    error.status = status
    error.type, error.code, error.anthropic_type = words[0], code or words[1], words[2]
    return error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception and all its causes. LiteLLM links causes by a field of its own too."""
    pending, visited = [error], set[int]()
    while pending:
        error = pending.pop()
        if id(error) not in visited:
            visited.add(id(error))
            yield error
            causes = (error.__cause__ or error.__context__, getattr(error, "original_exception", None))
            pending += [cause for cause in causes if isinstance(cause, BaseException)]


def _error_text(exception: BaseException) -> str:
    """Returns the exception's text without tracebacks and LiteLLM's labels."""
    text = str(getattr(exception, "message", None) or exception)
    if (tail := _TEXT_END.search(text)) is not None:
        text = text[: tail.start()]
    start = 0
    while match := _LABEL.match(text, start):
        start = match.end()
    return text[start:].strip() or f"The provider refused the request ({type(exception).__name__})."


def _without_secrets(text: str, request: TranslationRequest) -> str:
    """Returns the text without credentials. A short one is ignored: it is a placeholder and may be a common word."""
    secrets = [value for name, value in (*request.route.extra_headers, *request.route.options) if is_secret_name(name)]
    for secret in (request.credential, request.route.api_key, *secrets):
        if isinstance(secret, str) and len(secret) >= _MIN_SECRET_LENGTH:
            text = text.replace(secret, "***")
    return _USER_INFO.sub("://***@", text)


def _provider_words(text: str) -> tuple[str, str]:
    """Returns the message and the type of an error body in a text; the text itself if it has none."""
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


def _overflow_text(text: str, protocol_name: str) -> str:
    """Returns the message of an overflow; for Messages in Anthropic's wording, which its clients recognize."""
    message = _provider_words(text)[0]
    if protocol_name != "messages" or message.startswith("prompt is too long"):
        return message
    overflow = read_overflow(400, message)
    if overflow is not None and overflow.limit and overflow.requested:
        requested = overflow.requested + (overflow.output or 0)
        return f"prompt is too long: {requested} tokens > {overflow.limit} maximum"
    return f"prompt is too long: {message}"
