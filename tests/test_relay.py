"""A piece goes on before it is listened to, and is listened to wherever the client then goes."""

from collections.abc import AsyncGenerator

from proxy.core.ports import Headers
from proxy.core.records import ReplySeen
from proxy.dialects.chat import ChatCompletions
from proxy.relay import Course, relay
from tests.fakes import FakeClock

BODY = b'{"id":"c1","model":"m","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'


class Reply:
    """One piece, and no end before it is asked for."""

    status = 200
    headers: Headers = ((b"content-type", b"application/json"),)
    delimited = True

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield BODY

    async def close(self) -> None:
        return


async def test_a_piece_is_heard_also_where_the_client_leaves_after_it() -> None:
    seen: list[ReplySeen] = []
    out = relay(Reply(), ChatCompletions(), Course(0.0), FakeClock(), "r1", seen.append)
    assert [await anext(out), await anext(out)] == [b"", BODY]
    await out.aclose()
    assert seen[0].usage is not None
    assert seen[0].usage.input == 7
