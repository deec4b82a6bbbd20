"""Repairs thinking blocks that LiteLLM streams in pieces, and that a client of Chat Completions sends back.

LiteLLM's pieces have no `index`, without which OpenAI's clients cannot join them. It also repeats the whole text of the
block with the signature, so that the joined block is not the signed one.
"""

from __future__ import annotations

from typing import Any


class ThinkingBlocks:
    """The thinking blocks of one answer. `blocks` are in order, each joined from the pieces so far."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open = False

    def add(self, piece: dict[str, Any]) -> dict[str, Any]:
        """Returns the piece in a form that clients can join: with its block's `index`, without repeated text.

        A signature, or the data of a redacted block, ends its block.
        """
        if not self._open or piece.get("type") != self.blocks[-1].get("type"):
            self.blocks.append({"type": piece.get("type")})
        block = self.blocks[-1]
        self._open = not (piece.get("signature") or piece.get("data"))
        if not self._open and piece.get("thinking") and piece["thinking"] == block.get("thinking"):
            piece = piece | {"thinking": ""}
        for name in ("thinking", "signature", "data"):
            if isinstance(text := piece.get(name), str):
                block[name] = block.get(name, "") + text
        return piece | {"index": len(self.blocks) - 1}


def number_thinking(choice: dict[str, Any], blocks_by_choice: dict[int, ThinkingBlocks]) -> None:
    """Numbers the pieces in one choice of a chunk. `blocks_by_choice` are the earlier blocks by the choice's index.

    LiteLLM's second copy of them, which no client could join, is removed.
    """
    delta = choice.get("delta") or {}
    if not (pieces := delta.get("thinking_blocks")):
        return
    thinking = blocks_by_choice.setdefault(choice.get("index", 0), ThinkingBlocks())
    delta["thinking_blocks"] = [thinking.add(piece) for piece in pieces]
    (delta.get("provider_specific_fields") or {}).pop("thinking_blocks", None)


def unnumber_thinking(messages: list[dict[str, Any]]) -> None:
    """Removes the numbers from blocks that a client sends back: providers that sign blocks refuse other fields."""
    for message in messages:
        blocks = message.get("thinking_blocks")
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict):
                block.pop("index", None)
