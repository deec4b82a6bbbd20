"""A piece goes on before it is listened to, and is listened to wherever the client then goes."""

from collections.abc import AsyncGenerator

import pytest

from accordion.model.ports import Headers
from accordion.model.records import ObservedResponse
from accordion.pipeline.relay import ExchangeProgress, relay
from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.fakes import FakeClock

BODY = b'{"id":"c1","model":"m","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'


class Reply:
    """One piece, and no end before it is asked for."""

    status = 200
    headers: Headers = ((b"content-type", b"application/json"),)
    is_delimited = True

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield BODY

    async def close(self) -> None:
        return


class Guarded(Reply):
    """Notes what ends, and when; its reader may fail as it is closed."""

    def __init__(self, *, fails: bool = False) -> None:
        self.ended: list[str] = []
        self._fails = fails

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            yield BODY
            yield BODY
        finally:
            self.ended.append("reader")
            if self._fails:
                raise OSError("it could not be closed")

    async def close(self) -> None:
        self.ended.append("reply")


async def test_a_piece_is_heard_also_where_the_client_leaves_after_it() -> None:
    seen: list[ObservedResponse] = []
    out = relay(Reply(), OpenAIChat(), ExchangeProgress(0.0), FakeClock(), "r1", seen.append)
    assert [await anext(out), await anext(out)] == [b"", BODY]
    await out.aclose()
    assert seen[0].usage is not None
    assert seen[0].usage.input == 7


async def test_when_the_client_leaves_the_reader_ends_first_and_the_exchange_is_recorded() -> None:
    reply, course = Guarded(), ExchangeProgress(0.0)
    out = relay(reply, OpenAIChat(), course, FakeClock(), "r1", lambda seen: reply.ended.append("recorded"))
    await anext(out)
    await anext(out)
    await out.aclose()
    assert reply.ended == ["reader", "reply", "recorded"]
    assert course.error == "client_disconnected"


async def test_a_reader_that_fails_on_close_does_not_prevent_the_record() -> None:
    reply = Guarded(fails=True)
    out = relay(reply, None, ExchangeProgress(0.0), FakeClock(), "r1", lambda seen: reply.ended.append("recorded"))
    await anext(out)
    await anext(out)
    with pytest.raises(OSError, match="could not be closed"):
        await out.aclose()
    assert reply.ended == ["reader", "reply", "recorded"]
