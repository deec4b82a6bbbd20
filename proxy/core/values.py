"""`dataclass` for values that every request makes: frozen for the type checker, quick at run time.

A frozen dataclass writes each field through `object.__setattr__`, which makes building one five times as slow; a small
request builds some twenty. So mypy sees the standard library's `dataclass(frozen=True, slots=True)` and holds every
module to it, while at run time nothing is checked, but under `python -X dev`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  # re-exported under its own name
else:
    import dataclasses

    def dataclass(*, frozen: bool, slots: bool):  # noqa: ANN201, D103
        if sys.flags.dev_mode:
            return dataclasses.dataclass(frozen=frozen, slots=slots)
        # Equal values hash alike, as those of frozen dataclasses do.
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)
