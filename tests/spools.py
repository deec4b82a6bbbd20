"""A store with a spool in a folder, and writes that wait in it."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accordion.model.ports import Append, KeyValueStore, Put
from accordion.stores.spool import SpooledStore, StoreRecord

STORE = StoreRecord(b"h" * 16, b"secret")


def with_spool(
    main: KeyValueStore, path: Path | None = None, record: StoreRecord | None = STORE, **options: Any
) -> SpooledStore:
    """A store with a spool at `path`, or in a folder that lasts as long as it; `record` is the store that answered."""
    if path is None:
        folder = tempfile.TemporaryDirectory(prefix="accordion-")
        path = Path(folder.name) / "spool"
        spooled = SpooledStore(main, [path], **options)
        weakref.finalize(spooled, folder.cleanup)
    else:
        spooled = SpooledStore(main, [path], **options)
    if record is not None:
        spooled.recall(record.secret)
        spooled.identify(record)
    return spooled


async def add_waiting(spooled: SpooledStore, writes: Sequence[Put | Append]) -> None:
    """Puts writes into the spool, whether its store is there or not."""
    await spooled._append(writes)
