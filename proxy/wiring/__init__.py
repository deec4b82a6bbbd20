"""Builds every object. The only room that knows every room."""

from proxy.wiring.house import House
from proxy.wiring.tables import counters, dialects, is_loopback, rules

__all__ = ["House", "counters", "dialects", "is_loopback", "rules"]
