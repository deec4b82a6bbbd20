"""Whose conversation a request belongs to, and which agent speaks."""
