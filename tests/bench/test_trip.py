"""The paths that `trip` counts are those that it names."""

from __future__ import annotations

import pytest

from bench.scenarios import trip


@pytest.mark.parametrize("name", trip.REQUESTS)
async def test_each_path_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third one also finds that the request was compacted, or else there is no artifact to read."""
    monkeypatch.setattr(trip, "SETTLE", 0.0)
    profiler = trip.Profiler()
    try:
        modules, functions, calls, between = await trip.count(profiler, trip.REQUESTS[name])
    finally:
        profiler.stop()
    assert 10 < modules < functions < calls
    assert 0 < between < calls
