"""What the provider keeps is put in place of a reply's id where a compaction is due. In one process."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from accordion.model.ports import Route, UpstreamRequest
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import LoopTasks
from tests.fakes import FakeReply, FakeRouter, FakeUpstream, FakeWindows, FickleStore
from tests.pipeline_setup import RESPONSES, PipelineSetup, header
from tests.sample_responses import sse

Json = dict[str, Any]
WINDOW = 4_000
FIXED: Json = {"model": "gpt-5", "instructions": "You mend builds."}


class Provider(FakeUpstream):
    """Answers with `next`; what was put together is refused while `refuses`."""

    next: Json = {}  # noqa: RUF012  # set before each request
    streams = False
    refuses = False

    async def send(self, request: UpstreamRequest) -> FakeReply:
        self.requests.append(request)
        assert isinstance(request.body, bytes)
        if self.refuses and b"previous_response_id" not in request.body and b"function_call" in request.body:
            told = {"error": {"message": "Duplicate item found", "type": "invalid_request_error", "param": "input"}}
            if self.streams:
                event = sse({"type": "error", **told}, named=True)
                return FakeReply(headers=((b"content-type", b"text/event-stream"),), pieces=(event,))
            return FakeReply(400, pieces=(json.dumps(told).encode(),))
        if not self.streams:
            return FakeReply(pieces=(json.dumps(self.next).encode(),))
        done = [{"type": "response.output_item.done", "item": item} for item in self.next["output"]]
        events = [*done, {"type": "response.completed", "response": {**self.next, "output": []}}]
        return FakeReply(headers=((b"content-type", b"text/event-stream"),), pieces=(sse(*events, named=True),))


class Chain:
    """A conversation in one process whose client sends only what is new; every answer is a call."""

    def __init__(
        self, *, first: Any = None, store: Any = None, config: str = "", beside: Chain | None = None, **more: Any
    ) -> None:
        self.tasks = LoopTasks() if beside is None else beside.tasks
        self.provider = Provider() if beside is None else beside.provider
        if beside is None:
            stored = {"store": store} if store is not None else {}
            setup: Any = {"tasks": self.tasks, "windows": FakeWindows(WINDOW), "upstream": self.provider, **stored}
            self.setup = PipelineSetup(config=config, **setup, **more)
        else:
            self.setup = beside.setup
        self.name = "b" if beside is not None else "a"
        self.first = first or [{"role": "user", "content": "Find out why the nightly build fails."}]
        self.number = 0
        self.replies: dict[int, Json] = {}
        """What single replies say otherwise, by their numbers."""
        self.decisions: list[str] = []
        self.last = ""
        """The id of the last reply."""

    async def turn(self, *, given: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Json:
        """One request and its reply; gives what was forwarded."""
        number, body = self.number, {**FIXED, "input": given or self.first}
        if number:
            words = " ".join(f"word{number}_{at}" for at in range(400))
            result = {"type": "function_call_output", "call_id": f"call_{number - 1}", "output": words}
            body |= {"input": given or [result], "previous_response_id": self.last}
        self.provider.next = {**reply(number, self.name), **self.replies.get(number, {})}
        raw = json.dumps({**body, **fields}).encode()
        if headers and headers.get("content-encoding") == "gzip":
            raw = gzip.compress(raw)
        out, _ = await self.setup.ask(RESPONSES, raw, headers)
        assert out.status == 200
        self.state = json.loads(header(out, "x-accordion-compaction") or '{"state": "none"}')["state"]
        self.number, self.last = self.number + 1, self.provider.next["id"]
        await self.tasks.done()
        self.decisions.append(self.setup.recorder.exchanges[-1].decision)
        sent = self.provider.requests[-1].body
        assert isinstance(sent, bytes)
        self.same = sent == raw
        made: Json = {} if self.same and headers else json.loads(sent)
        return made

    async def turns(self, count: int, **more: Any) -> None:
        for _ in range(count):
            await self.turn(**more)

    async def until_compacted(self, **more: Any) -> Json:
        for _ in range(12):
            sent = await self.turn(**more)
            if self.state == "compacted":
                return sent
        raise AssertionError("it was never compacted")


def reply(number: int, name: str = "a") -> Json:
    call = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": "read",
        "arguments": "{}",
        "status": "completed",
    }
    return {"id": f"resp_{name}{number}", "model": "gpt-5", "status": "completed", "output": [call]}


async def test_below_the_trigger_it_goes_on_as_it_came() -> None:
    chain = Chain()
    for _ in range(4):
        await chain.turn()
        assert chain.same
    assert "the provider keeps the history, so it passes unchanged" in chain.decisions[-1]


async def test_a_compaction_says_all_that_is_left_in_place_of_the_id() -> None:
    chain = Chain()
    sent = await chain.until_compacted()
    assert "previous_response_id" not in sent
    assert {name: sent[name] for name in FIXED} == FIXED
    assert sent["input"][0] == chain.first[0]
    assert sent["input"][-1]["call_id"] == f"call_{chain.number - 2}"
    # Each result that is left has its call in front of it.
    calls = [each["call_id"] for each in sent["input"] if each.get("type") == "function_call"]
    assert calls == [each["call_id"] for each in sent["input"] if each.get("type") == "function_call_output"]


async def test_the_trigger_of_a_compaction_by_the_provider_is_left_out() -> None:
    chain = Chain()
    await chain.turns(2)
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x" * 40}
    chain.replies[2] = {"output": [item]}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "word"}
    await chain.turn(given=[result, {"type": "compaction_trigger"}])
    await chain.turn(given=[{"role": "user", "content": "Go on."}])
    sent = await chain.until_compacted()
    assert item in sent["input"]
    assert "compaction_trigger" not in json.dumps(sent)


async def test_the_next_request_begins_with_what_was_compacted() -> None:
    chain = Chain()
    sent = await chain.until_compacted()
    again = await chain.turn()
    assert chain.state == "replayed"
    assert again["input"][: len(sent["input"])] == sent["input"]
    assert "previous_response_id" not in again


async def test_a_first_request_that_is_a_plain_text_becomes_a_message() -> None:
    chain = Chain(first="Find out why the nightly build fails.")
    sent = await chain.until_compacted()
    assert sent["input"][0] == {"role": "user", "content": "Find out why the nightly build fails."}


async def test_instructions_within_the_list_stay_in_front() -> None:
    first = [{"role": "developer", "content": "Say little."}, {"role": "user", "content": "Find out."}]
    sent = await Chain(first=first).until_compacted()
    assert sent["input"][:2] == first


async def test_a_body_with_an_encoding_is_made_whole_without_it() -> None:
    chain = Chain()
    sent = await chain.until_compacted(headers={"content-encoding": "gzip"})
    assert sent["input"][0] == chain.first[0]
    assert b"content-encoding" not in dict(chain.provider.requests[-1].headers)


@pytest.mark.parametrize(
    "told",
    [{"store": False}, {"status": "queued", "output": []}, {"status": "in_progress"}, {"output": None}],
    ids=["not stored", "in the background", "not ended", "odd"],
)
async def test_a_reply_that_is_not_there_in_whole_is_not_gone_on_from(told: Json) -> None:
    chain = Chain()
    chain.replies[1] = told
    await chain.turns(12)
    assert chain.same
    assert chain.state == "none"
    assert "the history that the provider keeps is not completely on record" in chain.decisions[-1]


async def test_what_a_template_of_the_providers_says_is_not_on_record() -> None:
    chain = Chain()
    await chain.turns(12, prompt={"id": "pmpt_1"})
    assert chain.same
    assert "the history that the provider keeps is not completely on record" in chain.decisions[-1]


async def test_requests_of_a_conversation_object_pass_unchanged() -> None:
    chain = Chain()
    for number in range(12):
        await chain.turn(conversation="conv_1", previous_response_id=None) if number else await chain.turn()
        assert chain.same


@pytest.mark.parametrize("config", ["compaction: {mode: off}", "compaction: {mode: observe}"])
async def test_who_is_not_compacted_is_not_kept(config: str) -> None:
    chain = Chain(config=config)
    await chain.turns(12)
    assert chain.same
    assert not [key for key in chain.setup.store._values if key.name.startswith("link/")]


async def test_translated_responses_are_not_stored() -> None:
    chain = Chain(router=FakeRouter(only=Route("other", "litellm", "")))
    translator = Translator()
    chain.setup.replace_in("sender", translator=translator)
    for number in range(3):
        previous = {"previous_response_id": f"resp_{number - 1}"} if number else {}
        await chain.setup.ask(RESPONSES, {**FIXED, "input": chain.first, **previous})
    await chain.tasks.done()
    assert len(translator.bodies) == 3
    assert not [key for key in chain.setup.store._values if key.name.startswith("link/")]


class Translator:
    """Answers in a provider's place that speaks otherwise."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    async def send(self, protocol_name: str, body: Any, *_: Any) -> FakeReply:
        self.bodies.append(body)
        return FakeReply(pieces=(json.dumps(reply(len(self.bodies) - 1)).encode(),))


async def test_while_the_store_is_away_what_is_at_hand_is_put_together(caplog: Any) -> None:
    store = FickleStore()
    chain = Chain(store=store)
    await chain.turns(4)
    store.away = True
    await chain.until_compacted()
    chain.setup.builder.stored_responses._forget(
        chain.setup.forward.tenants.identify({}).tenant.archive_namespace, None
    )
    await chain.turn()
    assert chain.same
    assert chain.decisions[-1].endswith("the store is unavailable, so it passes unchanged")
    assert "Traceback" not in caplog.text


async def test_what_came_while_the_store_was_away_is_put_together_when_it_is_back() -> None:
    store = FickleStore()
    chain = Chain(store=store)
    await chain.turns(3)
    store.away = True
    await chain.turns(3)
    store.away = False
    await chain.setup.outbox.flush()
    await chain.turn()
    chain.setup.builder.stored_responses._links.clear()
    await chain.until_compacted()


@pytest.mark.parametrize("word", ["off", "observe"])
@pytest.mark.parametrize("at", [0, 3, 9])
async def test_a_header_against_compaction_holds_for_its_own_request(word: str, at: int) -> None:
    chain = Chain()
    for number in range(9):
        await chain.turn(headers={"x-accordion-compact": word} if number == at else None)
        assert chain.same or number != at
    await chain.turn(headers={"x-accordion-compact": word} if at == 9 else None)
    await chain.turn()
    assert chain.state in ("compacted", "replayed")


async def test_conversations_that_begin_alike_are_each_compacted() -> None:
    one = Chain()
    two = Chain(beside=one)
    for _ in range(12):
        for chain in (one, two):
            await chain.turn()
    assert {one.state, two.state} <= {"compacted", "replayed"}


@pytest.mark.parametrize("streams", [False, True])
async def test_after_a_refusal_the_request_is_sent_unchanged(streams: bool) -> None:
    chain = Chain()
    chain.provider.refuses = True
    chain.provider.streams = streams
    await chain.turns(9, **({"stream": True} if streams else {}))
    assert chain.same
    assert "the provider refused the reconstructed history" in chain.decisions[-1]
    assert chain.state == "none"
    # It was tried, and no client saw it.
    assert len(chain.provider.requests) > chain.number


async def test_a_reply_whose_end_leaves_its_items_out_is_known_by_those_that_went_by() -> None:
    """As some gateways stream."""
    chain = Chain()
    chain.provider.streams = True
    sent = await chain.until_compacted(stream=True)
    calls = [each["call_id"] for each in sent["input"] if each.get("type") == "function_call"]
    assert calls == [each["call_id"] for each in sent["input"] if each.get("type") == "function_call_output"]


async def test_what_does_not_go_by_is_not_put_together() -> None:
    """A reply that says less than it did: a result has no call."""
    chain = Chain()
    chain.replies[2] = {"output": []}
    await chain.turns(12)
    assert chain.same
    assert "the provider keeps another history than the one on record" in chain.decisions[-1]


async def test_what_fits_in_no_form_is_told_as_it_went() -> None:
    chain = Chain()
    await chain.until_compacted()
    long = {"type": "function_call_output", "call_id": f"call_{chain.number - 1}", "output": "word " * 200}
    await chain.turn(given=[long], instructions="word " * 2 * WINDOW)
    assert chain.same
    assert chain.state == "none"


async def test_an_agent_that_goes_back_goes_on_with_what_the_provider_has_there() -> None:
    """There is room again, so nothing is compacted; later it is compacted by what led to it on this way."""
    chain = Chain()
    await chain.until_compacted()
    chain.number, chain.last, chain.name = 4, "resp_a3", "c"
    await chain.turn()
    assert chain.same
    for number in range(5, 20):
        chain.replies[number] = {"output": [{**reply(number)["output"][0], "arguments": '{"again": 1}'}]}
    sent = json.dumps(await chain.until_compacted())
    assert "again" in sent
    assert "resp_a" not in sent


async def test_who_asks_how_much_it_would_be_is_told_by_the_provider() -> None:
    chain = Chain()
    await chain.until_compacted()
    body = {**FIXED, "input": "And now?", "previous_response_id": f"resp_a{chain.number - 1}"}
    await chain.setup.ask("/v1/responses/input_tokens", body)
    assert json.loads(chain.provider.requests[-1].body) == body  # type: ignore[arg-type]


# -- where the provider misses a call or its output ----------------------------------------------------------------


class Missing(FakeUpstream):
    """Keeps a response whose call `ours_1` has no output, and does not know the call `call_5`; OpenAI's error texts."""

    kept = "resp_lost"
    refusals = 0

    async def send(self, request: UpstreamRequest) -> FakeReply:
        self.requests.append(request)
        assert isinstance(request.body, bytes)
        body = json.loads(request.body)
        if body.get("previous_response_id") == self.kept:
            items = [(each.get("type"), each.get("call_id")) for each in body["input"]]
            if ("function_call_output", "ours_1") not in items:
                return self._refusal("No tool output found for function call ours_1.")
            if ("function_call", "call_5") not in items:
                return self._refusal("No tool call found for function call output with call_id call_5.")
        return FakeReply(pieces=(json.dumps(reply(7)).encode(),))

    def _refusal(self, text: str) -> FakeReply:
        self.refusals += 1
        error = {"message": text, "type": "invalid_request_error", "param": "input", "code": None}
        return FakeReply(400, pieces=(json.dumps({"error": error}).encode(),))


RESULT: Json = {"type": "function_call_output", "call_id": "call_5", "output": "done"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_provider_misses_behind_a_lost_response_is_put_in(streamed: bool) -> None:
    provider = Missing()
    proxy_setup = PipelineSetup(upstream=provider, tasks=LoopTasks())  # type: ignore[arg-type]
    out, _ = await proxy_setup.ask(
        RESPONSES, {**FIXED, "input": [RESULT], "previous_response_id": "resp_lost", "stream": streamed}
    )
    assert out.status == 200
    assert provider.refusals == 2
    sent = json.loads(provider.requests[-1].body)  # type: ignore[arg-type]
    assert [(each["type"], each["call_id"]) for each in sent["input"]] == [
        ("function_call", "call_5"),
        ("function_call_output", "ours_1"),
        ("function_call_output", "call_5"),
    ]
    assert sent["input"][-1] == RESULT
    assert "a placeholder was put in" in proxy_setup.recorder.exchanges[-1].decision


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_nothing_is_put_in_where_requests_may_not_be_changed(mode: str) -> None:
    provider = Missing()
    proxy_setup = PipelineSetup(upstream=provider, tasks=LoopTasks(), config=f"compaction: {{mode: {mode}}}")  # type: ignore[arg-type]
    out, body = await proxy_setup.ask(RESPONSES, {**FIXED, "input": [RESULT], "previous_response_id": "resp_lost"})
    assert (out.status, provider.refusals) == (400, 1)
    assert b"No tool output found for function call ours_1." in body


async def test_a_call_that_the_client_itself_left_unanswered_is_the_clients_error() -> None:
    """Of a response that is on record, and in which nothing was read back."""
    provider = Missing()
    proxy_setup = PipelineSetup(upstream=provider, tasks=LoopTasks())  # type: ignore[arg-type]
    await proxy_setup.ask(RESPONSES, {**FIXED, "input": "Find out."})
    provider.kept = "resp_a7"
    out, body = await proxy_setup.ask(RESPONSES, {**FIXED, "input": [RESULT], "previous_response_id": "resp_a7"})
    assert out.status == 400
    assert b"No tool output found for function call ours_1." in body
    assert provider.refusals == 1


async def test_a_recorded_history_is_sent_in_place_of_the_response_id() -> None:
    chain = Chain()
    await chain.turns(3)
    provider = Missing()
    provider.kept = chain.last
    chain.setup.replace_in("sender", upstream=provider)
    chain.setup.forward.reader.identifier.sessions.prefix_index.nodes.clear()
    for key in [key for key in chain.setup.store._values if key.name.startswith("point/")]:
        await chain.setup.store.delete([key])
    result = {**RESULT, "call_id": "call_2"}
    out, _ = await chain.setup.ask(RESPONSES, {**FIXED, "input": [result], "previous_response_id": chain.last})
    assert out.status == 200
    sent = json.loads(provider.requests[-1].body)  # type: ignore[arg-type]
    assert "previous_response_id" not in sent
    assert sent["input"][0] == chain.first[0]
    assert sent["input"][-1] == result


class Batches(InMemoryStore):
    """Notes the names of the keys of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def write(self, batch: Any) -> Any:
        self.batches.append([each.key.name for each in batch])
        return await super().write(batch)


def of(kind: str, batch: list[str]) -> bool:
    return any(name.startswith(f"{kind}/") for name in batch)


async def test_transcript_and_response_are_stored_in_one_batch() -> None:
    store = Batches()
    chain = Chain(store=store, config="archive: {record: all}")
    await chain.turns(3)
    stored = [batch for batch in store.batches if of("link", batch)]
    assert [of("transcript", batch) for batch in stored] == [True] * 3
    assert sum(of("transcript", batch) for batch in store.batches) == 3


async def recorded(chain: Chain, session: str) -> list[Json]:
    await chain.tasks.done()
    tenant = chain.setup.forward.tenants.identify({}).tenant
    original = await chain.setup.archive.transcripts.original(tenant, session)
    found: list[Json] = json.loads(original.body)["input"] if original is not None else []
    return found


async def test_a_continuation_of_an_unrecorded_response_is_recorded_as_if_compacted() -> None:
    """A request whose session was lost may be one of a history that was compacted."""
    chain = Chain()
    results = [{**RESULT, "call_id": f"call_{number}"} for number in (7, 8)]
    chain.provider.next = reply(7)
    out, _ = await chain.setup.ask(RESPONSES, {**FIXED, "input": results[:1], "previous_response_id": "resp_lost"})
    session = header(out, "x-accordion-session") or ""
    assert await recorded(chain, session) == results[:1]
    # So does another worker.
    chain.setup.archive.transcripts.begin_anew()
    await chain.setup.ask(RESPONSES, {**FIXED, "input": results[1:], "previous_response_id": "resp_a7"})
    assert await recorded(chain, session) == results


async def test_any_worker_records_an_unchanged_request_of_a_compacted_session() -> None:
    chain = Chain()
    await chain.until_compacted()
    session = chain.setup.recorder.exchanges[-1].session
    chain.setup.builder.stored_responses._links.clear()
    for key in [key for key in chain.setup.store._values if key.name.startswith("link/")]:
        await chain.setup.store.delete([key])
    chain.setup.archive.transcripts.begin_anew()
    await chain.turn()
    assert chain.same
    assert chain.setup.recorder.exchanges[-1].session == session
    assert f"call_{chain.number - 2}" in str((await recorded(chain, session))[-1])


async def test_a_compacted_chain_is_stored_where_nothing_is_read_back() -> None:
    chain = Chain(config="read_back: {tool: false}")
    await chain.until_compacted()
    for _ in range(3):
        await chain.turn()
        chain.setup.builder.stored_responses._links.clear()
    assert chain.state in ("compacted", "replayed")


def start_anew(chain: Chain) -> None:
    """Goes on at another worker, which has only what is in the store."""
    other = Chain(store=chain.setup.store)
    chain.setup, chain.provider, chain.tasks = other.setup, other.provider, other.tasks


async def test_a_chain_stays_in_its_session_where_each_worker_ends_behind_its_response() -> None:
    """What a worker would have written a moment later is lost each time."""
    chain = Chain(store=InMemoryStore())
    sessions = set[str]()
    for _ in range(12):
        await chain.turn()
        sessions.add(chain.setup.recorder.exchanges[-1].session)
        start_anew(chain)
    assert chain.state in ("compacted", "replayed")
    assert len(sessions) == 1


async def test_what_another_worker_recorded_of_the_same_beginning_is_not_replaced() -> None:
    former = Chain(store=InMemoryStore())
    await former.until_compacted()
    await former.setup.outbox.flush()
    nodes = {key: value for key, value in former.setup.store._values.items() if key.name.startswith("point/")}
    other = Chain(store=former.setup.store)
    other.name = "b"
    await other.turn()
    assert {key: former.setup.store._values[key] for key in nodes} == nodes


async def test_a_chain_that_begins_as_one_before_it_stays_in_its_own_session() -> None:
    former = Chain(store=InMemoryStore())
    await former.until_compacted()
    await former.setup.outbox.flush()
    chain = Chain(beside=former)
    chain.replies[0] = {"output": [{**reply(0)["output"][0], "arguments": '{"path":"other"}'}]}
    sessions = {former.setup.recorder.exchanges[-1].session}
    for _ in range(12):
        await chain.turn()
        sessions.add(chain.setup.recorder.exchanges[-1].session)
        start_anew(chain)
    assert chain.state in ("compacted", "replayed")
    assert len(sessions) == 2
