"""Makes memories of conversations, by rules or by a model."""
