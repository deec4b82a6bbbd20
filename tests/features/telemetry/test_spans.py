import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from accordion.compaction.reporting import describe_outcome
from accordion.features.telemetry.spans import SpanExporter, create_provider
from accordion.model.budget import Utilization
from accordion.model.records import AgentReport, CompactionOutcome, Exchange, ToolLoopUsage, Usage
from tests.http import exchanges
from tests.pipeline.test_respond import SEEN

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def exchange(path: str = "/v1/messages", **agent_attributes: Any) -> Exchange:
    usage = Usage(input=240, output=5, cached=100, cache_write=20)
    own = {"model": "claude", "upstream": "anthropic", "finish": "end_turn", "duration": 2.5}
    return exchanges.exchange(path=path, usage=usage, **own | agent_attributes)


def spans(*exchanges: Exchange, parent: str = "") -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = SpanExporter(provider)
    for each in exchanges:
        observer.exchange("tenant", each, parent)
    return exporter


def test_an_exchange_is_a_span_by_the_conventions_for_generative_ai() -> None:
    (span,) = spans(exchange()).get_finished_spans()
    assert span.name == "chat claude"
    assert span.attributes is not None
    given = dict(span.attributes)
    assert given["gen_ai.operation.name"] == "chat"
    assert given["gen_ai.provider.name"] == "anthropic"
    assert given["gen_ai.request.model"] == "claude"
    assert given["gen_ai.conversation.id"] == "s-1"
    assert given["gen_ai.usage.input_tokens"] == 240
    assert given["gen_ai.usage.cache_read.input_tokens"] == 100
    assert given["gen_ai.response.finish_reasons"] == ("end_turn",)
    assert given["accordion.utilization"] == 0.25
    assert (span.start_time, span.end_time) == (97_500_000_000, 100_000_000_000)


def test_the_clients_own_span_is_the_parent() -> None:
    (span,) = spans(exchange(), parent=PARENT).get_finished_spans()
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == PARENT[3:35]


@pytest.mark.parametrize("parent", ["nonsense", "00-zz-zz-00", "\x00"])
def test_a_malformed_parent_is_no_parent(parent: str) -> None:
    (span,) = spans(exchange(), parent=parent).get_finished_spans()
    assert span.parent is None


def test_a_failed_exchange_is_a_failed_span() -> None:
    (span,) = spans(exchange(error="upstream_disconnected")).get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "upstream_disconnected"


def attributes(seen: CompactionOutcome | None) -> dict[str, object]:
    (span,) = spans(exchange(compaction=seen)).get_finished_spans()
    return dict(span.attributes or {})


def test_a_compaction_is_on_the_span_with_its_figures() -> None:
    given = attributes(SEEN)
    assert given["gen_ai.conversation.compacted"] is True
    prefix = "accordion.compaction."
    record = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    figures = {name: value for name, value in describe_outcome(SEEN).items() if value not in (None, "")}
    assert record == figures | {"steps": ("superseded 2200 2100", "summarize 2100 600")}


def test_a_replayed_compaction_is_a_compacted_conversation_too() -> None:
    assert attributes(replace(SEEN, state="replayed", is_triggered=False))["gen_ai.conversation.compacted"] is True


@pytest.mark.parametrize("seen", [None, CompactionOutcome("observed", before=9, after=3), CompactionOutcome("failed")])
def test_an_unchanged_request_is_not_called_compacted(seen: CompactionOutcome | None) -> None:
    # By the conventions the attribute is true or absent.
    given = attributes(seen)
    assert "gen_ai.conversation.compacted" not in given
    assert given.get("accordion.compaction.state") == (seen.state if seen else None)


def test_a_figure_that_is_null_is_left_out() -> None:
    assert "accordion.compaction.utilization" not in attributes(replace(SEEN, utilization=None))


def test_the_span_has_read_back_content() -> None:
    back, used = ToolLoopUsage(rounds=2, calls=3, input=900), Utilization(1_000, messages=250, insertions=40)
    (span,) = spans(exchange(tool_loop=back, utilization=used)).get_finished_spans()
    given = dict(span.attributes or {})
    assert {name: given[f"accordion.read_back.{name}"] for name in ("rounds", "calls", "input")} == {
        "rounds": 2,
        "calls": 3,
        "input": 900,
    }
    assert given["accordion.insertions"] == 40
    (plain,) = spans(exchange()).get_finished_spans()
    assert not [name for name in plain.attributes or {} if "read_back" in name]


def test_a_request_that_is_not_read_makes_no_span() -> None:
    assert not spans(exchange(path="/v1/files")).get_finished_spans()


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console"}, False),
    ],
)
def test_traces_are_sent_only_where_an_exporter_is_configured(environ: Mapping[str, str], wanted: bool) -> None:
    assert (create_provider(environ, "1") is not None) is wanted


def test_the_agent_is_told_by_the_conventions_and_only_what_is_known_of_it() -> None:
    seen = AgentReport(name="Finder", delegation="web", parent="research", evidence="header", hidden=3)
    known, named, plain = spans(
        exchange(agent=seen),
        exchange(agent=AgentReport(delegated=False, name="Lead")),
        exchange(),
    ).get_finished_spans()

    def agent_attributes(span: ReadableSpan) -> dict[str, object]:
        given = dict(span.attributes or {})
        return {name: given[name] for name in given if "agent" in name or "delegation" in name or "filtered" in name}

    assert agent_attributes(known) == {
        "gen_ai.agent.id": "web",
        "gen_ai.agent.name": "Finder",
        "accordion.delegation.parent": "research",
        "accordion.delegation.evidence": "header",
        "accordion.filtered": 3,
    }
    assert agent_attributes(named) == {"gen_ai.agent.name": "Lead"}
    assert agent_attributes(plain) == {}


async def test_the_exporters_spans_are_sent_at_the_end() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    observer = SpanExporter(provider)
    observer.exchange("tenant", exchange(), "")
    assert exporter.get_finished_spans() == ()
    await observer.close()
    assert len(exporter.get_finished_spans()) == 1


async def test_nobody_waits_for_ever_for_what_receives_spans() -> None:
    stuck = threading.Event()

    class Stuck(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            stuck.wait()
            return super().export(spans)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    provider.add_span_processor(BatchSpanProcessor(Stuck(), schedule_delay_millis=60_000))
    observer = SpanExporter(provider)
    observer.exchange("tenant", exchange(), "")
    await observer.close(within=0.05)
    stuck.set()
