"""`accordion keys …`: creates, limits, lists and revokes proxy keys in the configured store, without a proxy.

Running proxies read a change within two seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace
from rich.table import Table

from accordion.accounting.key_limits import KeyLimits, KeyUsage, read_usage
from accordion.accounting.ledger import DAY
from accordion.cli.listing import format_dollars, print_table
from accordion.cli.tenant_store import TIMEOUT, print_error, print_json, run_command
from accordion.config import Settings
from accordion.http.admin_api import KeyView, key_json
from accordion.model.errors import BadRequest, ConfigError
from accordion.model.ports import KeyValueStore
from accordion.server.event_loop import LoopClock
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKeyRecord
from accordion.stores.open import open_store


def create(settings: Settings, tenant: str, limits: KeyLimits, as_json: bool) -> int:
    """Creates a key and prints it. Returns the exit code."""
    return _run(settings, lambda created, _: _create(created, tenant, limits, as_json))


def limit(settings: Settings, key_id: str, changes: Mapping[str, float]) -> int:
    """Changes limits of a key and prints all of them. Returns the exit code."""

    async def work(created: CreatedKeys, store: KeyValueStore) -> int:
        _check_created(settings, key_id)
        record = await created.read(key_id)
        record = await created.set_limits(key_id, replace(record.limits, **changes))
        sys.stdout.write(f"{key_id} has {_format_limits(record.limits)}\n")
        return 0

    return _run(settings, work)


def list_keys(settings: Settings, as_json: bool) -> int:
    """Lists the keys of the config and of the store. Returns the exit code."""
    return _run(settings, lambda created, store: _list(created, store, settings, as_json))


def revoke(settings: Settings, key_id: str, confirm: Callable[[str], bool]) -> int:
    """Revokes a key, if `confirm` agrees. Returns the exit code: 1 without agreement."""

    async def work(created: CreatedKeys, _: KeyValueStore) -> int:
        _check_created(settings, key_id)
        if not confirm(f"Revoke the key {key_id}?"):
            return 1
        await created.revoke(key_id)
        sys.stdout.write(f"{key_id} is revoked\n")
        return 0

    return _run(settings, work)


def _run(settings: Settings, work: Callable[[CreatedKeys, KeyValueStore], Awaitable[int]]) -> int:
    """Opens the store and runs a command. Returns its exit code."""

    async def run() -> int:
        if not settings.admin_key:
            raise ConfigError("set it first: without it, proxies accept no keys of the store", path="$.admin_key")
        store = open_store(settings.store.url.reveal(), timeout=TIMEOUT)
        try:
            return await work(CreatedKeys(store, LoopClock()), store)
        finally:
            await store.close()

    return run_command(settings, run, creates=True)


def _check_created(settings: Settings, key_id: str) -> None:
    """Raises BadRequest for a key of the config."""
    if any(key.id == key_id for key in settings.proxy_keys):
        raise BadRequest(f"{key_id} is a key of the config file. Change it there.")


async def _create(created: CreatedKeys, tenant: str, limits: KeyLimits, as_json: bool) -> int:
    record, key = await created.create(tenant, limits)
    if as_json:
        print_json({**key_json(KeyView(record, KeyUsage())), "key": key})
    else:
        sys.stdout.write(f"{key}\n")
        print_error(f"This is the key {record.id} of the tenant {record.tenant}. It is not shown again.", "dim")
    return 0


async def _list(created: CreatedKeys, store: KeyValueStore, settings: Settings, as_json: bool) -> int:
    records = [ProxyKeyRecord(key.id, key.id, b"", limits=key.proxy_key().limits) for key in settings.proxy_keys]
    records += await created.list_records()
    usage = await read_usage(store, int(LoopClock().now() // DAY))
    if as_json:
        for record in records:
            print_json(key_json(KeyView(record, usage.get(record.id, KeyUsage()))))
    elif records:
        print_table(_key_table(records, usage))
    else:
        sys.stdout.write("there are no keys\n")
    return 0


def _key_table(records: list[ProxyKeyRecord], usage: Mapping[str, KeyUsage]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "tenant", "created (UTC)"):
        table.add_column(name, no_wrap=True)
    table.add_column("used today (UTC)", no_wrap=True, justify="right")
    table.add_column("limits", overflow="fold")
    for record in records:
        created = record.created
        time = "in the config" if created is None else datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%d %H:%M")
        today = usage.get(record.id, KeyUsage())
        used = f"{today.tokens:,} tokens, {format_dollars(today.cost)}"
        table.add_row(record.id, record.tenant, time, used, _format_limits(record.limits))
    return table


def _format_limits(limits: KeyLimits) -> str:
    parts = []
    if limits.tokens_per_day:
        parts.append(f"{limits.tokens_per_day:,} tokens a day")
    if limits.dollars_per_day:
        parts.append(f"${limits.dollars_per_day:,.2f} a day")
    if limits.requests_per_minute:
        parts.append(f"{limits.requests_per_minute:,} requests a minute")
    return ", ".join(parts) or "no limits"
