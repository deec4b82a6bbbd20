"""Reads conversations: statements, steps, sentences, and what in them stands alone."""
