from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from accordion.accounting.ledger import Ledger, ModelTotals, exchanges_key, totals_of_exchange
from accordion.model.budget import Utilization
from accordion.model.ports import Key
from accordion.model.records import CompactionOutcome, Exchange, Session, Totals, Usage
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox

TENANT = TenantScope("t", b"key")

COMPACTED = CompactionOutcome(
    "compacted",
    id="f-1",
    is_triggered=True,
    kind="conversation",
    steps=(("summarize", 900, 300),),
    before=900,
    after=300,
    writer="small-model",
    input=800,
    output=120,
    saved=600,
)
REPLAYED = CompactionOutcome("replayed", id="f-1", input=800, output=120, saved=600)


def exchange(compaction: CompactionOutcome | None = None, session: str = "s-1", status: int = 200) -> Exchange:
    return Exchange(
        at=5.0,
        request_id="r",
        session=session,
        model="m" if session else "",
        upstream="openai",
        path="/v1/chat/completions",
        stream=False,
        status=status,
        messages=3,
        utilization=Utilization(1_000, messages=300),
        decision="",
        usage=Usage(input=310, output=20, cached=100),
        compaction=compaction,
    )


@pytest.mark.parametrize("status", [200, 499])
def test_a_client_that_leaves_is_no_failed_request(status: int) -> None:
    assert totals_of_exchange(replace(exchange(status=status), error="client_disconnected")).errors == 0
    assert totals_of_exchange(replace(exchange(status=status), error="upstream_timeout")).errors == 1


def test_usage_is_added_without_a_compaction() -> None:
    assert totals_of_exchange(exchange()) == Totals(requests=1, input=310, output=20, cached=100)
    assert totals_of_exchange(exchange(status=500)).errors == 1


def test_tokens_beyond_the_window_could_not_have_been_sent() -> None:
    compaction = CompactionOutcome("compacted", id="f-1", saved=600)
    for used, expected in (
        (Utilization(1_000, messages=300), 600),
        (Utilization(1_000, messages=700), 300),
        (Utilization(1_000, messages=1_100), 0),
        (Utilization(1_000, messages=700, is_window_known=False), 600),
    ):
        assert totals_of_exchange(replace(exchange(compaction), utilization=used)).saved == expected


def test_the_ledger_adds_what_a_compaction_saved_and_what_its_summary_cost() -> None:
    gain = totals_of_exchange(exchange(COMPACTED))
    assert (gain.compactions, gain.saved, gain.summary_input, gain.summary_output) == (1, 600, 800, 120)
    assert (gain.input, gain.output) == (310, 20)


def test_a_replay_saves_as_much_again_and_costs_nothing() -> None:
    gain = totals_of_exchange(exchange(REPLAYED))
    assert (gain.compactions, gain.saved, gain.summary_input, gain.summary_output) == (0, 600, 0, 0)


def test_a_compaction_that_was_only_observed_adds_nothing() -> None:
    assert totals_of_exchange(exchange(CompactionOutcome("observed", before=900, after=300))) == totals_of_exchange(
        exchange()
    )


def test_a_compaction_that_failed_counts_what_the_one_before_it_goes_on_saving() -> None:
    gain = totals_of_exchange(exchange(CompactionOutcome("failed", saved=600, input=1)))
    assert (gain.compactions, gain.saved, gain.summary_input) == (0, 600, 0)


def test_a_request_that_only_asks_for_a_count_saves_nothing() -> None:
    gain = totals_of_exchange(exchange(COMPACTED, session=""))
    assert (gain.compactions, gain.saved, gain.summary_input) == (1, 0, 800)


async def test_sums_of_session_and_model_hold_the_compactions_and_the_log_their_records() -> None:
    store = InMemoryStore()
    outbox = DirectOutbox(store)
    journal = Ledger(outbox, [], "worker")
    session: Session | None = Session("s-1", "t", 1.0)
    for each in (exchange(), exchange(COMPACTED), exchange(REPLAYED), exchange(REPLAYED)):
        session = journal.record(TENANT, session, "row", each)
    await outbox.flush()
    assert session is not None
    totals = session.totals
    assert (totals.requests, totals.compactions, totals.saved) == (4, 1, 1_800)
    assert (totals.summary_input, totals.summary_output, totals.input) == (800, 120, 1_240)
    ((_, row),) = await store.scan("models/t")
    assert msgspec.msgpack.decode(row)["totals"]["saved"] == 1_800
    log = [msgspec.msgpack.decode(value, type=Exchange) for _, value in await store.read(exchanges_key(TENANT, "s-1"))]
    assert [each.compaction for each in log] == [None, COMPACTED, REPLAYED, REPLAYED]


async def test_a_first_exchange_is_in_the_session_row_and_logged_with_the_second() -> None:
    store = InMemoryStore()
    outbox = DirectOutbox(store)
    journal = Ledger(outbox, [], "worker")
    session: Session | None = Session("s-1", "t", 1.0)
    said = [replace(exchange(), request_id=f"r-{number}") for number in range(3)]
    for each, rowed, logged in zip(said, (msgspec.msgpack.encode(said[0]), b"", b""), (0, 2, 3), strict=True):
        session = journal.record(TENANT, session, "row", each)
        await outbox.flush()
        row = await store.get(Key("sessions/t", "s-1.row"))
        assert row is not None
        assert msgspec.msgpack.decode(row, type=Session) == session
        assert session is not None
        assert session.only_exchange == rowed
        log = [
            msgspec.msgpack.decode(value, type=Exchange) for _, value in await store.read(exchanges_key(TENANT, "s-1"))
        ]
        assert log == said[:logged]


async def test_records_of_before_there_were_compactions_are_still_read() -> None:
    old = {"requests": 2, "errors": 0, "input": 5, "output": 1, "cached": 0, "cache_write": 0, "reasoning": 0}
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Totals)
    assert read + totals_of_exchange(exchange(COMPACTED)) == Totals(
        3, 0, 315, 21, 100, compactions=1, saved=600, summary_input=800, summary_output=120
    )


class Late:
    """An outbox that makes what it is given when somebody looks."""

    def __init__(self) -> None:
        self.puts: dict[Key, Callable[[], bytes]] = {}

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        self.puts[key] = value

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """Logs are of no interest here."""

    async def flush(self) -> None:
        """Nothing is written."""

    def models(self) -> list[ModelTotals]:
        made = [(key, value()) for key, value in self.puts.items() if key.collection == "models/t"]
        return [msgspec.msgpack.decode(value, type=ModelTotals) for _, value in made]


def test_a_late_write_for_a_model_has_all_exchanges_the_peak_and_last_utilization() -> None:
    outbox = Late()
    journal = Ledger(outbox, [], "worker")
    for tokens, at in ((300, 5.0), (900, 6.0), (500, 7.0)):
        used = Utilization(1_000, messages=tokens)
        journal.record(TENANT, None, "", replace(exchange(), utilization=used, at=at))
    (row,) = outbox.models()
    assert (row.totals.requests, row.totals.input, row.peak, row.updated) == (3, 930, 0.9, 7.0)
    assert row.utilization.messages == 500


def test_an_evicted_model_that_returns_gets_a_second_row_beside_its_first() -> None:
    outbox = Late()
    journal = Ledger(outbox, [], "worker")
    for name in ("m", *(f"other-{number}" for number in range(1_024)), "m", "m"):
        journal.record(TENANT, None, "", replace(exchange(), model=name))
    assert [row.totals.requests for row in outbox.models() if row.model == "m"] == [1, 2]
