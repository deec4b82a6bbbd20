"""Writes the summaries that replace compacted messages: with a model and checks, or extracted without a model."""
