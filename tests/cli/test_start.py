"""What a start imports, by the names of modules in a fresh interpreter: what is not used must not be paid for."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

LISTED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
IMPORTED = f"import accordion.cli.serve; {LISTED}"
STARTED = f"""
import asyncio, sys
from accordion.config import SettingsFile
from accordion.composition.application import Application

async def ask(app, path):
    async def receive():
        return {{"type": "http.request", "body": b"", "more_body": False}}
    async def send(message):
        statuses.append(message.get("status"))
    scope = {{"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
              "headers": [(b"host", b"127.0.0.1:8787")], "scheme": "http", "server": ("127.0.0.1", 8787),
              "client": ("127.0.0.1", 1), "http_version": "1.1", "root_path": ""}}
    await app(scope, receive, send)

async def run():
    application = Application(SettingsFile(None, {{}}, {{"store": {{"url": "memory://"}}}}).settings, {{}})
    app = application.app()
    await application.start()
    for path in sys.argv[1:]:
        await ask(app, path)
    await application.stop()
    assert 200 in statuses, statuses

statuses = []
asyncio.run(run())
{LISTED}
"""
UNUSED = (
    "accordion.features.memory.memory_parts",
    "accordion.features.memory.mcp_server",
    "accordion.features.memory.memory_operations",
    "accordion.features.page.routes",
    "accordion.features.telemetry.spans",
    "accordion.features.memory.extraction.candidates",
    "accordion.features.translation.calls",
    "accordion.features.memory.store.static_embedder",
    "accordion.features.memory.store.stored_memories",
    "accordion.stores.redis",
    "httpx",
    "jinja2",
    "litellm",
    "mcp",
    "numpy",
    "opentelemetry",
    "pydantic",
    "redis",
    "rich",
    "tokenizers",
)
"""Modules that a proxy with the default settings never needs, or needs for its page, memories or translation alone."""
SERVER = ("accordion.config.settings", "accordion.pipeline.forward", "aiohttp", "httpx", "starlette", "uvicorn", "yaml")


def modules_of(code: str, *arguments: str) -> set[str]:
    """Returns the names of the modules that a fresh interpreter has after it ran the code."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_modules_that_are_not_imported_exist() -> None:
    assert [name for name in (*UNUSED, *SERVER) if find_spec(name) is None] == []


def test_importing_serve_imports_nothing_that_a_default_proxy_does_not_use() -> None:
    assert modules_of(IMPORTED).intersection(UNUSED) == set()


def test_a_default_proxy_starts_without_memories_translation_and_the_page() -> None:
    assert modules_of(STARTED, "/healthz").intersection(UNUSED) == set()


def test_the_memories_are_imported_with_the_first_request_to_them() -> None:
    imported = modules_of(STARTED, "/accordion/memory/openapi.json")
    assert {"accordion.features.memory.memory_parts", "accordion.features.memory.memory_operations"} <= imported
    assert "accordion.features.page.routes" not in imported


def test_the_page_is_imported_with_the_first_request_to_it() -> None:
    assert {"accordion.features.page.routes", "jinja2"} <= modules_of(STARTED, "/accordion/sign-in")


@pytest.mark.parametrize("argument", ["--help", "--version", "version"])
def test_help_and_version_import_neither_the_server_nor_the_pipeline(argument: str) -> None:
    code = f"""
import sys
from accordion.cli.main import app
sys.argv = ["accordion", {argument!r}]
try:
    app()
except SystemExit:
    pass
{LISTED}
"""
    assert modules_of(code).intersection(SERVER) == set()
