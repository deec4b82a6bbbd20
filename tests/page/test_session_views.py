"""The views of a session in a real Chromium: many requests, an undo, and an audit of all views by axe."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from accordion.accounting.ledger import ENCODER, exchanges_key, sessions_collection
from accordion.model.budget import Utilization
from accordion.model.ports import Key
from accordion.model.records import CompactionOutcome, Session, Totals
from accordion.model.tenant import TenantScope
from accordion.server.event_loop import LoopClock
from accordion.stores.sqlite import SqliteStore
from tests.conftest import Start
from tests.http.exchanges import exchange
from tests.page.conftest import Site, build_site, start_site, visit

pytestmark = pytest.mark.timeout(900)

DESK = {"viewport": {"width": 1280, "height": 900}}
REQUESTS = 10_000


async def write_long_session(folder: Path) -> str:
    """Writes the records of a session with REQUESTS requests, one compaction in each thousand. Returns its id."""
    store, tenant, now = SqliteStore(folder / "store.db", timeout=60.0), TenantScope("default", b""), LoopClock().now()
    made = CompactionOutcome("compacted", "f-0", before=18_000, after=5_000, saved=13_000, reason="over the trigger")
    values = [
        ENCODER.encode(
            exchange(
                at=now - REQUESTS + number,
                request_id=f"req-{number}",
                session="s-long",
                messages=number,
                utilization=Utilization(24_000, messages=5_000 + number % 1_000 * 13),
                compaction=replace(made, id=f"f-{number}") if number % 1_000 == 0 else None,
            )
        )
        for number in range(REQUESTS)
    ]
    for start in range(0, REQUESTS, 500):
        await store.append(exchanges_key(tenant, "s-long"), values[start : start + 500])
    used = Utilization(24_000, messages=17_987)
    totals = Totals(requests=REQUESTS, compactions=10)
    session = Session("s-long", "default", now, model="m", updated=now, utilization=used, totals=totals)
    await store.put(Key(sessions_collection(tenant), "s-long.worker.1"), ENCODER.encode(session))
    await store.close()
    return "s-long"


async def test_ten_thousand_requests_are_shown_in_bins_and_loaded_by_scrolling(
    start: Start, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    folder = tmp_path_factory.mktemp("store")
    proxy = start_site(start, folder)
    path = f"/accordion/pages/sessions/{await write_long_session(folder)}"
    async with visit(browser, proxy, **DESK) as opened:
        page = opened.page
        assert await opened.open(path) == 200
        assert 60 <= await page.locator("svg.curve g").count() <= 120
        await expect(page.locator(".compactions tbody tr")).to_have_count(10)
        rows = page.locator("#request-rows tr")
        await expect(rows.first).to_have_id(f"r{REQUESTS}")
        while await rows.count() < 200:
            before = await rows.count()
            await page.locator("a[data-more]").scroll_into_view_if_needed()
            await expect(page.locator(f"#r{REQUESTS - before}")).to_be_attached()
        await page.locator("svg.curve g a").first.click(position={"x": 2, "y": 200})
        await expect(rows.first).to_have_id("r84")
    async with visit(browser, proxy, **DESK, java_script_enabled=False) as opened:
        page = opened.page
        await opened.open(path)
        await page.get_by_role("link", name="Older requests").click()
        await expect(page.locator("#request-rows tr").first).to_have_id(f"r{REQUESTS - 50}")
        await page.get_by_role("link", name="Newest requests").click()
        await expect(page.locator("#request-rows tr").first).to_have_id(f"r{REQUESTS}")


async def test_a_person_undoes_a_compaction_after_a_confirmation(
    start: Start, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    site = await asyncio.to_thread(_build, start, tmp_path_factory.mktemp("store"))
    last = site.compactions[-1]
    async with visit(browser, site.proxy, **DESK) as opened, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        page = opened.page
        await opened.open(site.views["compaction"])
        await page.get_by_role("link", name="Undo…").click()
        await expect(page.get_by_role("heading", name="Undo this compaction?")).to_be_visible()
        await page.get_by_role("link", name="Leave it as it is").click()
        await page.get_by_role("link", name="Undo…").click()
        await page.get_by_role("button", name="Undo the compaction").click()
        await expect(page.get_by_role("status").filter(has_text="undone")).to_be_visible()
        await expect(page.locator(".compactions tr", has_text="undone")).to_have_count(1)
        await opened.open(site.views["compaction"])
        await expect(page.get_by_text("This compaction was undone.")).to_be_visible()
        url = f"{site.proxy.url}/accordion/sessions/{site.session}/compactions/{last}/undo"
        assert (await client.post(url)).json()["undone"] == [last]


def _build(start: Start, folder: Path) -> Site:
    return asyncio.run(build_site(start_site(start, folder)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_no_view_has_a_fault_of_contrast_names_or_roles(
    site: Site, browser: Browser, scheme: str, width: int
) -> None:
    audit = Axe()
    faults = []
    size = {"width": width, "height": 900}
    async with visit(browser, site.proxy, color_scheme=scheme, viewport=size) as opened:
        for name, path in site.views.items():
            await opened.open(path)
            results = await audit.run(opened.page)
            faults += [
                f"{name}: {each['id']}: {node['target']} {node.get('failureSummary', '')}"
                for each in results.response["violations"]
                for node in each["nodes"]
            ]
    assert faults == []


async def test_each_control_of_a_session_is_reached_by_keyboard_with_a_visible_focus(
    site: Site, browser: Browser
) -> None:
    async with visit(browser, site.proxy, **DESK) as opened:
        page = opened.page
        for name in ("session", "compaction"):
            await opened.open(site.views[name])
            controls = page.locator("main :is(button, input:not([type=hidden]), select, summary)").filter(visible=True)
            missing = set(await controls.evaluate_all("list => list.map((each, at) => (each.dataset.at = at, at))"))
            await page.locator("main").focus()
            links = await page.locator("main :is(a[href], [tabindex='0'])").count()
            for _ in range(len(missing) + links):
                await page.keyboard.press("Tab")
                focus = page.locator(":focus")
                if not await focus.count():
                    break
                at, outline = await focus.evaluate("each => [each.dataset.at, getComputedStyle(each).outlineStyle]")
                assert outline != "none", await focus.evaluate("each => each.outerHTML")
                if at is not None:
                    missing.discard(int(at))
            assert missing == set(), name
