import logging
import sys

import pytest

from accordion.composition.application import Application
from accordion.config.load import build
from tests.config.test_extras import remove


async def test_traces_without_opentelemetry_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remove(monkeypatch, "otel")
    monkeypatch.delitem(sys.modules, "accordion.features.telemetry.spans", raising=False)
    settings = build(b"store: {url: 'memory://'}", {}, {})
    with caplog.at_level(logging.WARNING, logger="accordion"):
        application = Application(settings, {"OTEL_TRACES_EXPORTER": "console"})
    await application.stop()
    assert "tracing needs the extra `otel`" in caplog.text
