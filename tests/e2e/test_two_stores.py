"""Two proxies of one user, each with a store of its own, both away at once: neither gets what is the other's."""

import re
from pathlib import Path

from tests.agents import Run
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, agent, compacted_requests, config, rounds
from tests.proxy_process import Proxy
from tests.strict_provider import StrictProvider
from tests.valkey import running_valkey

WORDS = 400


def references(provider: StrictProvider) -> set[str]:
    """Every artifact that is named in a request that reached the provider."""
    return {each for sent in provider.taken for each in re.findall(r"art_[0-9a-z]+", repr(sent.entries))}


async def compacted_again(run: Run) -> None:
    """Works on until another compaction was made."""
    before = len(compacted_requests(run))
    while len(compacted_requests(run)) == before:
        await rounds(run, 1)


async def unreadable(proxy: Proxy, names: set[str]) -> list[str]:
    return [
        name for name in sorted(names) if (await get_page(proxy, f"/accordion/artifacts/{name}")).status_code != 200
    ]


async def test_each_store_gets_what_its_own_proxy_spooled(start: Start, tmp_path: Path):
    models = [StrictProvider("chat", WINDOW, rounds=1_000, run=name, words=WORDS) for name in ("first", "second")]
    home = tmp_path / "home"
    home.mkdir()
    with running_valkey(tmp_path, appendonly="yes") as valkey:
        urls = [valkey.url, valkey.url.removesuffix("/0") + "/1"]
        proxies = [start(config("chat"), ACCORDION_STORE=url, HOME=str(home)) for url in urls]
        async with (
            proxies[0].provider(models[0]),
            proxies[1].provider(models[1]),
            agent(proxies[0], "chat", name="first", words=WORDS) as one,
            agent(proxies[1], "chat", name="second", words=WORDS) as two,
        ):
            for run in (one, two):
                await compacted_again(run)
            valkey.kill()
            for run in (one, two):
                await compacted_again(run)
                assert run.answers[-1]["x-accordion-store"] == "spooled"
            assert len(list((home / ".local/state/accordion").glob("spool-*.log"))) == 2
            valkey.start()
            for proxy, model in zip(proxies, models, strict=True):
                names = references(model)
                assert names

                async def all_readable(proxy: Proxy = proxy, names: set[str] = names) -> bool:
                    return not await unreadable(proxy, names)

                await wait_until(all_readable)
            # The artifacts of one are not in the other's store.
            assert await unreadable(proxies[1], references(models[0])) == sorted(references(models[0]))
            assert await unreadable(proxies[0], references(models[1])) == sorted(references(models[1]))
