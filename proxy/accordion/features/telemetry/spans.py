"""OpenTelemetry spans of exchanges, by the semantic conventions for generative AI.

Used only if OpenTelemetry's own environment variables configure an exporter. The client's `traceparent` is the parent
span; the request to the provider is not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from accordion.compaction.reporting import describe_outcome, is_in_force
from accordion.composition.features import RunningFeature
from accordion.model.records import AgentReport, CompactionOutcome, Exchange
from accordion.protocols.registry import find_protocol

Attribute = str | bool | int | float | list[str]


class SpanExporter(RunningFeature):
    """An exchange observer that emits a span for every exchange of a known protocol."""

    def __init__(self, provider: TracerProvider) -> None:
        self.observers = (self,)
        self._provider = provider
        self._tracer = trace.get_tracer("accordion", tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Emits the span of a finished exchange."""
        found = find_protocol(exchange.path)
        if found is None or found[1].is_token_count or found[1].is_compaction:
            return
        operation = found[0].operation
        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        end = int(exchange.at * 1e9)
        span = self._tracer.start_span(
            f"{operation} {exchange.model}".strip(),
            context=parent,
            kind=SpanKind.CLIENT,
            start_time=end - int(exchange.duration * 1e9),
            attributes=_attributes(operation, exchange),
        )
        if exchange.error:
            span.set_attribute("error.type", exchange.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    async def close(self, *, within: float = 3.0) -> None:
        """Sends the spans that the exporter has buffered. Takes at most `within` seconds: the collector may be down."""
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            with suppress(Exception):
                # Not in the interface, but every exporting provider has it.
                self._provider.shutdown()  # type: ignore[attr-defined]
            # The loop may be closed by then.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        # Not one of the loop's own threads: the process waits for those at its end.
        Thread(target=end, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await done.wait()


def _attributes(operation: str, exchange: Exchange) -> Mapping[str, Attribute]:
    usage, window = exchange.usage, exchange.utilization
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": exchange.upstream,
        "gen_ai.request.model": exchange.model,
        "gen_ai.conversation.id": exchange.session,
        "http.response.status_code": exchange.status,
        "accordion.window": window.window,
        "accordion.tokens": window.tokens,
        "accordion.utilization": round(window.ratio, 4),
    }
    if exchange.finish:
        attributes["gen_ai.response.finish_reasons"] = [exchange.finish]
    if usage is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.input
        attributes["gen_ai.usage.output_tokens"] = usage.output
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached
        attributes["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write
    if exchange.compaction is not None:
        attributes |= _compaction_attributes(exchange.compaction)
    if exchange.agent is not None:
        attributes |= _agent_attributes(exchange.agent)
    if window.insertions:
        attributes["accordion.insertions"] = window.insertions
    if (tool_loop := exchange.tool_loop) is not None:
        attributes |= {
            "accordion.read_back.calls": tool_loop.calls,
            "accordion.read_back.rounds": tool_loop.rounds,
            "accordion.read_back.input": tool_loop.input,
        }
    return attributes


def _agent_attributes(agent: AgentReport) -> dict[str, Attribute]:
    """Returns the agent's attributes: id and name by the conventions, evidence and hidden results as our own."""
    values: dict[str, Attribute] = {
        "gen_ai.agent.id": agent.delegation,
        "gen_ai.agent.name": agent.name,
        "accordion.delegation.parent": agent.parent,
        "accordion.delegation.evidence": agent.evidence if agent.delegation else "",
        "accordion.filtered": agent.hidden,
    }
    return {name: value for name, value in values.items() if value}


def _compaction_attributes(outcome: CompactionOutcome) -> dict[str, Attribute]:
    """Returns the compaction's attributes.

    The conventions have one, true or absent: whether the model received a compacted conversation. The figures are our
    own.
    """
    attributes: dict[str, Attribute] = {"gen_ai.conversation.compacted": True} if is_in_force(outcome) else {}
    steps = [f"{name} {before} {after}" for name, before, after in outcome.steps]
    values = {**describe_outcome(outcome), "steps": steps}
    # An attribute cannot be null.
    return attributes | {
        f"accordion.compaction.{name}": value for name, value in values.items() if value not in (None, "")
    }


def create_provider(environ: Mapping[str, str], version: str) -> TracerProvider | None:
    """Returns a provider that exports as OpenTelemetry's variables say; None if none is configured.

    Needs the SDK and the OTLP exporter (`accordion-proxy[otel]`); raises ImportError if they are missing.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp" if environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else "none")
    if environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter not in ("otlp", "console"):
        return None
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # an extra, and slow to import
    from opentelemetry.sdk.trace import TracerProvider as Provider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    resource = {"service.name": environ.get("OTEL_SERVICE_NAME", "accordion"), "service.version": version}
    # `close` shuts it down, with a time limit; the SDK's own exit handler has none.
    provider = Provider(resource=Resource.create(resource), shutdown_on_exit=False)
    if exporter == "console":
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
