"""Traces of exchanges by OpenTelemetry, if its environment variables ask for them."""

from __future__ import annotations

import logging

from accordion import __version__
from accordion.composition.features import Core, Feature, RunningFeature
from accordion.model.errors import MissingExtra

_log = logging.getLogger("accordion")


def open_tracing(core: Core) -> RunningFeature | None:
    """Opens the exporter of traces; None if none is configured, or its packages are not installed."""
    if not any(name.startswith("OTEL_") for name in core.environ):
        return None
    try:
        from accordion.features.telemetry.spans import SpanExporter, create_provider  # noqa: PLC0415  # an extra, and slow to import

        provider = create_provider(core.environ, __version__)
    except ImportError:
        _log.warning("no traces are sent, although OTEL_ variables are set: %s", MissingExtra("tracing", "otel"))
        return None
    return SpanExporter(provider) if provider is not None else None


FEATURE = Feature(open=open_tracing)
