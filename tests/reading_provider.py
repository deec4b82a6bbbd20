"""A strict provider whose model reads back: it sees a tool that the client did not send, and calls it in every way.

    provider = ReadingProvider("messages", WINDOW, ways=("o", "wot"), every=2)

A way describes one reply to the client: a letter for each part, a space between the provider's replies. `o` our tool is
asked for an artifact, `l` for as much of it as there is, `p` for what matches in it, `u` for one that there is not, `b`
in no JSON; `t` a tool of the client's is called, `n` one of our tool's name; `w` words, `h` another thought. Where the
last calls no tool of the client's, another reply follows as `StrictProvider` has it.

On every request it checks that its earlier replies and their results stand in their places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests import frames, provider_rules, reply_parts, strict_provider
from tests.agent_replies import TOOL, TOOLS, Json
from tests.history_content import ContentItem, content_items, reply_content_items
from tests.loopback import Answer
from tests.reply_parts import Piece, ReplyCall, ReplyText, ReplyThought, ScriptedReply
from tests.strict_provider import StrictProvider
from tests.writers import LISTS

OURS = "ours_"
"""The prefix of the ids of our tool's calls."""
WAYS = ("o", "oo", "ot", "wo", "to", "p", "wo wop o", "tot", "b", "u", "wot", "ow", "who ot", "ob tu", "wo w")
_ARTIFACT = re.compile(r"art_[0-9a-f]{12}")
_RANGE = re.compile(r"\[(\d+)-(\d+)\] (art_[0-9a-f]{12})")
_LINE = re.compile(r"^src/(call_\d+_\d+)/main\.py: read_file \[(\d+)", re.MULTILINE)
Instead = Callable[["ProviderExchange", Answer], Awaitable[bool]]


@dataclass(frozen=True)
class ReadableArtifact:
    """An archived result of a call; a `range` has other messages too."""

    id: str
    call: str
    range: bool = False


# -- the provider ------------------------------------------------------------------------------------------------------


@dataclass
class ProviderExchange:
    """An accepted request, and its reply."""

    said: ScriptedReply
    entries: list[bytes]
    way: str
    tool: str
    """The name under which ours was offered; empty where it was not."""
    continues: int | None = None
    """The exchange that this one goes on from, within one reply to the client."""
    wanted: dict[str, str] = field(default_factory=dict)
    """By the id of a call of our tool: text that its result must contain."""
    body: Json = field(default_factory=dict)

    @property
    def forbidden(self) -> bool:
        """Whether no tool may be called."""
        mode = self.body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode")
        return mode == "NONE" or self.body.get("tool_choice") in ("none", {"type": "none"})

    @property
    def ours(self) -> list[str]:
        return [call.id for call in self.said.calls if call.id.startswith(OURS)]

    @property
    def theirs(self) -> list[str]:
        return [call.id for call in self.said.calls if not call.id.startswith(OURS)]


@dataclass
class ReadingProvider(StrictProvider):
    """A provider whose model reads back. `exchanges` goes with `taken`."""

    ways: Sequence[str] = WAYS
    """In turn; again from the first when all were gone through."""
    every: int = 2
    """So many of the client's requests from one way to the next."""
    exchanges: list[ProviderExchange] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    """The results of our tool's calls, by their ids."""
    loose: bool = False
    """Whether only calls and results are compared, since the client changes texts."""
    instead: Instead | None = None
    """Answers a request in another way than by its reply, where it gives True."""
    broke: list[int] = field(default_factory=list)
    """The indexes in `taken` of requests that do not begin with the whole of the one they continue."""
    alone: list[int] = field(default_factory=list)
    """The indexes in `taken` of requests that continue none."""
    brief: bool = False
    """Whether a result may be too long for the window."""
    wild: bool = False
    """Whether our tool is called on where it is not offered any more."""
    _behind: dict[int, int] = field(default_factory=dict)
    _left: list[str] = field(default_factory=list)
    _way: str = ""
    _used: int = 0
    _asked_for: int = 0

    @property
    def offered(self) -> list[str]:
        return [each.tool for each in self.exchanges]

    @property
    def done(self) -> set[str]:
        """The ways that were gone."""
        return {each.way for each in self.exchanges if each.way}

    async def _replied(self, body: Json, tokens: int, answer: Answer) -> None:
        entries = self.taken[-1].entries
        own = self.tools or TOOLS[self.protocol_name]
        extra = provider_rules.declared_tools(body)[len(own) :]
        own_tool = (extra[0].get("toolSpec") or extra[0].get("function") or extra[0]) if extra else {}
        tool = own_tool.get("name", "")
        before, whole = self._check_request(body, entries)
        continues = before if whole else None
        one = ProviderExchange(ScriptedReply(0, (), 0, 0), entries, "", tool, continues, body=body)
        one.said, one.way = self._write_reply(one, tokens), self._way
        self.exchanges.append(one)
        if continues is not None and tool and self._fields(body) != self._fields(self.exchanges[continues].body):
            self._add_problem("the request that goes on has other fields")
        if self.instead is None or not await self.instead(one, answer):
            await self._send_reply(one.said, body, answer)

    def _fields(self, body: Json) -> Json:
        return {name: value for name, value in body.items() if name != LISTS[self.protocol_name]}

    async def _send_reply(self, said: ScriptedReply, body: Json, answer: Answer) -> None:
        if not strict_provider.is_streamed(self.taken[-1].request, body):
            return await strict_provider.send_json(
                answer, 200, reply_parts.reply_document(self.protocol_name, said, body)
            )
        events = reply_parts.reply_events(self.protocol_name, said, body)
        if said.number % 3 or frames.is_framed(answer.target):
            return await strict_provider.send_events(answer, b"".join(events))
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        for event in events:
            await answer.chunk(event)
        await answer.last_chunk()

    def how(self, at: int) -> str:
        """Describes a broken prefix."""
        was, now = self.taken[self._behind[at]].entries, self.taken[at].entries
        pairs = zip(was, [*now, *[b""] * len(was)], strict=False)
        place, (old, new) = next((place, pair) for place, pair in enumerate(pairs) if pair[0] != pair[1])
        same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        return (
            f"request {at} behind {self._behind[at]}, entry {place} of {len(was)}: {old[same:]!r} became {new[same:]!r}"
        )

    # -- what it hears ------------------------------------------------------------

    def _check_request(self, body: Json, entries: list[bytes]) -> tuple[int | None, bool]:
        """The exchange that a request goes on from, and whether it does so within one reply to the client."""
        listed = content_items(self.protocol_name, entries)
        tail = len(listed) - (listed[-1][0] == "user")
        count = next((at for at, atom in enumerate(reversed(listed[:tail])) if atom[0] != "result"), 0)
        results = {atom[1]: atom[2] for atom in listed[tail - count : tail]}
        at = self._before(results, listed)
        if at is None:
            self.alone.append(len(self.taken) - 1)
            return None, False
        one = self.exchanges[at]
        if entries[: len(one.entries)] != one.entries:
            self.broke.append(len(self.taken) - 1)
            self._behind[len(self.taken) - 1] = at
        ids, want = list(results), [*one.ours, *one.theirs]
        if one.tool and one.ours and not one.said.finish and ids != want:
            self._add_problem(f"the results of {one.way!r} are {ids}, not {want}")
        end = tail - count
        said = reply_content_items(self.protocol_name, one.said)
        if self.loose:
            said = [atom for atom in said if atom[0] == "call"]
            heard = [atom for atom in listed[:end] if atom[0] == "call"][-len(said) :] if said else []
        else:
            heard = listed[end - len(said) : end]
        if heard != said:
            self._add_problem(f"what was said ({one.way!r}) is not there: {heard} for {said}")
        for call, wanted in one.wanted.items():
            told = results.get(call, "")
            self.answers[call] = told
            if (wanted not in told or not told) and not (
                self.brief and told.startswith("There is not enough free space")
            ):
                self._add_problem(f"the answer to {call} does not hold {wanted[:60]!r}: {told[:300]!r}")
        return at, bool(one.ours) and not one.theirs and tail == len(listed)

    def _before(self, results: dict[str, str], listed: list[ContentItem]) -> int | None:
        found = [
            at for at, each in enumerate(self.exchanges) if any(call.id in results for call in each.said.calls)
        ]  # fmt: skip
        if found:
            return found[-1]
        # A turn begins behind a reply that called nothing.
        said = [
            reply_content_items(self.protocol_name, each.said) if not each.said.calls else None
            for each in self.exchanges
        ]
        ends = [at for at, each in enumerate(said) if each and listed[-1 - len(each) : -1] == each]
        return ends[-1] if ends and listed[-1][0] == "user" else None

    def _add_problem(self, problem: str) -> None:
        self.problems.append(f"request {len(self.taken) - 1}: {problem}")

    # -- what it says -------------------------------------------------------------

    def _write_reply(self, one: ProviderExchange, tokens: int) -> ScriptedReply:
        artifacts = self.artifacts(one.entries)
        tool = "" if one.forbidden else one.tool
        if one.continues is None:
            self._left, self._way = [], ""
            self._asked_for += bool(tool)
            if tool and artifacts and self.ways and (self._asked_for - 1) % self.every == 0:
                self._way = self.ways[self._used % len(self.ways)]
                self._left, self._used = self._way.split(), self._used + 1
        elif self.wild and not tool:
            tool = self.exchanges[one.continues].tool
        self.given += 1
        if one.forbidden and not (tool and self._left):
            return ScriptedReply(self.given, (ReplyText("That is all."),), tokens, 20)
        if not tool or not self._left:
            return self._plain(tokens)
        made: list[Piece] = [self._thought(0)] if self.thinks else []
        theirs = 0
        for at, letter in enumerate(self._left.pop(0)):
            piece = self._piece(letter, at, tool, artifacts, theirs)
            theirs += letter in "tn"
            made.append(piece)
            if isinstance(piece, ReplyCall) and letter in "oplub":
                self._expect(one, letter, piece.id, self._chosen(artifacts, at))
        return ScriptedReply(self.given, tuple(made), tokens, 20 + self.given % 7)

    def _expect(self, one: ProviderExchange, letter: str, call: str, chosen: ReadableArtifact) -> None:
        text = strict_provider.result_of(chosen.call, self.words)
        # Of the lines that match in a stretch of messages not more than the beginning is shown.
        begun = text[:200] if chosen.range else text
        begun = "art_" if self.brief else begun
        told = {"l": "art_", "o": begun, "p": text[: text.index(":")], "u": "art_", "b": ""}[letter]
        one.wanted[call] = told if one.tool and not one.forbidden else ""

    def _piece(
        self, letter: str, at: int, tool: str, artifacts: list[ReadableArtifact], theirs: int
    ) -> Piece:  # fmt: skip
        artifact = self._chosen(artifacts, at)
        name = f"{OURS}{self.given}_{at}"
        if letter == "w":
            return ReplyText(f"Step {self.given}.{at}: I look at what was found.")
        if letter == "h":
            return self._thought(at + 1) if self.thinks else ReplyText("It may be known.")
        if letter in "tn":
            called = "read_artifact" if letter == "n" else TOOL
            arguments = {"path": f"src/{self.given}/{theirs}/main.py"}
            return ReplyCall(f"call_{self.given}_{theirs}", called, json.dumps(arguments))
        asked: Json = {"id": artifact.id} if letter != "u" else {"id": "art_00000000dead"}
        if letter == "p" or (artifact.range and letter != "l"):
            asked["pattern"] = rf"src/{artifact.call}/main_\d+"
        return ReplyCall(name, tool, '{"id": art, oops' if letter == "b" else json.dumps(asked))

    def _plain(self, tokens: int) -> ScriptedReply:
        """A reply without any call of ours, as `StrictProvider` gives it."""
        number, made = self.given, list[Piece]([self._thought(0)] if self.thinks else [])
        count = 0 if number % (self.rounds + 1) == 0 else self.batch(number)
        if not count or number % 3 == 0:
            made.append(ReplyText(f"Step {number} is done."))
        made += [
            ReplyCall(f"call_{number}_{at}", TOOL, json.dumps({"path": f"src/call_{number}_{at}/main.py"}))
            for at in range(count)
        ]
        return ScriptedReply(number, tuple(made), tokens, 20 + number % 7)

    def _thought(self, at: int) -> ReplyThought:
        text = f"Reply {self.given}.{at}: what was found so far does not explain it; look further. "
        thought = ReplyThought(text, f"c2lnbmF0dXJl{self.given:06d}{at:02d}+/=")
        self.thoughts[thought.sealed] = text
        body = self.taken[-1].request.json()
        self.bound[thought.sealed] = provider_rules.prefix(body, len(body[LISTS[self.protocol_name]]))
        return thought

    def _chosen(self, artifacts: list[ReadableArtifact], at: int) -> ReadableArtifact:
        return artifacts[(7 * self.given + at) % len(artifacts)]

    def artifacts(self, entries: Iterable[bytes]) -> list[ReadableArtifact]:
        """The archived results that the list names."""
        out = []
        for atom in content_items(self.protocol_name, entries):
            if atom[0] == "result" and atom[1].startswith("call_"):
                told = provider_rules.result_text(atom[2])
                found = _ARTIFACT.search(told)
                if found and told != strict_provider.result_of(atom[1], self.words):
                    out.append(ReadableArtifact(found.group(), atom[1]))
            elif atom[0] == "user":
                ranges = [(int(a), int(b), name) for a, b, name in _RANGE.findall(atom[1])]
                for call, number in _LINE.findall(atom[1]):
                    held = [name for a, b, name in ranges if a <= int(number) < b]
                    out += [ReadableArtifact(name, call, range=True) for name in held[:1]]
        return out
