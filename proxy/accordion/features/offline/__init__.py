"""Looks at requests without a running proxy: `replay`, `explain`, and the savings of past days and past sessions.

The readers of coding agents' session files are here, too.
"""

from __future__ import annotations

from accordion.composition.features import Feature
from accordion.features.offline.commands import add_commands

FEATURE = Feature(add_commands=add_commands)
