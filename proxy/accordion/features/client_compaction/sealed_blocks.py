"""The sealed content of our compaction blocks: a list of entries and its artifacts, compressed, for one tenant.

The client keeps it. Nothing of it is stored here, so that a block outlives a store, and works with any model and
provider of the same protocol. Another tenant's block, or a changed one, does not open.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from accordion.archive.sealing import SEALED
from accordion.features.client_compaction.context_edits import SEAL_PREFIX, OpenedBlock
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope
from accordion.protocols.zstd import ZstdError, compress, decompress

_MAX_BYTES = 64 * 2**20
_LEVEL = 3
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(OpenedBlock)


def seal_block(sealer: Sealer, protocol: str, tenant: TenantScope, content: OpenedBlock) -> str:
    """Returns a block's content in sealed form."""
    packed = compress(_ENCODER.encode(content), level=_LEVEL)
    sealed = sealer.seal(tenant, _name(protocol), packed)
    return SEAL_PREFIX + urlsafe_b64encode(sealed).decode()


def open_block(sealer: Sealer, protocol: str, tenant: TenantScope, block: str) -> OpenedBlock | None:
    """Returns the content of a sealed block; None if it is another tenant's, another protocol's, or damaged."""
    try:
        sealed = urlsafe_b64decode(block.removeprefix(SEAL_PREFIX))
        if sealed[:1] != SEALED:
            return None
        packed = sealer.open(tenant, _name(protocol), sealed)
        return None if packed is None else _DECODER.decode(decompress(packed, limit=_MAX_BYTES))
    except (binascii.Error, ZstdError, msgspec.MsgspecError, ValueError):
        return None


def _name(protocol: str) -> str:
    return f"compaction block/{protocol}"
