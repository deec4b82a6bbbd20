"""The server of the shared memory store: scripts, and commands that use a tenant's sealed names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope
from accordion.stores import memories_redis_scripts as scripts
from accordion.stores.redis import RedisStore
from accordion.stores.redis_scripts import Script
from accordion.stores.sealed_names import SealedNames

TRIES: Final = 3
"""Attempts of an operation whose data or secret changed during it."""
_TENANTS = 10_000

Command = Sequence[bytes | str | int]


class MemoriesRedisServer(RedisStore):
    """RedisStore's connections for the memories' scripts and commands. Raises StoreUnavailable."""

    def __init__(self, url: str, sealer: Sealer, *, timeout: float, cluster: bool) -> None:
        super().__init__(url, timeout=timeout, cluster=cluster)
        self._sealer = sealer
        self._known_names: dict[TenantScope, SealedNames] = {}

    async def script(self, script: Script, keys: Iterable[bytes], args: Sequence[bytes]) -> Any:
        """Runs a script and returns its reply."""
        return await self._with_timeout(self._run, script, tuple(keys), args)

    async def run_pipeline(self, *commands: Command) -> list[Any]:
        """Runs commands in one pipeline and returns their replies."""
        return await self._with_timeout(self._pipeline, commands)

    async def fields(self, name: bytes, fields: Sequence[bytes | int]) -> list[bytes | None]:
        """Returns fields of a hash, None for a missing one."""
        if not fields:
            return []
        (reply,) = await self.run_pipeline(("HMGET", name, *fields))
        values: list[bytes | None] = reply
        return values

    async def run_with_names(
        self, tenant: TenantScope, commands: Callable[[SealedNames], Sequence[Command]]
    ) -> tuple[SealedNames, list[Any]]:
        """Runs commands that use a tenant's sealed names; returns the names and the replies."""
        for _ in range(TRIES):
            sealed_names = self.tenant_names(tenant)
            # The secret is read last. An old secret never returns, so all replies before it belong to this one.
            secret = ("HMGET", scripts.tenant_keys(tenant)["veil"], "secret")
            *replies, (stored_secret,) = await self.run_pipeline(*commands(sealed_names), secret)
            if self.check_names(tenant, sealed_names, stored_secret):
                return sealed_names, replies
        raise store_is_changing()

    def tenant_names(self, tenant: TenantScope) -> SealedNames:
        """Returns the last known SealedNames of a tenant."""
        return self._known_names.get(tenant) or SealedNames(self._sealer, tenant)

    def check_names(self, tenant: TenantScope, sealed_names: SealedNames, secret: bytes | None) -> bool:
        """Returns whether `secret` belongs to these names. If not, remembers the names of `secret`."""
        if (secret or b"") == sealed_names.sealed_secret:
            return True
        if len(self._known_names) >= _TENANTS:
            self._known_names.clear()
        self._known_names[tenant] = SealedNames(self._sealer, tenant, secret or b"")
        return False

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute()
        return replies


def store_is_changing() -> StoreUnavailable:
    """Returns the error after repeated concurrent rewrites."""
    return StoreUnavailable("these memories are being re-encrypted right now")
