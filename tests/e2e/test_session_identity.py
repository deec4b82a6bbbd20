"""Conversations are told apart by their content alone."""

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, MESSAGES
from tests.e2e.proxy_api import get_page, get_session, sum_metric, wait_until
from tests.e2e.raw_client import post
from tests.loopback import replies_events, replies_json
from tests.proxy_process import PATIENT, Proxy


async def say(proxy: Proxy, *texts: str, **headers: str) -> str:
    """The session of a request with these texts, the user's and the assistant's in turn."""
    async with proxy.provider(CHAT.answers()):
        pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
        reply = await post(proxy, CHAT.path, CHAT.body(*texts), *pairs)
    return reply.header("x-accordion-session") or ""


async def test_a_conversation_that_grows_stays_one_session(proxy: Proxy):
    talk = [f"growing {n}" for n in range(9)]
    assert len({await say(proxy, *talk[:n]) for n in range(1, 10, 2)}) == 1


async def test_two_with_the_same_opening_are_told_apart_once_they_differ(proxy: Proxy):
    first = await say(proxy, "Same opening.")
    assert await say(proxy, "Same opening.") == first, "so far nothing tells them apart"
    one = await say(proxy, "Same opening.", "An answer.", "Left.")
    two = await say(proxy, "Same opening.", "Another answer.", "Right.")
    assert one == first != two
    assert await say(proxy, "Same opening.", "An answer.", "Left.", "Yes.", "More.") == one
    assert await say(proxy, "Same opening.", "Another answer.", "Right.", "Yes.", "More.") == two
    assert (await get_session(proxy, two))["forked_from"] == one


async def test_one_that_went_back_is_another_from_there_on(proxy: Proxy):
    talk = ["Rewind 1", "2", "3", "4", "5"]
    whole = await say(proxy, *talk[:1])
    for n in (3, 5):
        assert await say(proxy, *talk[:n]) == whole
    back = await say(proxy, *talk[:3])
    assert back != whole
    assert (await get_session(proxy, back))["forked_from"] == whole
    assert await say(proxy, *talk[:3], "other 4", "other 5") == back
    assert await say(proxy, *talk, "6", "7") == whole
    assert await say(proxy, *talk[:3], "other 4", "other 5", "6", "7") == back


async def test_a_retry_is_the_same_session(proxy: Proxy):
    talk = ("Retry 1", "2", "3")
    assert await say(proxy, talk[0]) == await say(proxy, *talk) == await say(proxy, *talk)
    found = await get_session(proxy, await say(proxy, *talk))
    assert found["totals"]["requests"] == 4


async def test_a_retry_of_a_request_that_failed_is_the_same_session(proxy: Proxy):
    failed = await post(proxy, CHAT.path, CHAT.body("Fails first."))
    assert failed.status == 502
    assert await say(proxy, "Fails first.") == failed.header("x-accordion-session")


async def test_the_same_request_again_after_the_conversation_went_on_is_a_new_one(proxy: Proxy):
    first = await say(proxy, "Again 1")
    await say(proxy, "Again 1", "2", "3")
    assert await say(proxy, "Again 1") != first


async def test_labels_divide_and_never_join(proxy: Proxy):
    one = await say(proxy, "Labelled.", x_accordion_session="label-one")
    two = await say(proxy, "Labelled.", x_accordion_session="label-two")
    assert one != two
    other = await say(proxy, "Something else.", x_accordion_session="label-one")
    assert other != one, "a label is no conversation"
    listed = (await get_page(proxy, "/accordion/sessions?label=label-one")).json()["sessions"]
    assert {entry["id"] for entry in listed} == {one, other}


async def test_the_marks_of_known_clients_are_labels(proxy: Proxy):
    one = await say(proxy, "Marked.", x_claude_code_session_id="11112222-aaaa")
    two = await say(proxy, "Marked.", x_claude_code_session_id="33334444-bbbb")
    sub = await say(proxy, "Marked.", x_claude_code_session_id="11112222-aaaa", x_claude_code_agent_id="agent-0001")
    assert len({one, two, sub}) == 3
    found = await get_session(proxy, sub)
    assert (found["label"], found["agent"]) == ("11112222-aaaa", "agent-0001")


async def test_on_an_open_address_each_credential_is_a_tenant(start: Start):
    proxy = start("server: {host: 0.0.0.0, shutdown_seconds: 1}\n")
    one = await say(proxy, "Equal text.", authorization="Bearer credential-one")
    two = await say(proxy, "Equal text.", authorization="Bearer credential-two")
    assert one != two
    assert await say(proxy, "Equal text.", x_api_key="credential-one") == one
    for mine, key in ((one, "credential-one"), (two, "credential-two")):
        listed = (await get_page(proxy, "/accordion/sessions", authorization=f"Bearer {key}")).json()["sessions"]
        assert [entry["id"] for entry in listed] == [mine]
    assert (await get_page(proxy, "/accordion/sessions")).json()["sessions"] == []
    assert (
        await get_page(proxy, f"/accordion/sessions/{one}", authorization="Bearer credential-two")
    ).status_code == 404


async def test_sessions_outlive_a_restart(start: Start):
    proxy = start("server: {shutdown_seconds: 1}\n" + PATIENT, ACCORDION_STORE="sqlite:///kept.db")
    async with proxy.provider(CHAT.answers(given=700)):
        first = await post(proxy, CHAT.path, CHAT.body("Before."))
    proxy.stop()
    proxy.start()
    async with proxy.provider(CHAT.answers(given=740)):
        second = await post(proxy, CHAT.path, CHAT.body("Before.", "Then.", "After."))
    assert second.header("x-accordion-session") == first.header("x-accordion-session")
    assert 700 < int(second.header("x-accordion-tokens") or 0) < 740, "what was reported is remembered as well"
    found = await get_session(proxy, second.header("x-accordion-session"))
    assert (found["totals"]["requests"], found["totals"]["input"]) == (2, 1440)
    assert len(found["exchanges"]) == 2


async def test_tenants_outlive_a_restart(start: Start):
    """The key that tells tenants apart is kept with what it tells apart."""
    config = "server: {host: 0.0.0.0, shutdown_seconds: 1}\n"
    proxy = start(config + PATIENT, ACCORDION_STORE="sqlite:///kept.db")
    one = await say(proxy, "Mine.", authorization="Bearer credential-one")
    proxy.stop()
    proxy.start()
    assert await say(proxy, "Mine.", "Yes.", "Still?", authorization="Bearer credential-one") == one


async def test_several_workers_are_one_proxy(start: Start):
    """Whichever worker answers: sessions go on over all of them, and sums are those of all."""
    proxy = start("server: {shutdown_seconds: 1}\n" + PATIENT, "--workers", "2", ACCORDION_STORE="sqlite:///shared.db")

    async def listed() -> dict[str, int]:
        found = (await get_page(proxy, "/accordion/sessions")).json()["sessions"]
        return {entry["id"]: entry["totals"]["requests"] for entry in found}

    async def counted(requests: int) -> bool:
        page = (await get_page(proxy, "/metrics")).text
        models = (await get_page(proxy, "/accordion/models")).json()["models"]
        return (
            sum_metric(page, "accordion_requests_total", model="gpt-4o", status="2xx") == requests
            and sum((await listed()).values()) == requests
            and [row["totals"]["input"] for row in models] == [100 * requests]
        )

    opened = []
    async with proxy.provider(CHAT.answers(given=100, made=10)):
        for number in range(12):
            opened.append((await post(proxy, CHAT.path, CHAT.body(f"Worker {number}"))).header("x-accordion-session"))
        await wait_until(lambda: counted(12))
        for number, known in enumerate(opened):
            reply = await post(proxy, CHAT.path, CHAT.body(f"Worker {number}", "Yes.", "Go on."))
            assert reply.header("x-accordion-session") == known
            assert int(reply.header("x-accordion-tokens") or 0) > 100, "carried over, whoever took the report"
    await wait_until(lambda: counted(24))
    for _ in range(8):
        assert await counted(24)
    assert await listed() == dict.fromkeys(opened, 2)


async def test_several_workers_record_for_each_other_which_nodes_they_wrote(start: Start):
    proxy = start(PATIENT, "--workers", "2", ACCORDION_STORE="sqlite:///slots.db")
    slots = proxy.folder / "slots.db-workers"
    assert not any(slots.read_bytes())
    await say(proxy, "A place.")
    assert any(slots.read_bytes())


# -- learnt windows --------------------------------------------------------------------------------------------------

KEYED = """
server: {shutdown_seconds: 1}
proxy_keys: [{id: one, key: "${ONE}"}, {id: two, key: "${TWO}"}]
"""


async def test_an_overflow_teaches_the_window_to_its_own_tenant(start: Start):
    proxy = start(KEYED, ONE="first-proxy-key", TWO="second-proxy-key")
    said = "This model's maximum context length is 5000 tokens. However, your messages resulted in 6000 tokens."
    error = {"error": {"message": said, "type": "invalid_request_error", "code": "context_length_exceeded"}}

    async def window(key: str, *, overflow: bool = False) -> int:
        script = replies_json(error, 400) if overflow else CHAT.answers()
        async with proxy.provider(script):
            headers = [("x-accordion-key", key), ("Authorization", "Bearer own")]
            reply = await post(proxy, CHAT.path, CHAT.body("Too long?"), *headers)
        assert reply.status == (400 if overflow else 200)
        return int(reply.header("x-accordion-window") or 0)

    assert await window("first-proxy-key") == 128_000
    assert await window("first-proxy-key", overflow=True) == 128_000
    assert await window("first-proxy-key") == 5000
    assert await window("second-proxy-key") == 128_000
    headers = {"x-accordion-key": "first-proxy-key"}
    models = (await get_page(proxy, "/accordion/models", **headers)).json()["models"]
    assert (models[0]["window_source"], models[0]["limits"]["window"]) == ("learnt", 5000)


async def test_an_overflow_in_a_stream_teaches_the_window_too(proxy: Proxy):
    said = b"prompt is too long: 208310 tokens > 150000 maximum"
    event = (
        b'event: error\ndata: {"type": "error", "error": {"type": "invalid_request_error", "message": "%b"}}\n\n' % said
    )
    body = MESSAGES.body("Streamed overflow.", model="claude-opus-4-5", stream=True)
    async with proxy.provider(replies_events(event)):
        before = await post(proxy, MESSAGES.path, body)
        after = await post(proxy, MESSAGES.path, body)
    assert before.body == event
    assert [reply.header("x-accordion-window") for reply in (before, after)] == ["200000", "150000"]
