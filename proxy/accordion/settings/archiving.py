"""What is kept of what left the window and of what was said: for how long, how much, and under which key."""

from __future__ import annotations

from typing import Annotated, cast

import msgspec

from accordion.archive.transcripts import Record
from accordion.settings.base import Section
from accordion.settings.kinds import Keys, Recorded, Size


class Archive(Section, frozen=True):
    """What is kept, and how."""

    key: Keys = Keys()
    max_bytes: Size = Size(2 << 30)
    retention_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 30.0
    record: Recorded = Recorded("folded")

    @property
    def recorded(self) -> Record:
        """Whose transcripts are kept."""
        return cast(Record, str(self.record))
