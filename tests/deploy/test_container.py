"""The container: the repository's Dockerfile is built, and what it builds is run as the Dockerfile says."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.buildah import ROOT, Image, Storage
from tests.deploy.conftest import run
from tests.loopback import Loopback, replies_json

pytestmark = pytest.mark.timeout(1800)

MEGABYTE = 10**6
MAX_SIZE = 400 * MEGABYTE
MAX_PLAIN_SIZE = 120 * MEGABYTE
"""What the images add to their base."""
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}
QUESTION = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello from the container."}]}
CONFIG = """
proxy_keys: [{{id: team, key: team-key-of-the-container}}]
model_list:
  - {{model_name: helper, litellm_params: {{model: openai/gpt-4o, api_key: sk-own, api_base: "{url}/v1"}}}}
"""
"""Settings in place of the image's own."""
CALLER = {"authorization": "Bearer sk-test"}
TEAM = {"authorization": "Bearer team-key-of-the-container"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A storage of images, which is removed at the end: it takes gigabytes."""
    if os.geteuid() != 0:
        assert "CI" not in os.environ
        pytest.skip("only root can change the root directory of a program")
    folder = tmp_path_factory.mktemp("images")
    storage = Storage.create(folder)
    yield storage
    storage.call("rm", "--all")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def base(storage: Storage) -> Image:
    """The image that the Dockerfile starts from."""
    (name,) = set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE))
    image = storage.create_base(name)
    version = re.findall(r"\d+\.\d+", name)
    assert [path.name for path in image.files.glob("usr/bin/python3.*")] == [f"python{version[0]}"]
    return image


@pytest.fixture(scope="module")
def image(storage: Storage, base: Image) -> Image:
    """The container as `docker build .` makes it, with all extras."""
    return storage.build("accordion")


@pytest.fixture(scope="module")
def plain(storage: Storage, base: Image) -> Image:
    """The container without extras."""
    return storage.build("accordion-plain", "--build-arg", "EXTRAS=")


def mount_config(folder: Path, url: str) -> str:
    """Returns the option that puts the settings in place of the image's own."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(url=url))
    return f"--volume={config}:/app/config.yaml:ro"


def test_all_extras_add_at_most_400_megabytes_to_the_base(image: Image, base: Image) -> None:
    added = image.size - base.size
    assert 200 * MEGABYTE < added <= MAX_SIZE


async def test_the_container_answers_and_is_healthy_until_it_is_stopped(image: Image, tmp_path: Path) -> None:
    async with Loopback(replies_json(REPLY)) as provider:
        with image.start(tmp_path / "data", "--env", f"ACCORDION_OPENAI_BASE_URL={provider.url}/v1") as service:
            assert service.is_healthy()
            async with httpx.AsyncClient(base_url=service.url, headers=CALLER, timeout=120) as http:
                reply = await http.post("/v1/chat/completions", json=QUESTION)
            assert reply.json() == REPLY
            assert provider.requests[0].header("authorization") == "Bearer sk-test"
            assert service.user == 10001
            assert service.stop() == 0, service.log
            assert (tmp_path / "data" / "accordion.db").stat().st_uid == 10001
            assert not service.is_healthy()
    assert "Traceback" not in service.log


async def test_the_printed_link_opens_the_page_and_nothing_else_does(image: Image, tmp_path: Path) -> None:
    async with Loopback(replies_json(REPLY)) as provider:
        with image.start(tmp_path / "data", "--env", f"ACCORDION_OPENAI_BASE_URL={provider.url}/v1") as service:
            async with httpx.AsyncClient(base_url=service.url, timeout=120) as http:
                assert (await http.post("/v1/chat/completions", json=QUESTION, headers=CALLER)).status_code == 200
                assert "sign-in" in (await http.get("/accordion/")).headers["location"]
                link = re.search(r"http://\S+/sign-in\?token=\S+", service.log)
                assert link is not None
                page = await http.get(link[0], follow_redirects=True)
                assert "Hello from the container" in page.text


async def test_a_second_start_finds_the_store_and_uses_the_mounted_settings(image: Image, tmp_path: Path) -> None:
    async with Loopback(replies_json(REPLY)) as provider:
        config = mount_config(tmp_path, provider.url)
        message = {**QUESTION, "model": "helper", "max_tokens": 9}
        with image.start(tmp_path / "data", config) as service:
            async with httpx.AsyncClient(base_url=service.url, headers=TEAM, timeout=120) as http:
                translated = await http.post("/v1/messages", json=message)
                assert translated.json()["content"] == [{"type": "text", "text": "Hello."}], translated.text
                assert provider.requests[0].target == "/v1/chat/completions"
                session = translated.headers["x-accordion-session"]
            assert service.stop() == 0
        with image.start(tmp_path / "data", config) as service:
            async with httpx.AsyncClient(base_url=service.url, headers=TEAM, timeout=120) as http:
                assert (await http.get(f"/accordion/sessions/{session}")).json()["id"] == session
            assert service.stop() == 0


async def test_the_plain_container_is_small_and_names_what_it_lacks(plain: Image, base: Image, tmp_path: Path) -> None:
    assert plain.size - base.size <= MAX_PLAIN_SIZE
    async with Loopback(replies_json(REPLY)) as provider:
        with plain.start(tmp_path / "data", mount_config(tmp_path, provider.url)) as service:
            assert service.is_healthy()
            async with httpx.AsyncClient(base_url=service.url, headers=TEAM, timeout=120) as http:
                question = {**QUESTION, "model": "helper", "max_tokens": 9}
                assert (await http.post("/v1/chat/completions", json=question)).json() == REPLY
                refused = await http.post("/v1/messages", json=question)
                assert "needs the extra `litellm`" in refused.text
            command = run(*plain.command(["accordion", "memory", "list"]))
            assert "docker build -t accordion --build-arg EXTRAS=" in " ".join(
                (command.stdout + command.stderr).split()
            )
            assert service.stop() == 0
