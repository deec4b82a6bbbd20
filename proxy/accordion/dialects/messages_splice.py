"""Our tool in the replies of Anthropic's Messages: its calls are hidden, the rounds become one message.

A round's events are message_start, content_block_start / _delta / _stop with an `index`, message_delta, message_stop;
`ping` and `error` may stand anywhere. Sources: the streaming reference of the Messages API, the type files and the
stream accumulator of the anthropic SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.dialects.arguments import wanted_in
from accordion.dialects.keys import read
from accordion.dialects.messages import Messages
from accordion.dialects.messages_events import Delta, Event, argued, changed, event_of, fields_in, placed
from accordion.dialects.messages_said import DONE, NO_INPUT, Block, ended, seen, summed
from accordion.dialects.shared import encode, mapping, string
from accordion.dialects.spans import NULL, fields_of, object_of
from accordion.dialects.splice import RoundSeen, Splice, Wanted
from accordion.dialects.splicing import end_of
from accordion.dialects.sse import Events
from accordion.dialects.tap import BOUND

_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class MessagesStream(Splice):
    """One reply as a stream, made of one or more of the provider's. An event that nothing is to be done about goes on
    in its own bytes."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._next = 0
        """The index that the client has not seen yet."""
        self._usages: list[dict[str, Any]] = []
        self._waiting: Block | None = None
        self._queue = b""
        """Events behind arguments that wait for an artifact."""
        self._open()

    def _open(self) -> None:
        """The state of one round."""
        self._events = Events(BOUND)
        # Whether what was fed ended with an event.
        self._whole = True
        self._blocks: dict[int, Block] = {}
        self._said: list[Block] = []
        # From the provider's index to the client's.
        self._shift = self._next
        self._tap = Messages().tap(True)
        self._ending: list[tuple[str, bytes]] = []
        self._usage: dict[str, Any] = {}
        self._container = ""
        self._broken = False
        # The index of our call that is being hidden.
        self._hiding = -1
        # The block that is open, where its events go on in their own bytes.
        self._going: Block | None = None

    def feed(self, block: bytes) -> bytes:
        """Takes events, or pieces of large ones; returns those that may go on."""
        self.telling = None
        if self._going is not None and self._whole and self._going.takes(block):
            if self._going.silent:
                self.telling = b""
            return block
        whole = self._events.feed(block)
        self._whole = not (self._events.rest or self._events.mid_event)
        if self._waiting is not None:
            self._queue += whole
            return b""
        return self._all(whole) if whole else b""

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """The artifacts named in the arguments of the call that waits."""
        return self._waiting.arguments.wanted if self._waiting is not None and self._waiting.arguments else ()

    def give(self, texts: Sequence[str | None]) -> bytes:
        """The waiting arguments with the texts in their places, and what came behind them."""
        block, self._waiting = self._waiting, None
        if block is None or block.arguments is None:
            return b""
        out = argued(block.place, block.arguments.give(texts))
        queue, self._queue = self._queue, b""
        return out + self._all(queue)

    @property
    def held(self) -> bool:
        """Whether a message_delta came: the end of the round."""
        return bool(self._ending)

    def round(self) -> RoundSeen:
        """What the blocks of the round said."""
        told = self._tap.seen()
        done = told.finish in DONE and not self._broken and bool(self._ending)
        resolved = any(block.arguments is not None and block.arguments.resolved for block in self._said)
        return seen(self._said, finished=done, usage=told.usage, resolved=resolved, container=self._container)

    def next(self) -> None:
        """What ended the round is not shown, nor is the opening of the next."""
        self._usages.append(self._usage)
        self._open()

    def close(self) -> bytes:
        """The held events with the finish and the usage of all rounds, and what of an event is left."""
        out = self._let_go() + self._left()
        while wanted := self.wanted:
            out += self.give([None] * len(wanted))
        return out + self._let_go()

    # -- events, one by one ---------------------------------------------------------

    def _all(self, block: bytes) -> bytes:
        out, heard, at = list[bytes](), list[bytes](), 0
        while at < len(block):
            going, start = self._going, at
            at = going.follow(block, start) if going is not None else start
            silent = at > start and going is not None and going.silent
            if at > start:
                shown = block[start:at]
            else:
                at = end_of(block, start)
                shown = self._one(block[start:at])
            out.append(shown)
            heard.append(b"" if silent else shown)
            if self._waiting is not None and at < len(block):
                self._queue = block[at:]
                break
        self.telling = b"".join(heard)
        return b"".join(out)

    def _one(self, piece: bytes) -> bytes:
        event = event_of(piece)
        if event is None:
            return self._unread(piece)
        kind = event.type
        if kind == "content_block_delta":
            block = self._blocks.get(event.index)
            if block is not None and event.delta is not None and not self._ending:
                block.grow(event.delta)
                if block.ours:
                    return b""
                if block is self._going:
                    block.learn(piece)
                shown = piece if block.place == event.index else placed(piece, block.place)
                return shown if block.arguments is None else self._argue(block, event.delta, shown)
        if kind in {"message_delta", "message_stop"}:
            return self._end(kind, event, piece)
        if kind.startswith("content_block_"):
            return self._let_go() + self._content(kind, event, piece)
        if kind == "message_start":
            self._tap.feed(piece)
            self._count(mapping(_value(bytes(event.message))).get("usage"))
            return b"" if self._usages else self._behind(kind, piece)
        if kind == "error":
            self._tap.feed(piece)
            return self._let_go() + piece
        return piece if kind == "ping" else self._behind(kind, piece)

    def _behind(self, kind: str, piece: bytes) -> bytes:
        """What is not understood goes on, behind what is held."""
        if not self._ending:
            return piece
        self._ending.append((kind, piece))
        return b""

    def _content(self, kind: str, event: Event, piece: bytes) -> bytes:
        if kind == "content_block_start":
            return self._start(event, piece)
        block = self._blocks.get(event.index)
        if block is None:
            self._broken = True
            return piece
        stopped = kind == "content_block_stop"
        # Else a delta that says nothing, or that comes behind the end.
        self._broken = self._broken or not stopped
        if block.ours:
            self._hiding = -1 if stopped else self._hiding
            return b""
        rest = block.arguments.end() if stopped and block.arguments is not None else ""
        return argued(block.place, rest) + (piece if block.place == event.index else placed(piece, block.place))

    def _start(self, event: Event, piece: bytes) -> bytes:
        raw = bytes(event.content_block)
        try:
            block = Block(raw, self._tool, event.index + self._shift)
        except ValueError:
            self._broken = True
            return piece
        self._blocks[event.index] = block
        self._said.append(block)
        if block.ours:
            self._hiding = event.index
            self._shift -= 1
            return b""
        self._going = block if block.place == event.index else None
        self._hiding = -1
        self._next = max(self._next, block.place + 1)
        shown = piece if block.place == event.index else placed(piece, block.place)
        text = block.given if block.arguments is not None else ""
        if not wanted_in(text):
            return shown
        # The input came whole: it is shown as what follows the start, so that it can wait.
        shown = changed(shown, {"content_block": object_of({**fields_of(raw), "input": NO_INPUT})})
        return shown + self._argue(block, Delta("input_json_delta", partial_json=text), b"")

    def _argue(self, block: Block, delta: Delta, shown: bytes) -> bytes:
        """What may go on of a piece of a client's call. `shown` is its event, empty where it did not come by itself."""
        arguments = block.arguments
        if arguments is None or delta.type != "input_json_delta":
            return shown
        block.catch_up()
        out = arguments.feed(delta.partial_json)
        if arguments.wanted:
            self._waiting = block
        return shown if shown and out == delta.partial_json else argued(block.place, out)

    def _end(self, kind: str, event: Event, piece: bytes) -> bytes:
        self._tap.feed(piece)
        if kind == "message_delta":
            self._going = None
            self._count(_value(bytes(event.usage)))
            self._container = _container(piece)
            self._ending.append((kind, piece))
            return b""
        return self._behind(kind, piece)

    def _count(self, usage: Any) -> None:
        self._usage |= {name: value for name, value in mapping(usage).items() if value is not None}

    def _unread(self, piece: bytes) -> bytes:
        """What is no event that can be read goes on, unless it may be of a call of ours."""
        if b"data:" not in piece and not self._events.mid_event:
            # A comment, or a bare name.
            return piece
        self._broken = True
        return b"" if self._hiding >= 0 else self._behind("", piece)

    # -- the end --------------------------------------------------------------------

    def _let_go(self) -> bytes:
        """The events that were held, as the end of what the client sees."""
        if not self._ending:
            return b""
        ending, self._ending = self._ending, []
        return b"".join([self._ended(piece) if kind == "message_delta" else piece for kind, piece in ending])

    def _ended(self, piece: bytes) -> bytes:
        """The message_delta that ends all rounds."""
        try:
            fields = fields_in(piece)
            delta = fields_of(fields["delta"])
            reason = string(read(delta.get("stop_reason", NULL)))
            told = mapping(read(fields.get("usage", NULL)))
        except (ValueError, KeyError):
            return piece
        written: dict[str, bytes] = {}
        if (asked := ended(reason, self._said)) != reason:
            written["delta"] = object_of({**delta, "stop_reason": encode(asked)})
        if self._usages:
            written["usage"] = encode(self._total(told))
        return changed(piece, written) if written else piece

    def _total(self, told: dict[str, Any]) -> dict[str, Any]:
        """The usage of all rounds. A client reads the input here, where it stands here, and else keeps that of the
        first round: so that of the last round is told in any case."""
        counts = {name: self._usage[name] for name in (*_INPUTS, "output_tokens") if name in self._usage}
        first = {name: 0 for name in _INPUTS[1:] if "input_tokens" in counts and any(name in u for u in self._usages)}
        known = {name: value for name, value in told.items() if value is not None}
        return summed([*self._usages, {**first, **counts, **known}])

    def _left(self) -> bytes:
        """The beginning of an event that never ended. Of one that may show a call of ours nothing goes on."""
        rest = self._events.flush()
        if not rest.strip() or event_of(rest) is not None:
            return self._all(rest)
        return b"" if self._hiding >= 0 or b"content_block_start" in rest else rest


def _value(raw: bytes) -> Any:
    try:
        return read(raw or NULL)
    except ValueError:
        return None


def _container(piece: bytes) -> str:
    """Where the provider's own tools ran, as the end of a message tells it."""
    if b'"container"' not in piece:
        return ""
    try:
        delta = mapping(read(fields_in(piece)["delta"]))
    except (ValueError, KeyError):
        return ""
    return string(mapping(delta.get("container")).get("id"))
