"""The page behind a real nginx, under a path prefix that nginx removes or passes on."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import httpx
import pytest

from tests.conftest import Start

KEY = "acc-one-5fKq72LmZ"
CONFIG = f"proxy_keys: [{{id: one, key: {KEY}}}]\n"
NGINX = """
daemon off;
error_log FOLDER/error.log;
pid FOLDER/nginx.pid;
events {}
http {
  access_log off;
  client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
  server {
    listen 127.0.0.1:LISTEN;
    location /ai/ { proxy_pass http://127.0.0.1:UPSTREAM; proxy_set_header Host $http_host; }
  }
}
"""


def find_nginx() -> str:
    """Returns nginx's path, or skips the test."""
    path = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        pytest.skip("nginx is not installed")
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[str]:
    """Runs nginx in front of an upstream (port, and a path or none); yields the address of the prefix."""
    port, config = free_port(), folder / "nginx.conf"
    text = NGINX.replace("FOLDER", str(folder)).replace("LISTEN", str(port)).replace("UPSTREAM", upstream)
    config.write_text(text, "utf-8")
    process = subprocess.Popen([find_nginx(), "-p", str(folder), "-c", str(config)])
    try:
        yield f"http://127.0.0.1:{port}/ai"
    finally:
        process.terminate()
        process.wait()


async def until_open(http: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await http.get(url)
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize(("setting", "path"), [("", "/"), ("server: {base_path: /ai}\n", "")], ids=["removed", "kept"])
async def test_the_page_works_under_a_path_prefix_of_nginx(
    start: Start, tmp_path: Path, setting: str, path: str
) -> None:
    find_nginx()
    proxy = start(CONFIG + setting)
    async with httpx.AsyncClient(trust_env=False, timeout=60, follow_redirects=True) as http:
        with nginx(tmp_path, f"{proxy.port}{path}") as url:
            await until_open(http, url)
            form = await http.get(f"{url}/accordion/")
            assert str(form.url) == f"{url}/accordion/sign-in?to="
            origin = url.removesuffix("/ai")
            (action,) = re.findall(r'action="([^"]*sign-in)"', form.text)
            page = await http.post(str(form.url.join(action)), data={"key": KEY}, headers={"origin": origin})
            assert (page.status_code, str(page.url)) == (200, f"{url}/accordion/")
            assert {cookie.path for cookie in http.cookies.jar} == {"/ai/accordion"}
            links = set(re.findall(r'(?:href|src|data-events)="([^"#]+)"', page.text))
            assert len(links) > 6
            for link in links - {link for link in links if "events" in link}:
                answer = await http.get(page.url.join(unescape(link)))
                assert (answer.status_code, str(answer.url).startswith(f"{url}/accordion/")) == (200, True), link
            models = await http.get(f"{url}/accordion/models", headers={"x-accordion-key": KEY})
            assert models.json() == {"models": []}
