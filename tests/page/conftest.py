"""A started proxy with recorded sessions, and a real Chromium that looks at it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.conftest import Start
from tests.page.recorded_run import CONFIG, provider, send_delegation, send_recorded
from tests.proxy_process import Proxy

SCREENSHOTS = Path(__file__).parent / "screenshots"
"""The output of the last runs, for a person to look at; git ignores it."""
# A busy machine shows a page late.
expect.set_options(timeout=60_000)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Its names, as the Makefile has them."""
ADMIN_KEY = "acc-admin-7Hk2Qp4RtZ"
KEYS = f"""
admin_key: {ADMIN_KEY}
proxy_keys:
  - {{id: one, key: acc-one-5fKq72LmZ, dollars_per_day: 20, requests_per_minute: 6000}}
  - {{id: two, key: acc-two-9pWx31RtB}}
"""


@dataclass
class Site:
    """A proxy with one compacted session and one with a sub-agent."""

    proxy: Proxy
    session: str
    main: str
    child: str
    compactions: list[str]
    artifact: str

    @property
    def views(self) -> dict[str, str]:
        """The paths of all views, by name."""
        sessions = "/accordion/pages/sessions"
        return {
            "overview": "/accordion/",
            "sessions": sessions,
            "session": f"{sessions}/{self.session}",
            "agents": f"{sessions}/{self.main}",
            "compaction": f"{sessions}/{self.session}/compactions/{self.compactions[-1]}",
            "sent": f"{sessions}/{self.session}/sent",
            "artifact": f"/accordion/pages/artifacts/{self.artifact}",
            "memories": "/accordion/pages/memories",
            "savings": "/accordion/pages/savings",
            "health": "/accordion/pages/health",
            "erasure": f"{sessions}/{self.session}/erase",
        }


async def build_site(proxy: Proxy, **headers: str) -> Site:
    """Sends the recorded requests, and asks the API what came of them."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with proxy.provider(provider), httpx.AsyncClient(trust_env=False, timeout=60, headers=named) as client:
        session = await send_recorded(proxy, **headers)
        main, child = await send_delegation(proxy, **headers)
        for content in ("The reports of March are in reports/march.", "The user wants five columns at most."):
            body = {"content": content, "topics": ["reports"]}
            answer = await client.post(f"{proxy.url}/accordion/memory/add", json=body)
            assert answer.status_code == 200, answer.text
        record = (await client.get(f"{proxy.url}/accordion/sessions/{session}")).json()
        made = [each["compaction"] for each in record["exchanges"] if each["compaction"]]
        artifacts = (await client.get(f"{proxy.url}/accordion/artifacts?session={session}")).json()["artifacts"]
        await _until_recorded(client, f"{proxy.url}/accordion/sessions/{session}/sent")
    ids = [each["id"] for each in made if each["state"] == "compacted"]
    assert len(ids) >= 2
    return Site(proxy, session, main, child, ids, artifacts[0]["id"])


async def _until_recorded(client: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(60):
        while (await client.get(url)).status_code != 200:
            await asyncio.sleep(0.1)


def start_site(start: Start, folder: Path, more: str = "") -> Proxy:
    """Starts a proxy with a store in SQLite."""
    return start(CONFIG + more, ACCORDION_STORE=f"sqlite:///{folder}/store.db")


@pytest.fixture(scope="module")
def site(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site that the tests of a file share; none of them changes what another one looks at."""
    return asyncio.run(build_site(start_site(start, tmp_path_factory.mktemp("store"))))


@dataclass
class Visit:
    """An open page, and what went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    """Console errors, uncaught exceptions, violations of the policy, and requests to other addresses."""

    async def open(self, path: str) -> int:
        """Opens a path; returns the status."""
        answer = await self.page.goto(f"{self.url}{path}")
        assert answer is not None
        return answer.status

    async def keep(self, name: str) -> None:
        """Keeps a screenshot."""
        SCREENSHOTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        assert "CI" not in os.environ, "CI must have Chromium"
        pytest.skip("Chromium is not installed")
    async with async_playwright() as playwright:
        # Chromium's sandbox does not start as root.
        started = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        await started.close()


@asynccontextmanager
async def visit(browser: Browser, proxy: Proxy, **options: Any) -> AsyncIterator[Visit]:
    """Opens an empty page in a context of its own. Fails on leaving if anything went wrong in it."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    page.set_default_timeout(120_000)
    opened = Visit(page, proxy.url)
    page.on("console", lambda message: opened.problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on("request", lambda each: None if each.url.startswith(proxy.url) else opened.problems.append(each.url))
    try:
        yield opened
    finally:
        await context.close()
    assert opened.problems == []
