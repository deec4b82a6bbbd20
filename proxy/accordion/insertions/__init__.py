"""Content that the proxy adds to a history: read-backs, recalled excerpts, memories."""
