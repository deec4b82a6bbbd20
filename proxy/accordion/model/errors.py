"""The errors of the package. Outer packages translate the exceptions of libraries into these.

AccordionError
├── RequestError            the client's fault; answered in the client's own error format
│   ├── BadRequest          400
│   ├── Unauthorized        401
│   ├── NotFound            404
│   │   └── ThreadNotFound      404, the client sends the whole conversation again
│   ├── RequestTimeout      408
│   ├── BodyTooLarge        413
│   ├── UpgradeRefused      426
│   ├── LimitReached        429, a limit of the caller's proxy key
│   ├── HeadTooLarge        431
│   └── ContextOverflow     400, the request cannot fit the window in any form
├── UpstreamError           the provider's or the network's fault
│   ├── Unreachable         502, nothing was sent
│   ├── UpstreamTimeout     504
│   └── UpstreamDisconnected  502, or an error at the end of a response that had begun
├── ShuttingDown            503, or an error at the end of a response that had begun
├── Unreadable              a protocol's reader could not parse a body; it is forwarded as it came
│   └── TooManyMessages     a body has more messages than the proxy reads
├── SummaryFailed           no model wrote a usable summary; another strategy is used
├── MissingExtra            501, an optional dependency is not installed
├── MissingFeature          501, the program was built without a feature
├── StoreUnavailable        the store is unavailable or slow; forwarding goes on without it
│   └── StoreFull           the store's disk is full; reading and deleting still work
└── ConfigError             config.yaml is wrong; the message has the path of the file and of the key
"""

from __future__ import annotations


class AccordionError(Exception):
    """Base of all errors of the package.

    `status` is the HTTP status of the response; `type` and `code` are the fields of OpenAI's error format,
    `anthropic_type` is the type in Anthropic's. `retry_after` becomes a header.
    """

    status = 500
    type = "api_error"
    code: str | None = None
    anthropic_type = "api_error"
    retry_after = 0
    """Seconds after which the request may be sent again; 0: not known."""

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class RequestError(AccordionError):
    """The request cannot be served as it is; the message says what to change."""

    status = 400
    type = "invalid_request_error"
    anthropic_type = "invalid_request_error"


class BadRequest(RequestError):
    """An Accordion header, field or option is malformed."""


class Unauthorized(RequestError):
    """A proxy key is required, and the request has none or an unknown one."""

    status = 401
    code = "invalid_api_key"
    anthropic_type = "authentication_error"


class NotFound(RequestError):
    """The path, session or model does not exist."""

    status = 404
    code = "not_found"
    anthropic_type = "not_found_error"


class ThreadNotFound(NotFound):
    """The proxy ended the thread that a request continues, as the provider may do at any time.

    The client sends the whole conversation again; the SDKs' helpers do so by themselves.
    """

    code = "thread_not_found"

    def __init__(self, previous: str, reason: str) -> None:
        super().__init__(
            f"The thread of {previous!r} has ended ({reason}). Send the whole conversation again, with `thread`: "
            '{"type": "create"}.',
            param="thread",
        )


class RequestTimeout(RequestError):
    """The client took longer to send its request than the configured time."""

    status = 408
    code = "request_timeout"
    anthropic_type = "timeout_error"


class BodyTooLarge(RequestError):
    """The body is larger than `server.max_body_bytes`."""

    status = 413
    code = "request_too_large"
    anthropic_type = "request_too_large"


class UpgradeRefused(RequestError):
    """The client requests a WebSocket although it must use HTTP, so that the proxy can read the requests."""

    status = 426
    code = "websocket_refused"


class LimitReached(RequestError):
    """The caller's proxy key has reached a limit. `is_budget`: a limit of the day, which OpenAI calls a quota."""

    status = 429
    anthropic_type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: int, is_budget: bool) -> None:
        super().__init__(message, code="insufficient_quota" if is_budget else "rate_limit_exceeded")
        self.type = "insufficient_quota" if is_budget else "requests"
        self.retry_after = retry_after


class HeadTooLarge(RequestError):
    """The head of a request is longer than the limit (RFC 6585 5)."""

    status = 431
    code = "request_header_fields_too_large"


class ContextOverflow(RequestError):
    """The request does not fit the model's window in any form. Agents that compact themselves do so on this error.

    `tokens` and `limit` are the figures; each protocol writes its own text with them. `failure` is the reason why no
    more was compacted, empty if everything allowed was; `compaction_note` is the sentence about it.
    """

    code = "context_length_exceeded"

    def __init__(self, tokens: int, limit: int, *, param: str = "messages", failure: str = "") -> None:
        self.tokens, self.limit = tokens, limit
        self.compaction_note = (
            f"Compaction failed: {failure.rstrip('.')}."
            if failure
            else "Everything that may be compacted was compacted."
        )
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
            f"tokens. {self.compaction_note} Please reduce the length of the messages.",
            param=param,
        )


class UpstreamError(AccordionError):
    """The provider could not be reached, or did not finish its response.

    Agents decide by type and text whether to retry: `server_error` and "connection lost" are among those that they
    retry (OpenCode gives up on others).
    """

    status = 502
    type = "server_error"
    code = "upstream_error"


class Unreachable(UpstreamError):
    """No connection could be made. Nothing was sent, so the request may be tried again."""

    code = "upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    """The provider took longer than the configured time to respond."""

    status = 504
    code = "upstream_timeout"
    anthropic_type = "timeout_error"


class UpstreamDisconnected(UpstreamError):
    """The connection ended before the response was complete."""

    code = "upstream_disconnected"


class ShuttingDown(AccordionError):
    """The proxy is shutting down, and the grace period of running responses is over."""

    status = 503
    type = "server_error"
    code = "proxy_stopping"

    def __init__(self) -> None:
        super().__init__("Connection lost: the proxy is being stopped. Send the request again.")


class Unreadable(AccordionError):
    """The protocol's reader cannot parse a body. Never shown to a client."""


class TooManyMessages(Unreadable):
    """A body exceeds a limit of the reader. The error's message names the limit and what exceeds it."""


class InvalidPath(ValueError):
    """A path into a document is not valid, or would cost too much; the message says why."""


class SummaryFailed(AccordionError):
    """The model could not be reached, or its summary failed a check. Never shown to a client."""


class MissingExtra(AccordionError):
    """`purpose` needs packages of the distribution's extra `extra`, and they are not installed.

    Clients get this message. The command that installs them depends on the machine, and `accordion doctor` prints it.
    """

    status = 501
    code = "extra_not_installed"

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the extra `{extra}`, which is not installed where the proxy runs. `accordion doctor` "
            "says there how to install it."
        )


class MissingFeature(AccordionError):
    """`purpose` needs a feature that was left out of this program (composition/features.py)."""

    status = 501
    code = "feature_left_out"

    def __init__(self, purpose: str) -> None:
        super().__init__(f"{purpose} was left out of this proxy.")


class KeysUnavailable(AccordionError):
    """It is not known whether a created proxy key is valid: the store was away for too long."""

    status = 503
    type = "server_error"
    code = "keys_unavailable"
    retry_after = 5

    def __init__(self) -> None:
        super().__init__("The proxy cannot read its keys now, since its store is away. Send the request again later.")


class StoreUnavailable(AccordionError):
    """The store did not respond in time. Never shown to a client."""

    status = 503
    code = "store_unavailable"


class StoreFull(StoreUnavailable):
    """The disk of the store is full: it accepts no writes, but reading and deleting still work."""


class ConfigError(AccordionError):
    """A setting is wrong: `reason` says why, `path` is the key, such as `$.model_list[0].model_name`.

    `file` is the path of the file that has the setting; empty if it comes from no file, or the file is not known here.
    """

    def __init__(self, reason: str, *, path: str = "$", file: str = "") -> None:
        places = [file] if file and path == "$" else [file, path]
        super().__init__(": ".join(filter(None, (*places, reason))), param=path)
        self.reason, self.path, self.file = reason, path, file

    def in_file(self, file: str) -> ConfigError:
        """Returns the same error with the path of its file."""
        return ConfigError(self.reason, path=self.path, file=file)
