"""Where bytes are kept under keys: SQLite, Redis or Valkey, or memory."""
