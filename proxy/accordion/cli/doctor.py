"""`accordion doctor`: checks what a proxy needs on this machine, and says what to do about each problem."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from accordion import __version__
from accordion.accounting.calibration import LearnedLimits
from accordion.cli.agents import AGENTS, AgentCommand, AgentError
from accordion.cli.installation import find_page, own_command
from accordion.cli.running_proxy import find_proxy, is_listening, loopback_url
from accordion.composition.configured_store import build_spool
from accordion.composition.tables import build_windows
from accordion.config import Settings, SettingsFile
from accordion.config.checks import WITHOUT_STORE, find_unknown_windows, find_unusable_store_path
from accordion.config.extras import EXTRAS, how_to_install, is_installed
from accordion.config.settings import UpstreamsConfig
from accordion.model.errors import AccordionError, ConfigError, StoreUnavailable
from accordion.model.ports import Key
from accordion.providers.http.transport import AiohttpTransport, TransportTimeouts
from accordion.providers.http.transport_errors import TransportError
from accordion.stores.open import open_store

Grade = Literal["ok", "note", "broken"]
_SECONDS = 10.0
_PROBE = Key("doctor", "probe")
_MIN_FREE = 1 << 30


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `advice` says what to do; empty if there is nothing to do."""

    grade: Grade
    subject: str
    text: str
    advice: str = ""


async def examine(config: Path | None) -> list[Finding]:
    """Runs all checks. If the config file is invalid, the checks that need it are left out."""
    findings = [*_check_versions(), *_check_agents()]
    try:
        file = SettingsFile(config, os.environ)
    except ConfigError as error:
        return [
            *findings,
            Finding("broken", "config", error.message, f"correct the file; `{own_command('check')}` reads it, too"),
        ]
    settings = file.settings
    where = str(file.path) if file.path.exists() else "no file: the defaults apply"
    findings.append(Finding("ok", "config", where))
    # These have findings of their own.
    known = {*find_unusable_store_path(settings), *find_unknown_windows(settings)}
    hints = [hint for hint in file.find_hints() if hint not in known]
    page = find_page("docs/configuration.md")
    findings += [Finding("note", "config", hint, f"see {page}" if page else "") for hint in hints]
    findings += _check_windows(settings)
    findings += [await _check_store(settings), *_check_disk(settings), *_check_port(settings)]
    return [*findings, *[finding async for finding in _check_upstreams(settings)]]


def _check_versions() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", "version", f"Accordion {__version__}, Python {version}")
    missing = [extra for extra in EXTRAS if not is_installed(extra)]
    installed = ", ".join(extra for extra in EXTRAS if extra not in missing) or "none"
    # A setting that needs a missing extra makes the config invalid.
    advice = f"to use them: {how_to_install(missing)}" if missing else ""
    not_installed = f"; not installed: {', '.join(missing)}" if missing else ""
    yield Finding("ok", "extras", f"{installed}{not_installed}", advice)
    agents = ", ".join(name for name in AGENTS if shutil.which(name)) or "none of " + ", ".join(AGENTS)
    yield Finding("ok", "agents", f"{agents}, for `{own_command('run')}`")


def _check_agents() -> Iterator[Finding]:
    """Checks the configuration of each agent that is installed: what it leaves out behind its address."""
    for name, agent_type in AGENTS.items():
        if (program := shutil.which(name)) is None:
            continue
        try:
            losses = [*agent_type(AgentCommand((program,), dict(os.environ), Path.cwd())).find_losses()]
        except AgentError as error:
            yield Finding("note", "agent", f"{name}: {error}")
            continue
        for loss in losses:
            page = find_page("docs/clients.md")
            advice = f"`{own_command(f'run {name}')}` sets what can be set" + (f"; see {page}" if page else "")
            yield Finding("note", "agent", f"{name}: {loss}", advice)


def _check_windows(settings: Settings) -> Iterator[Finding]:
    windows = build_windows(settings, LearnedLimits(lambda: 0.0))
    for name in dict.fromkeys(model.model_name for model in settings.model_list):
        window = windows.window(name)
        if not window.is_known:
            text = f"{name}: not known; {window.size:,} tokens are assumed"
            yield Finding("note", "window", text, "set model_info.max_input_tokens for it in model_list")
        else:
            yield Finding("ok", "window", f"{name}: {window.size:,} tokens")


async def _check_store(settings: Settings) -> Finding:
    """Writes a value, reads it back and removes it. Creates no SQLite file."""
    name = repr(settings.store.url)
    problem = next(find_unusable_store_path(settings), "").partition(": ")[2]
    if not problem and not _has_store(settings):
        return Finding("ok", "store", f"{name} does not exist yet; the proxy creates it")
    try:
        if problem:
            raise StoreUnavailable(problem)
        store = open_store(settings.store.url.reveal(), timeout=_SECONDS)
        build_spool(settings, store).check()
        try:
            await store.put(_PROBE, b"", ttl=60.0)
            await store.get_many([_PROBE])
            await store.delete([_PROBE])
        finally:
            await store.close()
    except (AccordionError, OSError) as error:
        advice = f"start the store, or correct store.url; {WITHOUT_STORE}"
        return Finding("broken", "store", f"{name}: {error}", advice)
    if settings.store.url.reveal() == "memory://":
        return Finding(
            "note", "store", f"{name}: its content is lost when the proxy ends", "set store.url to a file or a server"
        )
    return Finding("ok", "store", f"{name} answers")


def _has_store(settings: Settings) -> bool:
    """Whether the configured store exists, as far as a file tells."""
    file = settings.store.file()
    return not file or os.path.exists(file)


def _check_disk(settings: Settings) -> Iterator[Finding]:
    if not (file := settings.store.file() or settings.store.spool_path()):
        return
    folder = next((each for each in Path(file).absolute().parents if each.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE:
        yield Finding(
            "note",
            "disk",
            f"{free / 2**20:,.0f} MiB are free in {folder}",
            "free some space: a full disk stops the store",
        )


def _check_port(settings: Settings) -> Iterator[Finding]:
    server = settings.server
    url = loopback_url(server.host, server.port)
    if (proxy := find_proxy(url)) is not None:
        yield Finding("ok", "port", f"Accordion {proxy.version} listens on {url}")
        if proxy.version != __version__:
            yield Finding("note", "port", f"it is of another version than this command ({__version__})", "restart it")
    elif server.port and is_listening("127.0.0.1", server.port):
        advice = (
            "stop that program, or choose another server.port (ACCORDION_PORT); "
            f"`{own_command('run')}` takes a free one"
        )
        yield Finding("broken", "port", f"{server.port} belongs to another program", advice)
    else:
        yield Finding("ok", "port", f"{server.port} is free; no Accordion runs there")


async def _check_upstreams(settings: Settings) -> AsyncIterator[Finding]:
    """Connects to each base URL, without a credential: any answer of a server is good.

    A provider's own address that the config does not name is no problem where another upstream answers: a network may
    allow only the providers that are used.
    """
    upstreams = [base_url for base_url, _ in settings.upstreams.by_family().values()]
    models = [model.litellm_params.api_base for model in settings.model_list if model.litellm_params.api_base]
    urls = dict.fromkeys([*upstreams, *models])
    transport = AiohttpTransport(TransportTimeouts(connect=_SECONDS, read=_SECONDS, write=_SECONDS))
    try:
        findings = await asyncio.gather(*(_reach(transport, url) for url in urls))
    finally:
        await transport.close()
    has_answer = any(finding.grade == "ok" for finding in findings)
    defaults = {base_url for base_url, _ in UpstreamsConfig().by_family().values()}
    for url, finding in zip(urls, findings, strict=True):
        if finding.grade == "broken" and has_answer and url in defaults:
            advice = f"only if you use this provider: {finding.advice}"
            yield msgspec.structs.replace(finding, grade="note", advice=advice)
        else:
            yield finding


async def _reach(transport: AiohttpTransport, url: str) -> Finding:
    try:
        origin, target = transport.locate(url)
        response = await transport.open(origin, "GET", target, ((b"Host", origin.host.encode()),))
    except TransportError as error:
        advice = "check the address, the network, HTTPS_PROXY and SSL_CERT_FILE"
        return Finding("broken", "upstream", f"{url}: {error}", advice)
    await response.close()
    return Finding("ok", "upstream", f"{url} answers ({response.status} without a key)")


_MARKS: dict[Grade, str] = {"ok": "ok", "note": "note", "broken": "BROKEN"}


def run(config: Path | None, *, as_json: bool) -> int:
    """Prints all findings. Returns the exit code: 1 if something is broken."""
    findings = asyncio.run(examine(config))
    for finding in findings:
        if as_json:
            line = msgspec.json.encode(finding).decode()
        else:
            line = f"{_MARKS[finding.grade]:<7} {finding.subject:<9} {finding.text}"
            line += f"\n{'':18}{finding.advice}" if finding.advice else ""
        sys.stdout.write(line + "\n")
    return int(any(finding.grade == "broken" for finding in findings))
