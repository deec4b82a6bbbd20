"""A hold-out of half of the sessions, with two workers, a restart and a provider that checks every request."""

from __future__ import annotations

from typing import Any

from accordion.accounting.holdout import Holdout
from accordion.model.budget import HoldoutGroup
from accordion.sessions.tenants import Tenants
from tests.agents import Client, Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, sum_metric, wait_until
from tests.e2e.small_window import WINDOW, compacted_requests, config, rounds
from tests.e2e.test_between_workers import one_of_each
from tests.e2e.test_savings import PRICES, on_the_command_line
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider

KEY = "a-key-of-this-test-alone"


def half(protocol_name: str) -> str:
    """A config with a hold-out of half of the sessions, and a known key."""
    text = config(protocol_name).replace("shutdown_seconds: 1", f"shutdown_seconds: 1, tenant_key: {KEY}")
    # With the default trigger, the third request above it may not fit.
    return PATIENT + text + PRICES + "compaction: {holdout: 50%}\nthresholds: {generation: 60%}\n"


def label_in(group: HoldoutGroup) -> str:
    """Returns a client's name for a session that belongs to this group."""
    tenant, holdout = Tenants(KEY.encode()).scope("default"), Holdout(0.5)
    for number in range(100):
        assignment = holdout.assign(tenant, f"m:session-{number}")
        if assignment is not None and assignment.group == group:
            return f"session-{number}"
    raise AssertionError("no name is in this group")


def states(run: Run) -> list[str]:
    return [outcome["state"] for outcome in run.compactions if outcome is not None]


async def until_due(run: Run, clients: list[Client]) -> None:
    """Sends requests, by turns through each client, until some are compacted or held out."""
    while len(states(run)) < len(clients):
        run.client = clients[len(run.answers) % len(clients)]
        await rounds(run, 1)


async def compared(proxy: Proxy, **sessions: int) -> dict[str, Any]:
    """Returns the comparison once it has so many sessions; other workers write theirs a moment later."""

    async def read() -> dict[str, Any] | None:
        found: dict[str, Any] | None = (await get_page(proxy, "/accordion/savings")).json()["holdout"]
        return found if found is not None and sessions.items() <= found["sessions"].items() else None

    found: dict[str, Any] = await wait_until(read)
    return found


async def test_each_session_has_one_group_at_all_workers_and_after_a_restart(start: Start):
    proxy = start(half("messages"), "--workers", "2", ACCORDION_STORE="sqlite:///one.db")
    labels = label_in("compaction"), label_in("holdout")
    providers = [StrictProvider("messages", WINDOW, rounds=1_000, thinks=True, run=label) for label in labels]
    runs = [Run(None, "messages", name=label, headers={"x-accordion-session": label}) for label in labels]
    made, held_out = runs
    async with one_of_each(proxy, "messages") as clients:
        for run, provider in zip(runs, providers, strict=True):
            async with proxy.provider(provider):
                await until_due(run, clients)
        before = await compared(proxy, compaction=1, holdout=1)
        page = (await get_page(proxy, "/metrics")).text
    assert states(made)[0] == "compacted"
    assert set(states(held_out)) == {"holdout"}
    # The last request came without its own answer and result.
    sent = len(held_out.history) - 2
    assert len(providers[1].taken[-1].entries) == sent, "nothing was left out"
    assert (before["verdict"], before["sessions"]["compacted_holdout"]) == ("too_few", 0)
    assert sum_metric(page, "accordion_compactions_total", state="holdout") == len(states(held_out))
    assert f"session {held_out.answers[0]['x-accordion-session']} (small) is in the hold-out: " in proxy.log
    assert (await on_the_command_line(proxy, "savings"))[0]["holdout"] == before

    assert proxy.stop() == 0
    proxy.start()
    assert await compared(proxy) == before
    async with connected(proxy.url, "messages") as held_out.client, proxy.provider(providers[1]):
        await rounds(held_out, 1)
        assert states(held_out)[-1] == "holdout"
        while len(compacted_requests(held_out)) < 2:
            await rounds(held_out, 1)
        after = await compared(proxy, compacted_holdout=1)
    first, second = compacted_requests(held_out)
    reasons = [
        str(outcome["reason"]) for outcome in held_out.compactions if outcome and outcome["state"] == "compacted"
    ]
    assert "over the hard limit" in reasons[0]
    assert "over the generation trigger" in reasons[1], "it is compacted like any other from then on"
    assert "holdout" not in [outcome and outcome["state"] for outcome in held_out.compactions[first : second + 1]]
    assert after["sessions"] == {**before["sessions"], "compacted_holdout": 1}
    for provider in providers:
        assert (provider.problems, provider.refusals) == ([], [])


async def test_a_changed_share_applies_to_sessions_that_run(start: Start):
    proxy = start(half("chat").replace("50%", "100%"))
    async with connected(proxy.url, "chat") as client, proxy.provider(StrictProvider("chat", WINDOW, rounds=1_000)):
        run = Run(client, "chat")
        await until_due(run, [client])
        assert states(run) == ["holdout"]
        proxy.config.write_text(proxy.config.read_text("utf-8").replace("100%", "0%"))
        await proxy.says("the config file was reloaded")
        await rounds(run, 1)
    assert states(run)[-1] == "compacted"
