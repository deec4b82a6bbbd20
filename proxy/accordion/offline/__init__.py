"""Recorded requests through the real rooms, without a server and without a network: `replay` and `explain`."""
