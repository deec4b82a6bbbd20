"""Finds the memories that answer a query."""
