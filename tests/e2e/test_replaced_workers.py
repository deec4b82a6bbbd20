"""A worker that dies is replaced by one that has what its siblings have, whatever stands in the config by then."""

import asyncio
import json
import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from tests.conftest import Start
from tests.e2e.raw_client import ask
from tests.proxy_process import Proxy

MODELS = "model_list: [{{model_name: {}, litellm_params: {{model: openai/gpt-4o}}}}]\n"
TWO = ("--workers", "2")


async def spoilt(proxy: Proxy) -> None:
    """Writes a config that is none; until both workers have said so."""
    proxy.config.write_text("model_lst: []\n")
    proxy.hup()
    await proxy.says("the settings stay as they are", 2)


async def all_replaced(proxy: Proxy) -> None:
    before = proxy.workers
    for pid in before[-2:]:
        os.kill(pid, signal.SIGKILL)
    await proxy.says("startup complete", len(before) + 2)


async def models(proxy: Proxy) -> list[str]:
    return [model["id"] for model in json.loads((await ask(proxy, "GET", "/v1/models")).body)["data"]]


async def test_it_begins_with_the_settings_in_force_though_the_file_is_bad_by_then(start: Start):
    proxy = start(MODELS.format("first"), *TWO)
    await proxy.says("startup complete", 2)
    await spoilt(proxy)
    await all_replaced(proxy)
    assert await models(proxy) == ["first"]
    assert len(proxy.workers) == 4


async def test_a_replaced_worker_has_reloaded_settings_and_not_those_of_the_next_start(start: Start):
    proxy = start(MODELS.format("first") + "store: {url: 'sqlite:///one.db'}\n", *TWO, ACCORDION_STORE="")
    await proxy.says("startup complete", 2)
    proxy.config.write_text(MODELS.format("second") + "store: {url: 'sqlite:///other.db'}\n")
    proxy.hup()
    await proxy.says("store.url changes only at the next start", 2)
    await spoilt(proxy)
    await all_replaced(proxy)
    assert await models(proxy) == ["second"]
    assert (proxy.folder / "one.db").exists()
    assert not (proxy.folder / "other.db").exists()


async def test_a_config_from_a_pipe_holds_for_all_workers_and_their_replacements(start: Start, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(
        target=pipe.write_text, args=("proxy_keys: [{id: own, key: pk-of-my-own}]\n",), daemon=True
    )
    writer.start()
    proxy = start("", "--config", str(pipe), *TWO)
    writer.join()
    await proxy.says("startup complete", 2)
    assert (await ask(proxy, "GET", "/v1/models")).status == 401
    proxy.hup()
    await proxy.says("is read only once, at the start", 2)
    await all_replaced(proxy)
    assert (await ask(proxy, "GET", "/v1/models")).status == 401


async def test_one_that_cannot_start_says_why_once_a_try_and_its_sibling_serves_on(start: Start):
    proxy = start("", *TWO, ACCORDION_STORE="sqlite:///one.db")
    await proxy.says("startup complete", 2)
    with closing(sqlite3.connect(proxy.folder / "one.db", isolation_level=None)) as store:
        (version,) = store.execute("PRAGMA user_version").fetchone()
        store.execute("PRAGMA user_version = 1000")
        os.kill(proxy.workers[0], signal.SIGKILL)
        await proxy.says("this worker cannot start; another one will try: ", 2)
        assert (await ask(proxy, "GET", "/healthz")).status == 200
        store.execute(f"PRAGMA user_version = {version}")
        await proxy.says("startup complete", 3)
    assert "Traceback" not in proxy.log


async def test_workers_end_when_the_process_that_started_them_is_killed(start: Start, tmp_path: Path):
    proxy = start("server: {shutdown_seconds: 1}\n", *TWO, TMPDIR=str(tmp_path))
    await proxy.says("startup complete", 2)
    assert os.listdir(tmp_path)
    proxy.kill()
    await proxy.says("Finished server process", 2)
    async with asyncio.timeout(60):
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", proxy.port))[1].close()
            except ConnectionRefusedError:
                break
            await asyncio.sleep(0.05)
    assert not os.listdir(tmp_path)
