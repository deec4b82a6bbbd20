"""The shared memories' server: commands and scripts, asked by the names that a tenant's veil makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Sealer
from accordion.storage import memories_redis_scripts as scripts
from accordion.storage.memories_veil import Veil
from accordion.storage.redis import RedisStore
from accordion.storage.redis_scripts import Script

TRIES: Final = 3
"""How often something is done anew because what it was chosen or packed by was rewritten meanwhile."""
_TENANTS = 10_000

Command = Sequence[bytes | str | int]


class Server(RedisStore):
    """The shared store's connections, for scripts and commands of one's own. Raises StoreUnavailable."""

    def __init__(self, url: str, sealer: Sealer, *, timeout: float, cluster: bool) -> None:
        super().__init__(url, timeout=timeout, cluster=cluster)
        self._sealer = sealer
        self._veils: dict[bytes, Veil] = {}

    async def script(self, script: Script, keys: Iterable[bytes], args: Sequence[bytes]) -> Any:
        """What a script returns."""
        return await self._bounded(self._run, script, tuple(keys), args)

    async def together(self, *commands: Command) -> list[Any]:
        """The commands' answers, asked for in one go."""
        return await self._bounded(self._together, commands)

    async def fields(self, name: bytes, fields: Sequence[bytes | int]) -> list[bytes | None]:
        """Fields of a hash, each or None."""
        if not fields:
            return []
        (found,) = await self.together(("HMGET", name, *fields))
        values: list[bytes | None] = found
        return values

    async def asked(self, space: bytes, commands: Callable[[Veil], Sequence[Command]]) -> tuple[Veil, list[Any]]:
        """The answers to commands that use a tenant's names, and the veil that they were asked under."""
        for _ in range(TRIES):
            veil = self.known(space)
            # Asked for last: a secret never comes back, so that all before it was under this one.
            secret = ("HMGET", scripts.keys(space)["veil"], "secret")
            *answers, (found,) = await self.together(*commands(veil), secret)
            if self.still(space, veil, found):
                return veil, answers
        raise moving()

    def known(self, space: bytes) -> Veil:
        """A tenant's veil, as far as it is known."""
        return self._veils.get(space) or Veil(self._sealer, space)

    def still(self, space: bytes, veil: Veil, secret: bytes | None) -> bool:
        """Whether this is the tenant's veil; else the one that is is known from now on."""
        if (secret or b"") == veil.held:
            return True
        if len(self._veils) >= _TENANTS:
            self._veils.clear()
        self._veils[space] = Veil(self._sealer, space, secret or b"")
        return False

    async def _together(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute()
        return answers


def moving() -> StoreUnavailable:
    """What is said where something was rewritten again and again."""
    return StoreUnavailable("these memories are being re-encrypted right now")
