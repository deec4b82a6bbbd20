"""Makes the pictures of the README and of docs/page.md: a session's page while the agent of the demo works.

    .venv/bin/python scripts/session_picture.py

Needs Chromium, and the packages of requirements-dev.lock. It takes a minute.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
FILE, LAST_FILE = FOLDER / "session.gif", FOLDER / "page.png"
MOST_BYTES = 1_000_000
SIZE = {"width": 960, "height": 780}
COLOURS = 48
FRAME_MS, LAST_FRAME_MS = 450, 4_000
SECONDS = 45
"""The demo takes 30."""
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PAGE = re.compile(rb"(http://127\.0\.0\.1:\d+)/accordion/")


@contextmanager
def running_demo(folder: str) -> Iterator[str]:
    """Runs the demo on a terminal, where its page stays. Gives the address of its proxy."""
    terminal, end = pty.openpty()
    environ = {**os.environ, "HOME": folder, "TERM": "dumb"}
    demo = subprocess.Popen([sys.executable, "-m", "accordion", "demo"], stdin=end, stdout=end, stderr=end, env=environ)
    os.close(end)
    try:
        output = b""
        while (found := _PAGE.search(output)) is None:
            output += os.read(terminal, 4_096)
        Thread(target=_read_all, args=(terminal,), daemon=True).start()
        yield found[1].decode()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)
        os.close(terminal)


def _read_all(terminal: int) -> None:
    """Reads what the demo prints: it would wait at a full terminal."""
    # Linux reports the end of a terminal as an error.
    with suppress(OSError):
        while os.read(terminal, 4_096):
            pass


def pictures(page: Page, url: str) -> Iterator[bytes]:
    """Yields a screenshot of the session each time that it looks different."""
    page.goto(f"{url}/accordion/pages/sessions")
    link = page.locator("a[href*='sessions/s-']").first
    while not link.count():
        time.sleep(0.2)
        page.reload()
    link.click()
    last, end = b"", time.monotonic() + SECONDS
    while time.monotonic() < end:
        picture = page.screenshot()
        if picture != last:
            yield picture
        last = picture
        time.sleep(0.3)


def write_picture(frames: list[Image.Image]) -> None:
    """Writes the last frame, and a GIF in which only what changes takes bytes. Raises SystemExit if it is too large."""
    frames[-1].quantize(256).save(LAST_FILE, optimize=True)
    palette = frames[-1].quantize(COLOURS)
    reduced = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS]
    reduced[0].save(FILE, save_all=True, append_images=reduced[1:], duration=durations, loop=0, optimize=True)
    size = FILE.stat().st_size
    print(f"{FILE}: {len(frames)} frames, {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"The picture is larger than {MOST_BYTES:,} bytes.")


def main() -> None:
    """Makes the picture."""
    chromium = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if chromium is None:
        raise SystemExit("Chromium is not installed.")
    with tempfile.TemporaryDirectory() as folder, running_demo(folder) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        write_picture([Image.open(io.BytesIO(each)).convert("RGB") for each in pictures(page, url)])
        browser.close()


if __name__ == "__main__":
    main()
