"""The memories of an application."""

from accordion.composition.application import Application
from accordion.features.memory.memory_process import RunningMemory


def running_memory(application: Application) -> RunningMemory:
    """Returns the memories of a process."""
    return next(feature for feature in application.features if isinstance(feature, RunningMemory))
