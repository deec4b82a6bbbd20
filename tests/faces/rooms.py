"""The API of a house, the archive's routes included."""

from __future__ import annotations

from starlette.testclient import TestClient

from accordion.archive.custody import Custody
from accordion.archive.reading_room import ReadingRoom
from accordion.archive.transcripts import Transcripts
from accordion.compaction.exporting import described
from accordion.faces.api import Api
from accordion.faces.archive import ArchiveApi
from accordion.faces.metrics import Metrics
from accordion.wiring import dialects
from tests.memory.keeping import FakeMemories
from tests.world import World


def reading_room(world: World) -> ReadingRoom:
    """Where people read what the house keeps."""
    archive, spoken = world.kitchen.archive, {dialect.name: dialect for dialect in dialects().values()}
    transcripts = Transcripts(archive, world.tasks, world.clock, "all")
    reader = world.kitchen.reader
    custody = Custody(
        archive, world.tasks, described, lambda name, space: reader.of(spoken[name], space), world.vault.erasures,
        world.spooled.drop_erased,
    )  # fmt: skip
    return ReadingRoom(archive, transcripts, custody, spoken, world.tasks, world.clock)


def client(world: World, room: ReadingRoom | None = None, memories: FakeMemories | None = None) -> TestClient:
    """A client of the API."""
    more = ArchiveApi(
        lambda: world.observe, lambda: world.forward.tenants, room or reading_room(world), world.kitchen.wishes,
        lambda: memories or FakeMemories(),
    )  # fmt: skip
    api = Api(
        lambda: world.observe,
        lambda: world.forward.tenants,
        Metrics(),
        lambda error: world.forward.gauging.openai.error(error, "req-1"),
        "1.2.3",
        world.kitchen.wishes,
        more.routes(),
    )
    return TestClient(api.app(), base_url="http://127.0.0.1:8787")
