"""Accordion measured side by side with other proxies, on one machine, over loopback only."""
