"""Stores of bytes under keys (in SQLite, in Redis or Valkey, or in memory), and stores of long-term memories."""
