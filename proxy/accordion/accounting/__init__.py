"""Token counts, their correction by reported usage, limits, and the ledger."""
