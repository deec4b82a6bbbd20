"""`accordion keys …`: creates, lists and revokes proxy keys in the configured store, without a proxy.

Running proxies read a change within two seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from rich.table import Table

from accordion.cli.artifacts import TIMEOUT, print_error, print_json, run_command
from accordion.cli.listing import print_table
from accordion.config import Settings
from accordion.http.admin_api import key_json
from accordion.model.errors import BadRequest, ConfigError
from accordion.server.event_loop import LoopClock
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKeyRecord
from accordion.stores.open import open_store


def create(settings: Settings, tenant: str, as_json: bool) -> int:
    """Creates a key and prints it. Returns the exit code."""
    return _run(settings, lambda created: _create(created, tenant, as_json))


def list_keys(settings: Settings, as_json: bool) -> int:
    """Lists the keys of the config and of the store. Returns the exit code."""
    return _run(settings, lambda created: _list(created, settings, as_json))


def revoke(settings: Settings, key_id: str, confirm: Callable[[str], bool]) -> int:
    """Revokes a key, if `confirm` agrees. Returns the exit code: 1 without agreement."""

    async def work(created: CreatedKeys) -> int:
        if any(key.id == key_id for key in settings.proxy_keys):
            raise BadRequest(f"{key_id} is a key of the config file. Remove it there.")
        if not confirm(f"Revoke the key {key_id}?"):
            return 1
        await created.revoke(key_id)
        sys.stdout.write(f"{key_id} is revoked\n")
        return 0

    return _run(settings, work)


def _run(settings: Settings, work: Callable[[CreatedKeys], Awaitable[int]]) -> int:
    """Opens the store and runs a command. Returns its exit code."""

    async def run() -> int:
        if not settings.admin_key:
            raise ConfigError("set it first: without it, proxies accept no keys of the store", path="$.admin_key")
        store = open_store(settings.store.url.reveal(), timeout=TIMEOUT)
        try:
            return await work(CreatedKeys(store, LoopClock()))
        finally:
            await store.close()

    return run_command(settings, run, creates=True)


async def _create(created: CreatedKeys, tenant: str, as_json: bool) -> int:
    record, key = await created.create(tenant)
    if as_json:
        print_json({**key_json(record), "key": key})
    else:
        sys.stdout.write(f"{key}\n")
        print_error(f"This is the key {record.id} of the tenant {record.tenant}. It is not shown again.", "dim")
    return 0


async def _list(created: CreatedKeys, settings: Settings, as_json: bool) -> int:
    records = [ProxyKeyRecord(key.id, key.id, b"") for key in settings.proxy_keys]
    records += await created.list_records()
    if as_json:
        for record in records:
            print_json(key_json(record))
    elif records:
        print_table(_key_table(records))
    else:
        sys.stdout.write("there are no keys\n")
    return 0


def _key_table(records: list[ProxyKeyRecord]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "tenant", "created (UTC)"):
        table.add_column(name, no_wrap=True)
    for record in records:
        created = record.created
        time = "in the config" if created is None else datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(record.id, record.tenant, time)
    return table
