"""A progress bar over files of conversations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from accordion.features.offline.transcripts import TranscriptSource


class ProgressBar:
    """A progress bar over all files, on the standard error if that is a terminal; `say` prints above it."""

    def __init__(self, sources: Sequence[TranscriptSource], *, hidden: bool) -> None:
        self._sources = sources
        console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)
        self._task = self._bar.add_task("reading", total=sum(source.size for source in sources) or None)
        self._start = 0.0

    def begin(self, source: TranscriptSource, name: str) -> None:
        """Shows the next conversation of `source`. Data that is decompressed ahead counts as read."""
        self._bar.update(self._task, description=f"{source.name.rpartition('/')[2]}: {name}"[:40])

    def advance(self, source: TranscriptSource, share: float) -> None:
        """Marks a `share` of the data that was read since the last conversation as done."""
        earlier_size = sum(earlier.size for earlier in self._sources[: self._sources.index(source)])
        position = earlier_size + source.position
        done = self._start + (position - self._start) * share
        self._bar.update(self._task, completed=done)
        if share >= 1:
            self._start = done

    def say(self, text: str) -> None:
        """Prints a line on the standard error."""
        self._bar.console.print(Text(text, style="red", overflow="fold"), soft_wrap=True)

    def start(self) -> None:
        """Shows the bar."""
        self._bar.start()

    def stop(self) -> None:
        """Hides the bar, so that something else can be printed."""
        self._bar.stop()
