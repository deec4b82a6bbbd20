"""Compaction: makes a conversation fit the window once, and applies the same result to every later request."""
