"""The page in a real Chromium, with the records of a recorded run."""

from __future__ import annotations

import asyncio
import json
import re
import signal

import httpx
import pytest
from playwright.async_api import Browser, expect

from accordion.features.page.feed import MAX_READERS
from accordion.server.event_loop import LoopClock
from accordion.stores.sqlite import SqliteStore
from tests.conftest import Start
from tests.holdouts import groups, spread, write_sessions
from tests.page.conftest import ADMIN_KEY, KEYS, Site, build_site, start_site, visit
from tests.page.recorded_run import MODEL, provider, recorded_requests, send
from tests.proxy_process import Proxy

pytestmark = pytest.mark.timeout(900)

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
DESK = {"viewport": {"width": 1280, "height": 900}}
LOOKS = {
    "light": {**DESK, "color_scheme": "light"},
    "dark": {**DESK, "color_scheme": "dark"},
    "phone": {**PHONE, "color_scheme": "light"},
    "plain": {**DESK, "color_scheme": "light", "java_script_enabled": False},
}


@pytest.mark.parametrize("look", LOOKS)
async def test_every_view_is_shown_without_a_problem_and_fits_its_screen(
    site: Site, browser: Browser, look: str
) -> None:
    async with visit(browser, site.proxy, **LOOKS[look]) as opened:
        for name, path in site.views.items():
            assert await opened.open(path) == 200, name
            await expect(opened.page.locator("h1")).to_be_visible()
            width = (
                await opened.page.locator("html").evaluate("element => element.scrollWidth") if look != "plain" else 0
            )
            assert width <= LOOKS[look]["viewport"]["width"], name
            await opened.keep(f"{name}-{look}")


async def test_colours_follow_the_system(site: Site, browser: Browser) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        async with visit(browser, site.proxy, color_scheme=scheme) as opened:
            await opened.open("/accordion/")
            grounds.add(await opened.page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))
    assert len(grounds) == 2


async def test_from_the_overview_the_keyboard_leads_to_the_source_of_a_line_of_a_summary(
    site: Site, browser: Browser
) -> None:
    async with visit(browser, site.proxy, **DESK) as opened:
        page = opened.page
        await opened.open("/accordion/")
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_text("Skip to the content")
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_be_focused()
        link = page.locator(f"a.session-name[href$='{site.session}']")
        while not await link.evaluate("element => element === document.activeElement"):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("code.id", has_text=site.session)).to_be_visible()
        await expect(page.locator("svg.curve g")).to_have_count(len(recorded_requests()))
        mark = page.locator("svg.curve a:has(.mark)").last
        await mark.focus()
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(site.compactions[-1]))
        cited = page.locator("a.cited").first
        number = await cited.inner_text()
        await cited.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(f"#m{number}")).to_be_in_viewport()


async def test_a_compaction_begins_with_its_bars_and_each_line_stands_beside_its_messages(
    site: Site, browser: Browser
) -> None:
    async with visit(browser, site.proxy, **DESK) as opened:
        page = opened.page
        await opened.open(site.views["compaction"])
        await expect(page.get_by_role("img", name="Before:")).to_be_in_viewport()
        await expect(page.get_by_role("img", name="After:")).to_be_in_viewport()
        line = page.locator(".block-summary .summary-line:has(.client details)").first
        client, model = line.locator(".client"), line.locator(".model")
        left, right = await client.bounding_box(), await model.bounding_box()
        assert left is not None
        assert right is not None
        assert left["x"] + left["width"] <= right["x"]
        assert abs(left["y"] - right["y"]) < 2
        source = client.locator("details").first
        await source.locator("summary").click()
        await expect(source.locator("pre").first).to_be_visible()
    async with visit(browser, site.proxy, **PHONE) as opened:
        await opened.open(site.views["compaction"])
        line = opened.page.locator(".block-summary .summary-line:has(.client details)").first
        above, below = await line.locator(".model").bounding_box(), await line.locator(".client").bounding_box()
        assert above is not None
        assert below is not None
        assert above["y"] + above["height"] <= below["y"] + 2


async def test_the_tree_of_agents_is_shown_from_each_of_its_sessions(site: Site, browser: Browser) -> None:
    async with visit(browser, site.proxy, **DESK) as opened:
        for session in (site.main, site.child):
            await opened.open(f"/accordion/pages/sessions/{session}")
            await expect(opened.page.locator(".agents > li")).to_have_count(2)
            await expect(opened.page.locator(".agents > li").first).to_contain_text("main agent")
            await expect(opened.page.locator(".agents > li").last).to_contain_text("known by tool")


async def test_sessions_are_searched_without_javascript(site: Site, browser: Browser) -> None:
    async with visit(browser, site.proxy, **LOOKS["plain"]) as opened:
        page = opened.page
        await opened.open("/accordion/pages/sessions")
        await expect(page.locator(".session-name")).to_have_count(3)
        await page.get_by_label("Name, project").fill("REPORTS")
        await page.keyboard.press("Enter")
        await expect(page.locator(".session-name")).to_have_count(2)
        await page.get_by_role("link", name="Show all").click()
        await page.get_by_label("Compacted").select_option("true")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator(".session-name")).to_have_count(1)
        await expect(page.locator(".session-name")).to_have_attribute("href", re.compile(site.session))


async def test_memories_are_searched(site: Site, browser: Browser) -> None:
    async with visit(browser, site.proxy, **DESK) as opened:
        await opened.open("/accordion/pages/memories")
        await expect(opened.page.locator(".memories > li")).to_have_count(2)
        await opened.page.get_by_label("Search").fill("where are the reports of March")
        await opened.page.keyboard.press("Enter")
        await expect(opened.page.locator(".memory-text").first).to_contain_text("reports/march")
        await opened.page.get_by_label("in", exact=True).select_option("session")
        await opened.page.get_by_role("button", name="Search").click()
        await expect(opened.page.get_by_text("Nothing matches")).to_be_visible()


async def test_an_open_page_shows_the_next_request_by_itself(site: Site, browser: Browser) -> None:
    async with visit(browser, site.proxy, **DESK) as opened:
        await opened.open("/accordion/")
        await expect(opened.page.locator("#live")).to_have_text("live")
        async with site.proxy.provider(provider):
            body = {"model": "new-model", "messages": [{"role": "user", "content": "Hello."}]}
            await send(site.proxy, body)
        await expect(opened.page.get_by_role("heading", name="new-model")).to_be_visible()


async def test_a_page_that_was_closed_leaves_its_place_to_another(site: Site) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for _ in range(MAX_READERS + 10):
            async with client.stream("GET", f"{site.proxy.url}/accordion/pages/events") as answer:
                assert answer.status_code == 200
                assert (await anext(answer.aiter_lines())).startswith("retry:")


@pytest.fixture
def own_site(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site that a test may change."""
    return asyncio.run(build_site(start_site(start, tmp_path_factory.mktemp("store"))))


async def test_a_person_pins_asks_switches_exports_and_erases(own_site: Site, browser: Browser) -> None:
    site = own_site
    url = f"{site.proxy.url}/accordion/sessions/{site.session}"
    async with (
        visit(browser, site.proxy, **DESK, accept_downloads=True) as opened,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        page = opened.page
        await opened.open(site.views["session"])
        await page.get_by_text("Rename", exact=True).first.click()
        await page.get_by_label("Name", exact=True).fill("The tour of the proxy")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="The tour of the proxy")).to_be_visible()
        await page.locator(".archive").get_by_role("button", name="Pin").first.click()
        await expect(page.get_by_role("status").filter(has_text="pinned")).to_be_visible()
        assert len((await client.get(url)).json()["pins"]) == 1
        await page.locator(".pins").get_by_role("button").click()
        await expect(page.locator(".pins")).to_have_count(0)
        await page.get_by_role("button", name="Compact at the next request").click()
        await expect(page.locator("#facts")).to_contain_text("compaction asked for")
        await page.get_by_label("Mode").select_option("observe")
        await page.get_by_role("button", name="Set").click()
        await expect(page.locator("#facts")).to_contain_text("observe")
        record = (await client.get(url)).json()
        assert (record["mode"], record["pins"], record["compaction_wanted"]) == ("observe", [], True)
        await page.get_by_role("link", name="Sign in to export or erase").click()
        await opened.keep("sign-in-owner")
        await page.get_by_label("Token").fill(site.proxy.token)
        await page.keyboard.press("Enter")
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Export").click()
        exported = await (await download.value).path()
        assert '"type":"end"' in exported.read_text("utf-8").splitlines()[-1]
        await page.get_by_role("link", name="Erase").click()
        await page.get_by_role("button", name="Erase").click()
        await expect(page.get_by_role("heading", name="Erased")).to_be_visible()
        assert (await client.get(url)).status_code == 404


async def test_with_proxy_keys_a_person_signs_in_first_and_sees_one_tenant(
    start: Start, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    proxy: Proxy = start_site(start, tmp_path_factory.mktemp("store"), KEYS)
    site = await build_site(proxy, x_accordion_key="acc-one-5fKq72LmZ")
    async with visit(browser, proxy, **DESK) as opened:
        page = opened.page
        await opened.open(site.views["session"])
        await expect(page.get_by_label("Proxy key")).to_be_focused()
        await opened.keep("sign-in")
        await page.keyboard.type("acc-one-5fKq72LmZ")
        await page.keyboard.press("Enter")
        await expect(page.locator("code.id", has_text=site.session)).to_be_visible()
        await page.get_by_role("button", name="Compact at the next request").click()
        await expect(page.locator("#facts")).to_contain_text("compaction asked for")
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_label("Proxy key").fill("acc-two-9pWx31RtB")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("No session yet.")).to_be_visible()
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_label("Proxy key").fill(ADMIN_KEY)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
        await expect(page.get_by_text("$20.00 a day")).to_be_visible()
        await page.get_by_label("Tenant", exact=True).fill("three")
        await page.get_by_label("Dollars a day").fill("5")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_role("status")).to_contain_text("shown only once")
        await opened.keep("created-key")
        await page.get_by_role("link", name="I have copied it").click()
        await expect(page.get_by_text("$5.00 a day")).to_be_visible()
        await opened.keep("tenants")
        await page.get_by_role("link", name="1 day").click()
        await expect(page.get_by_role("heading", name="Costs from")).to_be_visible()
    assert "acc-one" not in proxy.log
    assert ADMIN_KEY not in proxy.log


async def test_the_savings_say_whether_compaction_pays_beside_a_hold_out(
    start: Start, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    folder = tmp_path_factory.mktemp("store")
    proxy = start_site(start, folder, "compaction: {holdout: 100%}\n")
    texts = ("Look at these words.", "Yes.", "word " * 14_000)
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    async with proxy.provider(provider):
        answer = await send(proxy, {"model": MODEL, "messages": messages})
    assert json.loads(answer.headers["x-accordion-compaction"])["state"] == "holdout"
    async with visit(browser, proxy, **DESK) as opened:
        page = opened.page
        await opened.open(f"/accordion/pages/sessions/{answer.headers['x-accordion-session']}")
        await expect(page.locator("#request-rows")).to_contain_text("due, not compacted")
        await opened.open("/accordion/pages/savings")
        await expect(page.get_by_text("There are too few sessions to say")).to_be_visible()
    store = SqliteStore(folder / "store.db", timeout=60.0)
    await write_sessions(store, LoopClock().now(), "default", groups(spread(1.12, 200), spread(1.0, 100)))
    await store.close()
    for look in ("dark", "phone"):
        async with visit(browser, proxy, **LOOKS[look]) as opened:
            page = opened.page
            await opened.open("/accordion/pages/savings")
            await expect(page.get_by_role("heading", name="Compared with the hold-out")).to_be_visible()
            await expect(page.get_by_text("Compaction does not pay for this traffic")).to_be_visible()
            await expect(page.get_by_role("cell", name="Repeated calls")).to_be_visible()
            width = await page.locator("html").evaluate("element => element.scrollWidth")
            assert width <= LOOKS[look]["viewport"]["width"]
            await opened.keep(f"holdout-{look}")


async def test_a_proxy_stops_at_once_while_a_page_is_open(
    start: Start, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    proxy = start_site(start, tmp_path_factory.mktemp("store"))
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{proxy.url}/accordion/")
    await expect(page.locator("#live")).to_have_text("live")
    started_at = asyncio.get_running_loop().time()
    assert await asyncio.to_thread(proxy.stop) == -signal.SIGTERM
    assert asyncio.get_running_loop().time() - started_at < 60
    await expect(page.locator("#live")).to_have_text("not connected")
    await context.close()
