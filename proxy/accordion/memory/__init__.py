"""Long-term memory: what outlives a conversation."""
