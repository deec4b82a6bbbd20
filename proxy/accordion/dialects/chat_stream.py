"""One streamed reply of Chat Completions, in which the calls of our tool are hidden.

Chunks that say more of what the one before said go on unread (chat_chunks.py); every other chunk is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from accordion.core.values import replace
from accordion.dialects.chat_chunks import DONE, Run, read, write
from accordion.dialects.chat_round import (
    Call,
    Saying,
    behind,
    finished,
    paragraph_break,
    said_of,
    says,
    summed,
    usage_places,
)
from accordion.dialects.shared import entries, mapping, string
from accordion.dialects.splice import RoundSeen, Splice, Wanted
from accordion.dialects.splicing import end_of
from accordion.dialects.sse import Events
from accordion.dialects.tap import BOUND

# What every chunk of a reply has in common.
_FRAME = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_SAME = ("id", "created", "system_fingerprint")


class ChunkSplice(Splice):
    """Chunks in, chunks out."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._events = Events(BOUND)
        self._saying = Saying()
        self._held: list[bytes] = []
        self._owed = b""
        self._first: dict[str, Any] = {}
        # How many rounds were ended, how many calls and thoughts they showed, and what they used.
        self._rounds = self._shown = 0
        self._blocks = Counter[str]()
        # The end of each text that earlier rounds said, by its field, until a text continues it.
        self._earlier: dict[str, str] = {}
        self._usages: list[dict[str, Any]] = []
        self._usage: dict[str, Any] | None = None
        self._finish, self._ended, self._failed, self._role = "", False, False, False
        self._run = Run()

    def feed(self, block: bytes) -> bytes:
        """Takes events, in blocks of any size."""
        out, taken = self._run.take(block)
        self.telling = told = b"" if taken and self._run.silent else out
        if taken == len(block):
            return out
        shown, heard = self._each(self._events.feed(block[taken:]))
        if self._events.rest or self._events.mid_event:
            self._run.end()
        owed = self._take()
        self.telling = owed + told + heard
        return owed + out + shown

    @property
    def held(self) -> bool:
        """Whether a finish reason, a last usage or `[DONE]` is held."""
        return bool(self._held)

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """What arguments of the client's calls wait for."""
        return tuple(wanted for call in self._saying.calls for wanted in call.arguments.wanted)

    def give(self, texts: Sequence[str | None]) -> bytes:
        """Puts the texts in their places; what was held of the calls goes on in chunks of our own."""
        given, out = list(texts), self._take()
        for call in self._saying.calls:
            count = len(call.arguments.wanted)
            if count:
                out += self._piece(call, call.arguments.give(given[:count]))
                del given[:count]
        return out + self._over() if self._finish else out

    def round(self) -> RoundSeen:
        """What the round said. Ids that a server left out are made up for our calls only."""
        self._owed += self._flush()
        whole = bool(self._finish or self._ended) and not self._failed and finished(self._finish)
        seen = said_of(self._saying.message(), self._tool, self._stem(), self._usage, whole=whole)
        return replace(seen, resolved=any(call.arguments.resolved for call in self._saying.calls))

    def next(self) -> None:
        """What is held is dropped, and the next chunks continue the reply."""
        self._owed += self._flush()
        if self._usage:
            self._usages.append(self._usage)
        self._shown += sum(call.ours is False for call in self._saying.calls)
        self._blocks += self._saying.blocks()
        self._earlier |= self._saying.ends()
        self._rounds += 1
        self._saying, self._held, self._usage = Saying(), [], None
        self._finish, self._ended, self._failed = "", False, False
        self._run.end()

    def close(self) -> bytes:
        """What is held, as of the last round."""
        self._owed += self._flush()
        out = self._take() + self._over()
        changed = self._rounds or any(call.ours for call in self._saying.calls)
        held, self._held = self._held, []
        return out + b"".join([self._last(event) if changed else event for event in held])

    # -- reading -----------------------------------------------------------------

    def _each(self, whole: bytes) -> tuple[bytes, bytes]:
        """Takes events one by one, those of a run together: what may go on, and what of it says more than a text."""
        shown, heard, at = list[bytes](), list[bytes](), 0
        while at < len(whole):
            start, (out, at) = at, self._run.take(whole, at)
            silent = at > start and self._run.silent
            if at == start:
                at = end_of(whole, at)
                out = self._event(whole[start:at])
            shown.append(out)
            heard.append(b"" if silent else out)
        return b"".join(shown), b"".join(heard)

    def _event(self, event: bytes) -> bytes:
        """Takes an event that has to be read; returns what of it may go on."""
        self._run.end()
        data = read(event)
        if data is DONE:
            self._ended = True
            self._held.append(event)
            return self._over() if not self._finish else b""
        if type(data) is not dict:
            # A comment, or nothing that is understood. What cannot be read may be missing in what was said.
            self._failed = self._failed or data is not None
            return event
        if data.get("error"):
            self._failed = True
            return event
        return self._chunk(event, data)

    def _chunk(self, event: bytes, data: dict[str, Any]) -> bytes:
        used = usage_places(data)
        if used:
            self._usage = mapping(used[-1]["usage"])
        choices = entries(data.get("choices"))
        at = next((at for at, choice in enumerate(choices) if type(choice) is dict and not choice.get("index")), None)
        if at is None:
            if self._finish or used:
                self._held.append(event)
                return b""
            return self._written(data, event)
        self._first = self._first or data
        choice = mapping(choices[at])
        delta, finish = mapping(choice.get("delta")), string(choice.get("finish_reason"))
        shown = self._delta(delta)
        if not finish:
            return self._going(event, data, at, shown, alone=len(choices) == 1 and not used)
        out = self._over()
        self._finish = finish
        if says(shown):
            # What it says goes on at once, the rest of it waits.
            part = {**choice, "delta": shown, "finish_reason": None}
            rest = {**choice, "delta": {}, **({"logprobs": None} if "logprobs" in choice else {})}
            part.pop("usage", None)
            saying = {name: held for name, held in data.items() if name not in ("usage", "x_groq")}
            saying["choices"] = [*choices[:at], part, *choices[at + 1 :]]
            self._role = self._role or "role" in shown
            out = self._written(saying, b"") + out
            event = write({**data, "choices": [*choices[:at], rest, *choices[at + 1 :]]})
        elif shown is not delta:
            event = write({**data, "choices": [*choices[:at], {**choice, "delta": shown}, *choices[at + 1 :]]})
        self._held.append(event)
        return out

    def _going(self, event: bytes, data: dict[str, Any], at: int, shown: dict[str, Any], *, alone: bool) -> bytes:
        """A chunk that does not end the choice at `at`, of whose delta `shown` may go on; `alone` where it has nothing
        besides."""
        choices = data["choices"]
        delta = mapping(choices[at].get("delta"))
        if not says(shown) and (shown is not delta or self._finish) and ("role" not in shown or self._role):
            if shown is delta:
                self._held.append(event)
            return b""
        self._role = self._role or "role" in shown
        if shown is not delta:
            choices = [*choices[:at], {**choices[at], "delta": shown}, *choices[at + 1 :]]
            return self._written({**data, "choices": choices}, b"")
        if alone and not self._rounds:
            self._run.begin(event, delta, self._saying)
        return self._written(data, event)

    # -- hiding ------------------------------------------------------------------

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Takes a delta in; returns what of it the client sees, the very same where that is all of it."""
        self._saying.add(delta)
        shown, made = self._apart(behind(delta, self._blocks)), entries(delta.get("tool_calls"))
        if made:
            seen = [self._entry(position, entry) for position, entry in enumerate(made)]
            if any(one is not other for one, other in zip(seen, made, strict=True)):
                shown = {name: held for name, held in shown.items() if name != "tool_calls"}
                kept = [entry for entry in seen if entry is not None]
                if kept:
                    shown["tool_calls"] = kept
        if self._rounds and self._role and "role" in shown:
            shown = {name: held for name, held in shown.items() if name != "role"}
        return shown

    def _apart(self, delta: dict[str, Any]) -> dict[str, Any]:
        """The delta with a paragraph break before each text that continues one of an earlier round; the very same
        where there is none."""
        for name in [name for name in self._earlier if delta.get(name)]:
            text, before = delta[name], self._earlier.pop(name)
            if type(text) is str and (gap := paragraph_break(before, text)):
                delta = {**delta, name: gap + text}
        return delta

    def _entry(self, position: int, entry: Any) -> Any:
        """An entry of `tool_calls` as the client sees it; None where nothing of it is to be seen now."""
        if type(entry) is not dict:
            return entry
        call = self._saying.call(position, entry)
        if call.ours is None:
            if not call.name:
                call.waiting = True
                return None
            call.ours = call.name == self._tool
            if call.waiting and not call.ours:
                entry = {"index": call.index, **call.entry()}
        if call.ours:
            return None
        inner = mapping(entry.get("function"))
        text = inner.get("arguments")
        if type(text) is str and text:
            passed = call.arguments.feed(text)
            if not passed and entry.keys() <= {"index", "type", "function"} and len(inner) == 1:
                return None
            if passed != text:
                entry = {**entry, "function": {**inner, "arguments": passed}}
        call.visible = self._shown + self._saying.shown_at(call) if call.visible is None else call.visible
        if type(entry.get("index")) is int and entry["index"] != call.visible:
            entry = {**entry, "index": call.visible}
        return entry

    # -- writing -----------------------------------------------------------------

    def _take(self) -> bytes:
        out, self._owed = self._owed, b""
        return out

    def _written(self, data: dict[str, Any], event: bytes) -> bytes:
        """The chunk as it goes on: `event` itself where nothing of it changes."""
        if not self._rounds:
            return event or write(data)
        data = {**data, **{name: self._first[name] for name in _SAME if name in data and name in self._first}}
        return write(self._used(data))

    def _used(self, data: dict[str, Any]) -> dict[str, Any]:
        """The chunk with the usage of all rounds, wherever it gives one."""
        if not self._usages:
            return data
        for holder in usage_places(data):
            holder["usage"] = summed([*self._usages, holder["usage"]])
        return data

    def _last(self, event: bytes) -> bytes:
        """A held event of a reply in which something is hidden."""
        data = read(event)
        if type(data) is not dict:
            return event
        changed = self._rounds > 0
        seen = any(call.ours is False for call in self._saying.calls)
        for choice in map(mapping, entries(data.get("choices"))):
            if choice.get("finish_reason") in {"tool_calls", "function_call"} and not seen:
                choice["finish_reason"], changed = "stop", True
        return self._written(data, b"") if changed else event

    def _piece(self, call: Call, text: str) -> bytes:
        """A chunk with more of a call's arguments."""
        if not text:
            return b""
        return self._own({"index": call.visible, "function": {"arguments": text}})

    def _own(self, entry: dict[str, Any]) -> bytes:
        frame = {name: self._first[name] for name in _FRAME if name in self._first}
        delta = {"tool_calls": [entry]}
        return write({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def _over(self) -> bytes:
        """The calls are whole: what waited for more of them goes on, if it does not wait for a text."""
        out = b""
        for call in self._saying.calls:
            if call.ours is None:
                call.ours, call.visible = False, self._shown + self._saying.shown_at(call)
                out += self._own({**call.entry(), "index": call.visible})
            elif not call.arguments.wanted:
                out += self._piece(call, call.arguments.end())
        return out

    def _flush(self) -> bytes:
        """A last event that was not ended by an empty line."""
        rest = self._events.flush()
        if not read(rest):
            # Nothing, or the beginning of an event that was cut off.
            self._failed = self._failed or bool(rest.strip())
            return b""
        out = self._event(rest)
        return out if out.endswith(b"\n\n") or not out else out + b"\n\n"

    def _stem(self) -> str:
        """What the ids of calls are made of that were given none."""
        return f"{string(self._first.get('id'))}_{self._rounds}"
