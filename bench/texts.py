"""Text that looks like an agent's: documentation prose and source code, no two pieces alike.

Both are cut at random from what every Python ships (its language reference, its own sources),
so that nothing needs to be downloaded; a running mark makes each piece unique.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import inspect
import random
import typing
from pydoc_data import topics

PROSE = "\n".join(topics.topics.values())
CODE = "\n".join(inspect.getsource(module) for module in (argparse, asyncio.base_events, inspect, typing))
SHORTEST, LONGEST = 200, 900


class Texts:
    """An endless, seeded source of unique prose and code."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._pieces = 0

    def prose(self, length: int) -> str:
        return self._cut(PROSE, length)

    def code(self, length: int) -> str:
        return self._cut(CODE, length)

    def unique_name(self) -> str:
        """A name that no other piece of any seed has."""
        self._pieces += 1
        return f"{self._seed:x}-{self._pieces:05x}-{self._random.getrandbits(32):08x}"

    def _cut(self, source: str, length: int) -> str:
        pieces = [self.unique_name()]
        have = len(pieces[0])
        while have < length:
            size = min(self._random.randint(SHORTEST, LONGEST), max(1, length - have - 1))
            start = self._random.randrange(len(source) - size)
            pieces.append(source[start : start + size])
            have += size + 1
        return "\n".join(pieces)
