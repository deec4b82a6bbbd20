"""What one agent's work left behind is not another's to reach: by its id, by a search in it, by a recall, by a summary,
by a pin or by a session."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from tests import reply_parts, strict_provider
from tests.agent_replies import Json
from tests.conftest import Start
from tests.e2e.agent_branches import CALL, TOP, Branches, RoleJoiningProvider, start_branches
from tests.e2e.small_window import EACH, WINDOW, Proxies
from tests.loopback import Answer, Recorded
from tests.reply_parts import ReplyCall, ScriptedReply
from tests.strict_provider import result_of


@dataclass
class Prober(RoleJoiningProvider):
    """Its model reads back what it is told to, and goes on."""

    probes: list[str] = field(default_factory=list)
    probed: int = 0

    async def _asked(self, request: Recorded, body: Json, answer: Answer) -> None:
        """What was recalled may stand in front of what is asked."""
        plain = re.sub(r'"\[Excerpts from this conversation(?:[^"\\]|\\.)*\\n\\nQ: ', '"Q: ', json.dumps(body))
        await super()._asked(request, json.loads(plain), answer)

    async def _replied(self, body: Json, tokens: int, answer: Answer) -> None:
        if not self.probes:
            return await super()._replied(body, tokens, answer)
        self.probed += 1
        call = ReplyCall(f"ours_{self.probed}_0", "read_artifact", self.probes.pop(0))
        said = ScriptedReply(9_000 + self.probed, (call,), tokens, 9)
        if body.get("stream"):
            return await strict_provider.send_events(
                answer, b"".join(reply_parts.reply_events(self.protocol_name, said, body))
            )
        return await strict_provider.send_json(answer, 200, reply_parts.reply_document(self.protocol_name, said, body))


def prober(protocol_name: str, run: str) -> Prober:
    return Prober(protocol_name, WINDOW, rounds=1_000, run=run)


async def all_compacted(made: Branches) -> None:
    """The agents work by turns until each had a compaction."""
    while len({name for name, _ in made.compactions()}) < len(made.runs):
        assert len(made.provider.taken) < 300, "not all had a compaction"
        for name in made.runs:
            await made.step(name)


def words(call: str) -> str:
    """What only the result of a call says."""
    return result_of(call).split(": ", 1)[1][:80]


def forwarded(made: Branches, name: str, since: int = 0) -> str:
    return "\n".join(each.text for each in made.taken[name][since:])


@EACH
async def test_what_a_user_names_is_recalled_to_the_agent_that_found_it_alone(proxies: Proxies, protocol_name: str):
    tree = {"re-red": TOP, "re-blue": TOP}
    async with start_branches(
        proxies[protocol_name], protocol_name, tree, run="recall", provider=prober(protocol_name, "recall")
    ) as made:
        await all_compacted(made)
        last = made.runs["re-red"]
        gone = next(
            call
            for call, whose in made.made.items()
            if whose == "re-red" and words(call) not in made.taken["re-red"][-1].text
        )
        place = result_of(gone).split("/")[-1].split(":")[0]
        # The others wait meanwhile: what the user says is said to all.
        last.say(f"Q: what was it with {place}?")
        for name in ("re-blue", "re-red"):
            await made.step(name)
        assert "Q: what was it" in made.taken["re-blue"][-1].text
        assert words(gone) not in forwarded(made, "re-blue")
        assert words(gone) in made.taken["re-red"][-1].text, "who found it is told again"
    assert made.foreign() == []
    assert made.provider.problems == []


@EACH
async def test_a_pin_of_anothers_result_shows_nothing_of_it(proxies: Proxies, protocol_name: str):
    tree = {"pin-red": TOP, "pin-blue": TOP}
    async with start_branches(proxies[protocol_name], protocol_name, tree, run="pins") as made:
        for name in (TOP, "pin-red", "pin-blue", "pin-red"):
            await made.step(name)
        theirs = next(call for call, whose in made.made.items() if whose == "pin-red")
        made.runs["pin-blue"].headers["x-accordion-pin"] = theirs
        made.runs["pin-blue"].headers["x-accordion-compact"] = "now"
        await made.step("pin-blue")
        del made.runs["pin-blue"].headers["x-accordion-compact"]
        await made.step("pin-blue")
    assert made.foreign() == []
    assert made.provider.problems == []


@EACH
async def test_a_summary_that_a_model_writes_is_of_what_the_agent_sees(start: Start, protocol_name: str):
    """Whoever writes it is given no more than that."""
    proxy = Proxies(start, writer="request")[protocol_name]
    model = RoleJoiningProvider(protocol_name, WINDOW, rounds=1_000, run="summaries", summary=_fails)
    async with start_branches(
        proxy, protocol_name, {"su-red": TOP, "su-blue": TOP}, run="summaries", provider=model
    ) as made:
        while len(made.compactions()) < 4:
            assert len(model.taken) < 300, "there were no compactions"
            for name in ("su-red", "su-blue"):
                await made.step(name)
        assert made.foreign() == []
    whose = [{made.made[call] for call in CALL.findall(request.body.decode())} for request in model.summaries]
    assert {"su-red"} in whose
    assert {"su-blue"} in whose
    assert all(len(each) == 1 for each in whose)


async def _fails(request: Recorded, answer: Answer) -> None:
    await strict_provider.send_json(answer, 500, {"error": {"message": "no", "type": "server_error"}})
