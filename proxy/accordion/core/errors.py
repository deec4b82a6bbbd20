"""The error tree. Walls translate what they meet into these; nothing else crosses a floor.

AccordionError
├── RequestError            the client's doing; answered in its own error shape
│   ├── BadRequest          400
│   ├── Unauthorized        401
│   ├── NotFound            404
│   │   └── ThreadGone      404, the client says all of it again
│   ├── RequestTimeout      408
│   ├── BodyTooLarge        413
│   ├── UpgradeRefused      426
│   ├── HeadTooLarge        431
│   └── ContextOverflow     400, what cannot fit the window in any form
├── UpstreamError           the provider's or the network's doing
│   ├── Unreachable         502, nothing was sent
│   ├── UpstreamTimeout     504
│   └── UpstreamCut         502, or an error at the end of a reply that had begun
├── Stopped                 503, or an error at the end of a reply that had begun
├── Unreadable              a dialect could not read a body; it is forwarded as it came
│   └── TooLong             it holds too much to be read
├── SummaryFailed           no summary could be had of a model; another form of fold is used
├── StoreUnavailable        the store is away or slow; forwarding goes on without it
│   └── StoreFull           its disk is full; it can be read, and content can be deleted
└── ConfigError             config.yaml is wrong; names the path of the key
"""

from __future__ import annotations


class AccordionError(Exception):
    """Anything that goes wrong and has a name.

    `status` is the HTTP status it is answered with, `type` and `code` are OpenAI's words for it,
    `anthropic_type` is Anthropic's.
    """

    status = 500
    type = "api_error"
    code: str | None = None
    anthropic_type = "api_error"

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
    """A header or field of ours, or an option, is malformed."""


class Unauthorized(RequestError):
    """A proxy key is required and none, or an unknown one, was presented."""

    status = 401
    code = "invalid_api_key"
    anthropic_type = "authentication_error"


class NotFound(RequestError):
    """No such path, session or model here."""

    status = 404
    code = "not_found"
    anthropic_type = "not_found_error"


class ThreadGone(NotFound):
    """The thread that a request goes on from is let go of, as its provider may do at any time: the client sends the
    whole conversation again, as the SDKs' helpers do by themselves."""

    code = "thread_not_found"

    def __init__(self, previous: str, why: str) -> None:
        super().__init__(
            f"The thread of {previous!r} has ended ({why}). Send the whole conversation again, with `thread`: "
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
    """A WebSocket is asked for where the same is to be asked over HTTP, so that it can be read."""

    status = 426
    code = "websocket_refused"


class HeadTooLarge(RequestError):
    """The head of a request has no end within what is taken of it (RFC 6585 5)."""

    status = 431
    code = "request_header_fields_too_large"


class ContextOverflow(RequestError):
    """The request does not fit the model's window in any form; agents that compact themselves do so on this error.

    `tokens` and `limit` are the figures; the dialects have their own words for them. `failure` says why nothing more
    was folded, empty where all was that may be; `folding` is the sentence about it.
    """

    code = "context_length_exceeded"

    def __init__(self, tokens: int, limit: int, *, param: str = "messages", failure: str = "") -> None:
        self.tokens, self.limit = tokens, limit
        self.folding = (
            f"Compaction failed: {failure.rstrip('.')}."
            if failure
            else "Everything that may be compacted was compacted."
        )
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
            f"tokens. {self.folding} Please reduce the length of the messages.",
            param=param,
        )


class UpstreamError(AccordionError):
    """The provider could not be asked, or did not finish its answer.

    Agents decide by type and words whether to ask again: `server_error` and "connection lost" are among those that
    they take for passing (OpenCode gives up on others).
    """

    status = 502
    type = "server_error"
    code = "upstream_error"


class Unreachable(UpstreamError):
    """No connection could be made; nothing was sent, so the same request may be tried again."""

    code = "upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    """The provider took longer than the configured time."""

    status = 504
    code = "upstream_timeout"
    anthropic_type = "timeout_error"


class UpstreamCut(UpstreamError):
    """The connection ended before the reply did."""

    code = "upstream_disconnected"


class Stopped(AccordionError):
    """The proxy was told to stop, and the time that running replies have for their end is over."""

    status = 503
    type = "server_error"
    code = "proxy_stopping"

    def __init__(self) -> None:
        super().__init__("Connection lost: the proxy is being stopped. Send the request again.")


class Unreadable(AccordionError):
    """A body that the dialect does not understand as a whole. Never shown to a client."""


class TooLong(Unreadable):
    """A body holds more than is read at most. Its message names what there is too much of, and the limit."""


class SummaryFailed(AccordionError):
    """A model could not be asked for a summary, or what it wrote did not pass. Never shown to a client."""


class StoreUnavailable(AccordionError):
    """The store did not answer in time. Never shown to a client."""

    status = 503
    code = "store_unavailable"


class StoreFull(StoreUnavailable):
    """The disk of the store is full: it takes no more writes, but can be read, and content can be deleted."""


class ConfigError(AccordionError):
    """A setting is wrong; `path` is its place, such as `$.model_list[0].model_name`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"{path}: {message}", param=path)
        self.path = path
