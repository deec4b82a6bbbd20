"""Accordion: a proxy that keeps long-running agents inside their model's context window."""

__version__ = "0.1.0"
