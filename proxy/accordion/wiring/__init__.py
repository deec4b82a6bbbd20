"""Builds every object. The only room that knows every room."""

from accordion.wiring.house import House
from accordion.wiring.tables import counters, dialects, is_loopback, rules

__all__ = ["House", "counters", "dialects", "is_loopback", "rules"]
