from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.transcripts import RecordedRequest, WaitingRequests, estimate_size
from tests.archive.archive_setup import TENANT, chat

CAPACITY = 30_000


def item(session: str, length: int, text: str) -> RecordedRequest:
    conversation = chat(*[text * 1_000] * length)
    return RecordedRequest(TENANT, session, conversation, 0.0, size=estimate_size(conversation))


ITEMS = st.builds(item, st.sampled_from(["s-1", "s-2", "s-3"]), st.integers(1, 9), st.sampled_from("ab"))


@given(st.lists(st.one_of(ITEMS, st.integers(1, 4), st.sampled_from(["s-1", "s-2"]))))
def test_requests_that_wait_take_no_more_than_their_bytes(steps: list[RecordedRequest | int | str]):
    waiting = WaitingRequests(CAPACITY)
    for step in steps:
        if isinstance(step, RecordedRequest):
            waiting.add(step)
        elif isinstance(step, int):
            taken = waiting.take(step)
            waiting.put_back(taken[::2])
        else:
            waiting.drop(lambda name, gone=step: name[1] == gone)
        assert waiting.size <= CAPACITY or len(waiting) == 1
        assert bool(waiting.size) == bool(len(waiting))
        if isinstance(step, RecordedRequest):
            everything = waiting.take(len(waiting))
            assert everything[-1] is step
            assert sum(each.size for each in everything) <= max(CAPACITY, step.size)
            assert waiting.size == 0
            waiting.put_back(everything)
