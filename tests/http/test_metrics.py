import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from accordion.archive.retention import SweepResult
from accordion.http.metrics import Metrics
from accordion.model.costs import NANODOLLARS, Costs
from accordion.model.records import AgentReport, CompactionOutcome, FailureKind, ToolLoopUsage, Usage
from tests.http.exchanges import exchange

COMPACTED = CompactionOutcome(
    "compacted", kind="conversation", before=900, after=300, writer="small-model", input=800, output=120, saved=600
)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    page, kind = metrics.render()
    assert kind.startswith("text/plain")
    return read(page.decode())


def read(page: str) -> dict[tuple[str, tuple[str, ...]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.values()))] = sample.value
    return found


def test_requests_tokens_errors_and_utilization_are_counted() -> None:
    metrics = Metrics()
    metrics.exchange("t", exchange(usage=Usage(input=100, output=5, cached=60)), "")
    metrics.exchange("t", exchange(status=502, error="upstream_unreachable"), "")
    found = samples(metrics)
    assert found["accordion_requests_total", ("2xx", "m", "main", "openai")] == 1
    assert found["accordion_requests_total", ("5xx", "m", "main", "openai")] == 1
    assert found["accordion_tokens_total", ("input", "m", "main", "openai")] == 100
    assert found["accordion_tokens_total", ("cached", "m", "main", "openai")] == 60
    assert found["accordion_errors_total", ("openai", "upstream_unreachable")] == 1
    assert found["accordion_window_utilization_ratio_sum", ("m", "main", "openai")] == 0.5


@given(st.lists(st.floats(0.001, 400) | st.sampled_from((0.05, 0.1, 1.0, 300.0)), max_size=20))
def test_durations_fall_into_the_same_buckets_as_with_prometheus_client(durations: list[float]) -> None:
    metrics, registry = Metrics(), CollectorRegistry()
    bounds = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
    labels = ("upstream", "model", "agent")
    name, told = "accordion_request_seconds", "Time to the end of the response"
    theirs = Histogram(name, told, labels, buckets=bounds, registry=registry).labels("openai", "m", "main")
    for duration in durations:
        metrics.exchange("t", exchange(duration=duration), "")
        theirs.observe(duration)
    written = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    if durations:
        assert [line for line in metrics.render()[0].decode().splitlines() if line in written] == written


def test_any_worker_shows_what_all_of_them_counted(tmp_path: Path) -> None:
    count = """
from tests.http.test_metrics import Metrics, Usage, exchange
metrics = Metrics()
metrics.exchange("t", exchange(usage=Usage(input=100, output=5)), "")
print(metrics.render()[0].decode())
"""
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for workers in (1, 2):
        page = subprocess.run([sys.executable, "-c", count], env=environ, check=True, capture_output=True, text=True)
        found = read(page.stdout)
        assert found["accordion_requests_total", ("2xx", "m", "main", "openai")] == workers
        assert found["accordion_tokens_total", ("input", "m", "main", "openai")] == 100 * workers
        assert found["accordion_request_seconds_bucket", ("0.25", "m", "main", "openai")] == workers


def test_a_flood_of_model_names_is_counted_as_one() -> None:
    metrics = Metrics()
    for number in range(400):
        metrics.exchange("t", exchange(model=f"model-{number}"), "")
    page = metrics.render()[0].decode()
    assert len(set(re.findall(r'model="([^"]+)"', page))) <= 201
    assert samples(metrics)["accordion_requests_total", ("2xx", "main", "openai", "other")] == 200


def test_the_store_is_seen_to_go_away_and_come_back() -> None:
    metrics = Metrics()
    assert samples(metrics)["accordion_store_available", ()] == 1
    metrics.note_store(False)
    metrics.count_dropped_writes(3)
    found = samples(metrics)
    assert found["accordion_store_available", ()] == 0
    assert found["accordion_store_outages_total", ()] == 1
    assert found["accordion_store_writes_dropped_total", ()] == 3
    metrics.note_store(True)
    assert samples(metrics)["accordion_store_available", ()] == 1


def count_compactions(*compactions: CompactionOutcome) -> dict[tuple[str, tuple[str, ...]], float]:
    metrics = Metrics()
    for each in compactions:
        metrics.exchange("t", exchange(compaction=each), "")
    return samples(metrics)


def test_compactions_are_counted_by_what_became_of_them() -> None:
    replayed = replace(COMPACTED, state="replayed")
    found = count_compactions(COMPACTED, replayed, replayed, replace(COMPACTED, cause="overflow", kind="generation"))
    name = "accordion_compactions_total"
    assert found[name, ("automatic", "compacted", "conversation", "m", "main", "openai")] == 1
    assert found[name, ("automatic", "conversation", "m", "main", "openai", "replayed")] == 2
    assert found[name, ("compacted", "generation", "m", "main", "openai", "overflow")] == 1


def test_what_compactions_save_counts_at_every_request_and_what_a_summary_took_once() -> None:
    replayed = replace(COMPACTED, state="replayed")
    found = count_compactions(COMPACTED, replayed, replayed)
    assert found["accordion_tokens_saved_total", ("m", "main", "openai")] == 1_800
    assert found["accordion_summary_tokens_total", ("input", "m", "main", "openai")] == 800
    assert found["accordion_summary_tokens_total", ("m", "main", "openai", "output")] == 120


def test_an_observed_compaction_counts_unless_it_would_fail_and_saves_nothing() -> None:
    observed = CompactionOutcome("observed", is_triggered=True, kind="conversation", before=900, after=300)
    found = count_compactions(observed, replace(observed, failure="too_little"), replace(observed, is_triggered=False))
    assert found["accordion_compactions_total", ("automatic", "conversation", "m", "main", "observed", "openai")] == 1
    assert found["accordion_tokens_saved_total", ("m", "main", "openai")] == 0


@pytest.mark.parametrize(("failure", "label"), [("too_little", "too_little"), ("store", "store"), ("", "other")])
def test_failures_are_counted_by_kind_and_never_in_free_text(failure: FailureKind, label: str) -> None:
    metrics, reason = Metrics(), "words of any kind"
    metrics.exchange("t", exchange(compaction=CompactionOutcome("failed", failure=failure, reason=reason)), "")
    assert samples(metrics)["accordion_compaction_failures_total", tuple(sorted(("m", "main", "openai", label)))] == 1
    assert reason not in metrics.render()[0].decode()


def test_a_compaction_of_which_no_kind_is_known_is_counted_too() -> None:
    found = count_compactions(CompactionOutcome("failed", reason="an internal error"))
    assert found["accordion_compactions_total", ("automatic", "failed", "m", "main", "openai", "unknown")] == 1


def test_the_compactions_of_a_flood_of_model_names_are_counted_as_one() -> None:
    metrics = Metrics()
    for number in range(400):
        metrics.exchange("t", exchange(model=f"model-{number}", compaction=COMPACTED), "")
    assert samples(metrics)["accordion_tokens_saved_total", ("main", "openai", "other")] == 200 * 600


def test_read_back_content_is_counted() -> None:
    metrics = Metrics()
    for back in (ToolLoopUsage(rounds=2, calls=3, input=900), None, ToolLoopUsage(rounds=0, calls=1)):
        metrics.exchange("t", exchange(tool_loop=back), "")
    found = samples(metrics)
    assert found["accordion_read_back_calls_total", ("m", "main", "openai")] == 4
    assert found["accordion_read_back_rounds_total", ("m", "main", "openai")] == 2


def test_the_archive_is_seen_to_hold_and_to_lose() -> None:
    metrics = Metrics()
    metrics.note_sweep(SweepResult(stored_bytes=5_000, entries=2, size=700, tenants=3))
    # One tenant alone says nothing of what all of them hold.
    metrics.note_sweep(SweepResult(stored_bytes=100, entries=1, size=50))
    found = samples(metrics)
    assert found["accordion_archive_bytes", ()] == 5_000
    assert found["accordion_archive_evicted_total", ()] == 3
    assert found["accordion_archive_evicted_bytes_total", ()] == 750
    metrics.note_sweep(SweepResult(stored_bytes=0, entries=0, size=0))
    assert samples(metrics)["accordion_archive_bytes", ()] == 0


def test_metrics_label_agents_with_two_words_and_count_hidden_results() -> None:
    metrics = Metrics()
    for number in range(3):
        metrics.exchange("t", exchange(agent=AgentReport(name=f"agent-{number}", hidden=number)), "")
    metrics.exchange("t", exchange(), "")
    found = samples(metrics)
    assert found["accordion_requests_total", ("2xx", "delegated", "m", "openai")] == 3
    assert found["accordion_requests_total", ("2xx", "m", "main", "openai")] == 1
    assert found["accordion_hidden_results_total", ("delegated", "m", "openai")] == 3
    assert b"agent-1" not in metrics.render()[0]


def test_edges_are_counted_by_their_evidence_and_what_is_no_edge_is_not() -> None:
    metrics = Metrics()
    for evidence in ("mark", "mark", "handoff", "none"):
        metrics.count_delegation(evidence)  # type: ignore[arg-type]
    found = {key[1]: value for key, value in samples(metrics).items() if key[0] == "accordion_delegations_total"}
    assert found == {("header",): 0, ("mark",): 2, ("handoff",): 1, ("tool",): 0, ("argument",): 0}


def test_tenants_are_named_only_where_there_are_proxy_keys() -> None:
    metrics = Metrics()
    metrics.exchange("c-0123", exchange(), "")
    assert not [key for key in samples(metrics) if key[0].startswith("accordion_tenant")]
    metrics.name_tenants(True)
    costs = Costs(1, sent_cost=5 * NANODOLLARS, summary_cost=NANODOLLARS, original_cost=9 * NANODOLLARS)
    metrics.exchange("research", exchange(usage=Usage(70, 30), costs=costs), "")
    metrics.exchange("research", exchange(status=502, usage=None), "")
    metrics.count_refused("research", "tokens_per_day")
    found = {key: value for key, value in samples(metrics).items() if "research" in key[1] and "created" not in key[0]}
    assert found == {
        ("accordion_tenant_requests_total", ("2xx", "research")): 1.0,
        ("accordion_tenant_requests_total", ("5xx", "research")): 1.0,
        ("accordion_tenant_tokens_total", ("input", "research")): 70.0,
        ("accordion_tenant_tokens_total", ("output", "research")): 30.0,
        ("accordion_tenant_dollars_total", ("research", "spent")): 6.0,
        ("accordion_tenant_dollars_total", ("research", "without_accordion")): 9.0,
        ("accordion_limited_requests_total", ("research", "tokens_per_day")): 1.0,
    }


def test_very_many_tenants_count_together() -> None:
    metrics = Metrics()
    metrics.name_tenants(True)
    for number in range(1_000):
        metrics.exchange(f"team-{number}", exchange(), "")
        metrics.count_refused(f"team-{number}", "requests_per_minute")
    names = {key[1] for key in samples(metrics) if key[0] == "accordion_tenant_requests_total"}
    assert len(names) == 201
    assert samples(metrics)["accordion_tenant_requests_total", ("2xx", "other")] == 800.0
    assert samples(metrics)["accordion_limited_requests_total", ("other", "requests_per_minute")] == 800.0
