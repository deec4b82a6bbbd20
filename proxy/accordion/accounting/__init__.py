"""How full a window is, what the provider reported, and the ledger of both."""
