"""Identifies the tenant, the session and the agent of a request."""
