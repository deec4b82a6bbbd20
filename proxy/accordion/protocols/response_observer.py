"""The response observer: collects what the ledger and later requests need of a response, from the parser's events."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from accordion.model.records import ARGUMENTS, ObservedCall, ObservedResponse, Usage
from accordion.protocols.json_values import bounded_arguments
from accordion.protocols.response_parser import (
    CallPiece,
    Content,
    End,
    ErrorReport,
    Finish,
    Identity,
    ResponseEvent,
    ResponseParser,
    ResponsePart,
    StoredItems,
    Undecodable,
    UsageReport,
)


class ResponseObserver:
    """Observes one response as its bytes pass. It changes nothing and never raises on what a provider sends."""

    def __init__(self, parser: ResponseParser) -> None:
        self.has_ended = False
        """Whether the protocol's own end of a stream passed (`[DONE]`, `message_stop`, `response.completed`, an
        error)."""
        self._parser = parser
        self._parse = parser.feed
        self._taken_size = 0
        self._characters = 0
        self._clear()

    def _clear(self) -> None:
        self._response_id = self._model = self._finish = self._error = ""
        self._usage: Usage | None = None
        self._first: int | None = None
        self._stored = StoredItems((), None)
        # Calls in order of arrival, by the key that distinguishes them in this protocol.
        self._calls: dict[Any, ObservedCall] = {}
        # The arguments of each call, in pieces as they came.
        self._arguments: dict[Any, list[str]] = {}
        self._space_left: dict[Any, int] = {}

    def feed(self, data: bytes) -> None:
        """Takes decoded bytes of the body: of a stream, or of a document."""
        for event in self._parse(data):
            self.take(event)

    def take(self, event: ResponseEvent) -> None:
        """Takes one event of the parser."""
        for part in event.parts:
            if type(part) is CallPiece:
                self._take_call(part)
            else:
                self._take_part(part)

    def observation(self) -> ObservedResponse:
        """Returns what was read so far; nothing of a document that is not complete."""
        if self._parser.document_size != self._taken_size:
            # What was read of a part of the document does not count.
            self._taken_size = self._parser.document_size
            self._clear()
            for event in self._parser.close():
                self.take(event)
        arguments = self._arguments
        calls = [replace(call, arguments="".join(arguments[key])) if key in arguments else call
                 for key, call in self._calls.items()]  # fmt: skip
        return ObservedResponse(
            self._response_id,
            self._model,
            self._usage,
            self._finish,
            tuple(calls),
            self._error,
            self._first,
            self._stored.items,
            self._stored.output,
            self._characters,
        )

    def _take_part(self, part: ResponsePart) -> None:
        if type(part) is Identity:
            self._response_id, self._model = part.response_id or self._response_id, part.model or self._model
        elif type(part) is UsageReport:
            self._usage = part.usage or self._usage
            self._first = self._first if part.first is None else part.first
        elif type(part) is Content:
            self._characters += len(part.text)
        elif type(part) is Finish:
            self._finish = part.reason
        elif type(part) is StoredItems:
            self._stored = part
        elif type(part) is ErrorReport:
            self._error = part.text or self._error or "error"
            self.has_ended = True
        elif type(part) is End:
            self.has_ended = True
        elif type(part) is Undecodable:
            # It may have held a piece of any call: the arguments of all are dropped.
            self._space_left.update(dict.fromkeys(self._calls, -1))
            self._arguments.clear()

    def _take_call(self, piece: CallPiece) -> None:
        """Records a piece of a call."""
        key, arguments = piece.key, piece.arguments
        call = self._calls.get(key)
        if call is None or piece.call_id or piece.name:
            # An id or a name that the call already has stays.
            call = call or ObservedCall("", "")
            self._calls[key] = replace(call, call_id=call.call_id or piece.call_id, name=call.name or piece.name)
        if not arguments:
            return
        if self._parser.reads_content:
            self._characters += len(arguments)
        if piece.is_whole:
            self._calls[key] = replace(self._calls[key], arguments=bounded_arguments(arguments))
            return
        space_left = self._space_left[key] = self._space_left.get(key, ARGUMENTS) - len(arguments)
        if space_left >= 0:
            self._arguments.setdefault(key, []).append(arguments)
        else:
            self._arguments.pop(key, None)
