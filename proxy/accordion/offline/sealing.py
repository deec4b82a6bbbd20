"""`accordion memory seal`: what was remembered before there was a key, or under another one than now, is sealed."""

from __future__ import annotations

import sys

from accordion.core.errors import ConfigError
from accordion.offline.artifacts import TIMEOUT, remembered, told
from accordion.offline.tenants import caller_of, known
from accordion.settings import Settings
from accordion.storage.opening import open_store


def seal(settings: Settings) -> int:
    """Seals the memories of every tenant with the first key; returns the exit code."""

    async def run() -> int:
        if not settings.archive.key.reveal():
            raise ConfigError("no key is set, so nothing can be encrypted", path="$.archive.key")
        store, done = open_store(settings.store.url.reveal(), timeout=TIMEOUT), list[str]()
        try:
            async with remembered(settings) as memories:
                for name in await known(settings, store):
                    if await memories.seal((await caller_of(settings, store, name)).space):
                        done.append(name)
        finally:
            await store.close()
        sys.stdout.write(f"encrypted: the memories of {', '.join(done)}\n" if done else "nothing to encrypt\n")
        return 0

    return told(settings, run)
