"""OpenTelemetry spans of exchanges, by the semantic conventions for generative AI.

Used only where an exporter is configured by OpenTelemetry's own environment variables. The client's `traceparent` is
the parent; what goes to the provider is not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from accordion.compaction.telling import in_force, record_of
from accordion.core.records import AgentSeen, CompactionSeen, Exchange

Attribute = str | bool | int | float | list[str]

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/responses": "chat", "/v1/messages": "chat"}


class Spans:
    """An Observer that makes a span of every exchange that was read."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = trace.get_tracer("accordion", tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Emits the span of an exchange that has ended."""
        operation = _OPERATIONS.get(exchange.path)
        if operation is None:
            return
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
        """Sends the spans of the last seconds, which the exporter gathers. Takes at most so many seconds: what receives
        them may be away."""
        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            with suppress(Exception):
                # The interface has no such thing, every provider that exports does.
                self._provider.shutdown()  # type: ignore[attr-defined]
            # By then the loop may be gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        # None of the loop's own threads: for those the end of the process waits.
        Thread(target=end, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await ended.wait()


def _attributes(operation: str, exchange: Exchange) -> Mapping[str, Attribute]:
    used = exchange.utilization
    found: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": exchange.upstream,
        "gen_ai.request.model": exchange.model,
        "gen_ai.conversation.id": exchange.session,
        "http.response.status_code": exchange.status,
        "accordion.window": used.window,
        "accordion.tokens": used.tokens,
        "accordion.utilization": round(used.ratio, 4),
    }
    if exchange.finish:
        found["gen_ai.response.finish_reasons"] = [exchange.finish]
    if exchange.usage is not None:
        found["gen_ai.usage.input_tokens"] = exchange.usage.input
        found["gen_ai.usage.output_tokens"] = exchange.usage.output
        found["gen_ai.usage.cache_read.input_tokens"] = exchange.usage.cached
        found["gen_ai.usage.cache_creation.input_tokens"] = exchange.usage.cache_write
    if exchange.compaction is not None:
        found |= _compaction(exchange.compaction)
    if exchange.agent is not None:
        found |= _agent(exchange.agent)
    if used.unfolded:
        found["accordion.unfolded"] = used.unfolded
    if (back := exchange.unfolded) is not None:
        found |= {
            "accordion.unfold.calls": back.calls,
            "accordion.unfold.rounds": back.rounds,
            "accordion.unfold.input": back.input,
        }
    return found


def _agent(seen: AgentSeen) -> dict[str, Attribute]:
    """Who asked, by the conventions; how that is known, and what was hidden, are our own."""
    given: dict[str, Attribute] = {
        "gen_ai.agent.id": seen.delegation,
        "gen_ai.agent.name": seen.name,
        "accordion.delegation.parent": seen.parent,
        "accordion.delegation.evidence": seen.evidence if seen.delegation else "",
        "accordion.filtered": seen.hidden,
    }
    return {name: value for name, value in given.items() if value}


def _compaction(seen: CompactionSeen) -> dict[str, Attribute]:
    """What was folded. The conventions have one attribute for it, which is true or absent: whether the model was given
    a compacted view of the conversation. The figures are our own."""
    found: dict[str, Attribute] = {"gen_ai.conversation.compacted": True} if in_force(seen) else {}
    given = {**record_of(seen), "steps": [f"{name} {before} {after}" for name, before, after in seen.steps]}
    # An attribute cannot be null.
    return found | {f"accordion.compaction.{name}": value for name, value in given.items() if value not in (None, "")}


def provider_from(environ: Mapping[str, str], version: str) -> TracerProvider | None:
    """A provider that exports as OpenTelemetry's variables say; None where none is configured.

    Needs the SDK and the OTLP exporter (`accordion-proxy[otel]`); raises ImportError where they are missing.
    """
    wanted = environ.get("OTEL_TRACES_EXPORTER", "otlp" if environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else "none")
    if environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        wanted = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or wanted not in ("otlp", "console"):
        return None
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # an extra, and slow to import
    from opentelemetry.sdk.trace import TracerProvider as Provider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    resource = {"service.name": environ.get("OTEL_SERVICE_NAME", "accordion"), "service.version": version}
    # Nobody ends it when the process does but `close`, which does not wait for ever.
    provider = Provider(resource=Resource.create(resource), shutdown_on_exit=False)
    if wanted == "console":
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
