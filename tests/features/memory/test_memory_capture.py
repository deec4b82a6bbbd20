"""What a compaction takes out becomes memories, behind the request, each range once."""

from collections.abc import Coroutine
from typing import Any, ClassVar

import pytest
from msgspec.structs import fields

from accordion.features.memory.extraction.memory_extractor import CompletedRange, MemoryExtractor
from accordion.features.memory.memory_capture import MemoryCapture, MemoryCaptureHook
from accordion.model.errors import StoreUnavailable
from accordion.model.tenant import TenantScope
from tests.archive.archive_setup import TENANT
from tests.compaction.compactor_setup import LoopTasks
from tests.fakes import FakeTasks, FakeWindows
from tests.features.memory.compaction_setup import ID, CompactionSetup, build_setup, talk
from tests.insertions.test_artifact_recall import assistant_entry, user_entry
from tests.insertions.test_artifact_recall import request as long
from tests.pipeline_setup import CHAT, PipelineSetup


class Waits:
    """Notes how often somebody waited, and lets something happen meanwhile."""

    def __init__(self, then: Any = None) -> None:
        self.times, self._then = 0, then

    async def __call__(self, _seconds: float) -> None:
        self.times += 1
        if self._then is not None:
            await self._then(self.times)


def build_capture(setup: CompactionSetup, waits: Waits | None = None, recordings: Any = None) -> MemoryCapture:
    return MemoryCapture(
        lambda: setup.compactions, recordings or setup.archive.transcripts, FakeTasks(), waits or Waits(), "billing"
    )


async def done(setup: CompactionSetup) -> list[tuple[int, int]]:
    return [(each.start_index, each.end_index) for each in await setup.compactions.find_completed(TENANT, ID)]


async def test_the_range_of_a_compaction_is_compacted_with_the_system_prompt_in_front():
    setup = await build_setup()
    await build_capture(setup).capture(TENANT, ID, 6)
    assert await done(setup) == [(0, 6)]
    assert {each.project for each in setup.memories.of(TENANT).memories.values()} == {"billing"}


async def test_memories_belong_to_the_project_that_the_request_names():
    for named, project in ((None, "billing"), ("", ""), ("audits", "audits")):
        setup = await build_setup()
        await build_capture(setup).capture(TENANT, ID, 6, named)
        assert {each.project for each in setup.memories.of(TENANT).memories.values()} == {project}


async def test_a_later_compaction_goes_on_behind_and_the_same_one_adds_nothing():
    setup = await build_setup()
    for covered in (6, 6, 10, 8):
        await build_capture(setup).capture(TENANT, ID, covered)
    assert await done(setup) == [(0, 6), (7, 10)]


async def test_a_range_that_was_compacted_for_some_topics_only_is_compacted_all_the_same():
    setup = await build_setup()
    await setup.compactions.find_completed(TENANT, ID)
    await setup.compactions.compact(TENANT, ID, 0, 6, ["billing"])
    await build_capture(setup).capture(TENANT, ID, 6)
    assert sorted(await done(setup)) == [(0, 6), (0, 6)]


async def test_it_is_waited_for_until_what_was_compacted_is_recorded():
    setup = await build_setup(talk()[:3])

    async def then(times: int) -> None:
        if times == 3:
            await setup.record(talk())

    waits = Waits(then)
    await build_capture(setup, waits).capture(TENANT, ID, 6)
    assert waits.times == 3
    assert await done(setup) == [(0, 6)]


async def test_what_is_never_recorded_is_given_up():
    setup = await build_setup(talk()[:3])
    waits = Waits()
    await build_capture(setup, waits).capture(TENANT, ID, 6)
    assert 1 < waits.times < 100
    assert await done(setup) == []


async def test_a_store_that_is_away_harms_nobody(caplog: pytest.LogCaptureFixture):
    setup = await build_setup()

    class Away:
        async def find(self, _space: bytes, _session: str) -> None:
            raise StoreUnavailable("away")

    await build_capture(setup, recordings=Away()).capture(TENANT, ID, 6)
    setup.memories.away = True
    await build_capture(setup).capture(TENANT, ID, 6)
    assert "could be made of a compaction: away" in caplog.text
    setup.memories.away = False
    await build_capture(setup).capture(TENANT, ID, 6)
    assert await done(setup) == [(0, 6)]


async def test_compactions_that_come_close_together_are_remembered_one_after_the_other():
    setup, tasks = await build_setup(), LoopTasks()
    made = MemoryCapture(lambda: setup.compactions, setup.archive.transcripts, tasks, Waits())
    for covered, project in ((4, "one"), (6, "two"), (10, "one")):
        made.enqueue(TENANT, ID, covered, project)
    await tasks.done()
    assert await done(setup) == [(0, 4), (5, 6), (7, 10)]
    made.enqueue(TENANT, ID, 12)
    await tasks.done()
    assert await done(setup) == [(0, 4), (5, 6), (7, 10), (11, 12)]


async def test_compactions_of_one_project_that_wait_are_remembered_as_one():
    setup, tasks, waits = await build_setup(), LoopTasks(), Waits()
    made = MemoryCapture(lambda: setup.compactions, setup.archive.transcripts, tasks, waits)
    for covered in (4, 10, 6):
        made.enqueue(TENANT, ID, covered)
    await tasks.done()
    assert await done(setup) == [(0, 10)]
    assert waits.times == 1


async def test_compactions_that_are_never_recorded_do_not_wait_for_each_other_without_end():
    setup, tasks, waits = await build_setup(talk()[:3]), LoopTasks(), Waits()
    made = MemoryCapture(lambda: setup.compactions, setup.archive.transcripts, tasks, waits)
    for at in range(200):
        made.enqueue(TENANT, ID, 6 + at, str(at % 2))
    await tasks.done()
    assert waits.times <= 100
    assert await done(setup) == []


async def test_an_unexpected_error_in_one_capture_delays_no_other(
    caplog: pytest.LogCaptureFixture,
):
    setup, tasks = await build_setup(), LoopTasks()
    broken = [True]

    def compactions() -> MemoryExtractor:
        if broken and broken.pop():
            raise RuntimeError("odd")
        return setup.compactions

    made = MemoryCapture(compactions, setup.archive.transcripts, tasks, Waits())
    for covered, project in ((4, "one"), (10, "two")):
        made.enqueue(TENANT, ID, covered, project)
    await tasks.done()
    assert "could be made of a compaction" in caplog.text
    assert await done(setup) == [(0, 10)]


class Crowded(MemoryExtractor):
    """Others compact a range behind each of the first searches."""

    ranges: ClassVar[list[tuple[int, int]]] = []

    async def find_completed(self, tenant: TenantScope, conversation: str) -> list[CompletedRange]:
        found = await super().find_completed(tenant, conversation)
        if self.ranges:
            await super().compact(tenant, conversation, *self.ranges.pop(0))
        return found


async def crowded(*ranges: tuple[int, int]) -> CompactionSetup:
    """A setup in which others compact these ranges at the same time."""
    setup = await build_setup()
    given = {each.name: getattr(setup.compactions, each.name) for each in fields(setup.compactions)}
    setup.compactions = Crowded(**given)
    Crowded.ranges[:] = ranges
    return setup


async def test_what_another_worker_compacted_meanwhile_is_gone_on_behind():
    setup = await crowded((0, 2), (3, 4))
    await build_capture(setup).capture(TENANT, ID, 10)
    assert await done(setup) == [(0, 2), (3, 4), (5, 10)]


async def test_what_others_compact_again_and_again_is_left_to_the_next_compact(caplog: pytest.LogCaptureFixture):
    setup = await crowded((0, 1), (2, 2), (3, 3), (4, 4))
    await build_capture(setup).capture(TENANT, ID, 10)
    assert await done(setup) == [(0, 1), (2, 2), (3, 3), (4, 4)]
    assert "could be made of a compaction: others" in caplog.text
    await build_capture(setup).capture(TENANT, ID, 10)
    assert (await done(setup))[-1] == (5, 10)


class Spawned(FakeTasks):
    """Notes what is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.names.append(name)
        super().spawn(work, name)


async def test_only_a_compaction_that_was_made_for_a_request_is_remembered_and_once():
    made, tasks = PipelineSetup(windows=FakeWindows(3_000)), Spawned()

    def never() -> MemoryExtractor:
        raise AssertionError("nobody asked")

    capture = MemoryCapture(never, made.archive.transcripts, tasks, Waits())
    made.rebuild(response_hooks=[MemoryCaptureHook(capture)])
    await made.ask(CHAT, {"model": "gpt-5", "messages": [user_entry(CHAT, "Hello.")]})
    assert tasks.names == []
    body = long(CHAT)
    await made.ask(CHAT, body)
    assert tasks.names == ["make memories of a compaction"]
    body["messages"] += [assistant_entry(CHAT, "Nothing."), user_entry(CHAT, "Go on.")]
    await made.ask(CHAT, body)
    assert made.recorder.exchanges[-1].compaction is not None
    assert len(tasks.names) == 1


async def test_a_compaction_is_remembered_in_the_project_that_its_request_names(monkeypatch: pytest.MonkeyPatch):
    made, told = PipelineSetup(windows=FakeWindows(3_000)), list[str | None]()
    monkeypatch.setattr(
        MemoryCapture, "enqueue", lambda _self, _space, _session, _covered, project: told.append(project)
    )
    made.rebuild(response_hooks=[MemoryCaptureHook(build_capture(await build_setup()))])
    await made.ask(CHAT, long(CHAT), {"x-accordion-project": "audits"})
    assert told == ["audits"]
