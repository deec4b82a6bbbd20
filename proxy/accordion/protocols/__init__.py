"""Bytes to Conversation and back, one module a wire protocol; no I/O."""
