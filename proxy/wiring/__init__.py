"""Builds every object. The only room that knows every room."""

from proxy.wiring.house import House, is_loopback
from proxy.wiring.tables import counters, dialects, rules

__all__ = ["House", "counters", "dialects", "is_loopback", "rules"]
