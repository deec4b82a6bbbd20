"""Long-term memories: capture, search, consolidation, and recovery of sessions."""
